"""Multiples, sums and products of maps of one shape. Products keep both factors for backward.

A map may be written over by its detached alias. Its gradient is then that of the result.
"""

from ..graph import Op, Use
from .arithmetic_translator import add, div, maximum, minimum, mul, neg, straight_through, sub
from .builder import Builder
from .operator import STRIDED, Launch, Operator
from .passes import forward
from .row_tiles import tiles_by_pixel


def affine_backward(b: Builder, op: Op) -> None:
    """A multiple of the gradient; where only a number was added, the gradient itself."""
    if op.attrs["scale"] == 1:
        b.adopt_grad(op.inputs[0], b.grad_of(op))
    else:
        b.add_pass(op, "grad_input", (Use(b.grad_of(op)),), (Use(b.next_grad(op)),))


def add_backward(b: Builder, op: Op) -> None:
    """Each term's gradient is the sum's gradient, where that lies."""
    for name in op.inputs:
        if b.needs_grad(name):
            b.adopt_grad(name, b.grad_of(op))


def add_multiple_backward(b: Builder, op: Op) -> None:
    """The first term's gradient is the sum's, where it lies."""
    first, second = op.inputs
    if b.needs_grad(first):
        b.adopt_grad(first, b.grad_of(op))
    if b.needs_grad(second):
        b.add_pass(op, "grad_input", (Use(b.grad_of(op)),), (Use(b.new_grad(second)),))


def straight_through_backward(b: Builder, op: Op) -> None:
    """The first map's gradient is the result's gradient; the second has none."""
    b.adopt_grad(op.inputs[0], b.grad_of(op))


def multiply_backward(b: Builder, op: Op) -> None:
    factors = tuple(Use(b.buffer_of[name]) for name in op.inputs)
    dy, wanted = Use(b.grad_of(op)), [b.needs_grad(name) for name in op.inputs]
    if all(wanted):
        grads = (Use(b.next_grad(op)), Use(b.new_grad(op.inputs[1])))
        b.add_pass(op, "grad_inputs", (*factors, dy), grads)
    else:
        value, factor = op.inputs[wanted.index(True)], factors[wanted.index(False)]
        b.add_pass(op, "grad_input", (factor, dy), (Use(b.new_grad(value)),))


def run_add(a: Launch) -> None:
    a.kernels.add(*a.reads_alike(), a.writes[0], precision=a.stored)


def _run_affine(a: Launch) -> None:
    settings = a.settings("scale", "shift") | {"precision": a.stored}
    a.kernels.affine(*a.reads_alike(), a.writes[0], **settings)


def _run_scale(a: Launch) -> None:
    a.kernels.affine(*a.reads_alike(), a.writes[0], scale=a.attrs["scale"], precision=a.stored)


def _run_add_multiple(a: Launch) -> None:
    settings = a.settings("scale") | {"precision": a.stored}
    a.kernels.add_multiple(*a.reads_alike(), a.writes[0], **settings)


def _run_straight_through(a: Launch) -> None:
    _, values = a.reads_alike()
    a.kernels.affine(values, a.writes[0], scale=1.0, precision=a.stored)


def _run_multiply(a: Launch) -> None:
    a.kernels.multiply(*a.reads_alike(), a.writes[0], precision=a.stored)


def _run_multiply_grad(a: Launch) -> None:
    shape = a.writes[0].shape
    operands = (tensor.view(shape) for tensor in (*a.reads, *a.writes))
    a.kernels.multiply_grad(*operands, precision=a.stored)


AFFINE = Operator(
    "affine",
    forward,
    affine_backward,
    {"forward": _run_affine, "grad_input": _run_scale},
    in_place=True,
    row_tiles=tiles_by_pixel,
    functions=dict.fromkeys(("neg", "negative", "operator.neg"), neg),
    keeps_axes=True,
)
ADD = Operator(
    "add",
    forward,
    add_backward,
    {"forward": run_add},
    in_place=True,
    strided=STRIDED,
    row_tiles=tiles_by_pixel,
    functions=dict.fromkeys(("add", "operator.add"), add)
    | dict.fromkeys(("sub", "subtract", "operator.sub"), sub),
    keeps_axes=True,
)
ADD_MULTIPLE = Operator(
    "add_multiple",
    forward,
    add_multiple_backward,
    {"forward": _run_add_multiple, "grad_input": _run_scale},
    in_place=True,
    row_tiles=tiles_by_pixel,
    keeps_axes=True,
)
STRAIGHT_THROUGH = Operator(
    "straight_through",
    forward,
    straight_through_backward,
    {"forward": _run_straight_through},
    row_tiles=tiles_by_pixel,
    functions={"straight_through": straight_through},
    keeps_axes=True,
)
MULTIPLY = Operator(
    "multiply",
    forward,
    multiply_backward,
    {"forward": _run_multiply, "grad_input": _run_multiply, "grad_inputs": _run_multiply_grad},
    saves={"input"},
    row_tiles=tiles_by_pixel,
    functions=dict.fromkeys(("mul", "multiply", "operator.mul"), mul)
    | dict.fromkeys(("div", "divide", "true_divide", "operator.truediv"), div)
    | {"maximum": maximum, "minimum": minimum},
    modules=("GLU",),
    keeps_axes=True,
)
