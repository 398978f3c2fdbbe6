"""PReLU: the gradients of map and slopes both read the input."""

from math import prod

import torch
from torch.fx import Node

from ..graph import Op, Use
from ..kernels.pointwise.prelu import prelu_terms
from .builder import Builder
from .operator import Launch, Operator, by_pixel
from .reshape_translator import as_rows, of_rows
from .row_tiles import tiles_by_pixel
from .sample_sums import SAMPLE_SUMS, add_param_grads, add_sums
from .traced_op import Shape, TracedOp


def prelu(out: Shape, x: Node, weight: Node) -> TracedOp:
    if len(out) == 3:
        return of_rows(out, TracedOp("prelu", (as_rows(x),), (weight,)))
    return TracedOp("prelu", (x,), (weight,))


def forward(b: Builder, op: Op) -> None:
    reads, writes = (Use(b.input_of(op)),), (Use(b.new_output(op)),)
    b.add_pass(op, "forward", reads, writes, params=op.params, attrs=_sizes(b, op))


def backward(b: Builder, op: Op) -> None:
    """One pass makes the map's gradient and the terms of the slopes'."""
    dy, wanted = b.grad_of(op), b.needs_grad(op.inputs[0])
    writes, sums = [], ""
    if b.needs_param_grad(op.params[0]):
        _, *sides, channels = b.shape(op.output)
        slopes = prod(b.param_shape(op.params[0]))
        sums = add_sums(b, op, prelu_terms(prod(sides), channels, slopes), 1, slopes)
        writes.append(Use(sums))
    if wanted:
        writes.append(Use(b.next_grad(op)))
    attrs = {**_sizes(b, op), "to_slopes": bool(sums)}
    reads = (Use(b.input_of(op)), Use(dy))
    b.add_pass(op, "grad_input", reads, writes, params=op.params, attrs=attrs)
    if sums:
        add_param_grads(b, op, sums)


def _sizes(b: Builder, op: Op) -> dict[str, int]:
    return {"channels": b.shape(op.output)[-1]}


def _by_pixel(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    return by_pixel(maps, a.attrs["channels"])


def _slopes_of(a: Launch) -> torch.Tensor:
    slopes = a.params[0]
    assert slopes is not None
    return slopes.flatten()


def _run_forward(a: Launch) -> None:
    x, y = (_by_pixel(a, maps) for maps in (*a.reads, *a.writes))
    a.kernels.prelu(x, _slopes_of(a), y, precision=a.stored)


def _run_grad_input(a: Launch) -> None:
    x, dy = (_by_pixel(a, maps) for maps in a.reads)
    written = list(a.writes)
    sums = written.pop(0) if a.attrs["to_slopes"] else None
    dx = _by_pixel(a, written[0]) if written else None
    a.kernels.prelu_grad(x, dy, _slopes_of(a), dx, sums, precision=a.stored)


PRELU = Operator(
    "prelu",
    forward,
    backward,
    {"forward": _run_forward, "grad_input": _run_grad_input, **SAMPLE_SUMS},
    saves={"input"},
    row_tiles=tiles_by_pixel,
    functions={"prelu": prelu},
    modules=("PReLU",),
)
