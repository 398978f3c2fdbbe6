"""PReLU: the gradients of map and slopes both read the input."""

from functools import partial
from math import prod

from torch.fx import Node

from ..graph import Op, Use
from ..kernels.pointwise.prelu import prelu_terms
from .builder import Builder
from .operator import Launch, Operator
from .passes import forward_by_pixel
from .reshape_translator import by_map
from .row_tiles import tiles_by_pixel
from .sample_sums import SAMPLE_SUMS, add_grad_input, add_param_grads, add_sums, grad_and_sums
from .traced_op import Shape, TracedOp


def prelu(out: Shape, x: Node, weight: Node) -> TracedOp:
    return by_map(out, TracedOp("prelu", (x,), (weight,)))


def backward(b: Builder, op: Op) -> None:
    """One pass makes the map's gradient and the terms of the slopes'."""
    sums, reads = "", (Use(b.input_of(op)), Use(b.grad_of(op)))
    if b.needs_param_grad(op.params[0]):
        slopes = prod(b.param_shape(op.params[0]))
        sums = add_sums(b, op, partial(prelu_terms, slopes=slopes), 1, columns=slopes)
    add_grad_input(b, op, sums, reads, op.params)
    if sums:
        add_param_grads(b, op, sums)


def _run_forward(a: Launch) -> None:
    x, y = map(a.by_pixel, (*a.reads, *a.writes))
    a.kernels.prelu(x, a.weight.flatten(), y, precision=a.stored)


def _run_grad_input(a: Launch) -> None:
    operands = (*map(a.by_pixel, a.reads), a.weight.flatten(), *grad_and_sums(a))
    a.kernels.prelu_grad(*operands, precision=a.stored)


PRELU = Operator(
    "prelu",
    forward_by_pixel,
    backward,
    {"forward": _run_forward, "grad_input": _run_grad_input, **SAMPLE_SUMS},
    saves={"input"},
    row_tiles=tiles_by_pixel,
    functions={"prelu": prelu},
    modules=("PReLU",),
)
