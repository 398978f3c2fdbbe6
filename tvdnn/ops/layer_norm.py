"""Layer normalization; its gradient computes the statistics again, from the input.

By the way it leaves of every sample what the parameters' gradients add up from.
"""

from math import prod

import torch

from ..graph import Kind, Op, Use
from ..kernels.norm.layer_norm import layer_norm_chunks
from .builder import Builder
from .operator import Launch, OpDef
from .optimizer import run_update_at_once
from .sample_sums import add_param_grads, run_param_grad


def forward(b: Builder, op: Op) -> None:
    x, y = b.input_of(op), b.new_output(op)
    attrs = {"columns": b.shape(op.output)[-1]}
    b.add_pass(op, "forward", (Use(x),), (Use(y),), params=op.params, attrs=attrs)


def backward(b: Builder, op: Op) -> None:
    reads = Use(b.input_of(op)), Use(b.grad_of(op))
    wanted = b.needs_grad(op.inputs[0])
    sums = _add_sums(b, op) if any(map(b.needs_param_grad, op.params)) else None
    writes = [] if sums is None else [Use(sums)]
    if wanted:
        writes.append(Use(b.next_grad(op)))
    attrs = {"columns": b.shape(op.output)[-1], "leaves_sums": sums is not None}
    b.add_pass(op, "grad_input", reads, writes, params=op.params[:1], attrs=attrs)
    if sums is not None:
        add_param_grads(b, op, sums)


def _add_sums(b: Builder, op: Op) -> str:
    """A buffer for the sums, in sections as long as the gradient's."""
    samples, *sides, columns = b.shape(op.output)
    shape = (samples, layer_norm_chunks(prod(sides), columns), 2, columns)
    rows = b.buffers[b.grad_of(op)].section
    return b.add_map(f"sums {op.name}", shape, Kind.AUX, "float32", rows)


def _by_row(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    """Maps as [N, rows, columns]; a view may have renamed them."""
    return maps.view(len(maps), -1, a.attrs["columns"])


def _run_forward(a: Launch) -> None:
    x, y = (_by_row(a, maps) for maps in (*a.reads, *a.writes))
    a.kernels.layer_norm(x, *a.params, y, **a.settings("eps"), precision=a.stored)


def _run_grad_input(a: Launch) -> None:
    x, dy = (_by_row(a, maps) for maps in a.reads)
    written = list(a.writes)
    sums = written.pop(0) if a.attrs["leaves_sums"] else None
    dx = _by_row(a, written[0]) if written else None
    settings = a.settings("eps") | {"precision": a.stored}
    a.kernels.layer_norm_grad(x, dy, a.params[0], dx, sums, **settings)


LAYER_NORM = OpDef(
    kind="layer_norm",
    forward=forward,
    backward=backward,
    roles={
        "forward": _run_forward,
        "grad_input": _run_grad_input,
        "grad_weight": run_param_grad,
        "grad_bias": run_param_grad,
        "update": run_update_at_once,
    },
    saves=frozenset({"input"}),
)
