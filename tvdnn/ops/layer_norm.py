"""Layer normalization. Its gradient computes the statistics again from the input.

Backward leaves sums of every sample, which add up to the parameters' gradients.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch.fx import Node

from ..graph import Op, Use
from ..kernels.norm.layer_norm import layer_norm_chunks
from .builder import Builder
from .operator import Launch, Operator, by_pixel
from .sample_sums import SAMPLE_SUMS, add_param_grads, add_sums
from .traced_op import Shape, TracedOp, UnsupportedCallError, axes_of, shape_of


def layer_norm(
    out: Shape,
    x: Node,
    normalized_shape: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> TracedOp:
    if len(normalized_shape) != 1 or axes_of(x)[-1] != len(out) - 1:
        raise UnsupportedCallError(
            f"layer_norm of {shape_of(x)} over {tuple(normalized_shape)}"
            " (it takes [N, F], or maps permuted to [N, H, W, C], over the last dimension)"
        )
    return TracedOp("layer_norm", (x,), (weight, bias), {"eps": float(eps)}, axes_of(x))


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
    _, *sides, columns = b.shape(op.output)
    return add_sums(b, op, layer_norm_chunks(prod(sides), columns), 2, columns)


def _by_row(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    return by_pixel(maps, a.attrs["columns"])


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


LAYER_NORM = Operator(
    "layer_norm",
    forward,
    backward,
    {"forward": _run_forward, "grad_input": _run_grad_input, **SAMPLE_SUMS},
    saves={"input"},
    functions={"layer_norm": layer_norm},
    modules=("LayerNorm",),
)
