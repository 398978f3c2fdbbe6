"""Multiples, sums and products of maps of one shape. Products keep both factors for backward.

A map may be written over by its detached alias. Its gradient is then that of the result.
"""

from functools import partial

from ..graph import Op, Use
from .arithmetic_translator import add, broadcast, div, mul, neg, straight_through, sub
from .builder import Builder
from .operator import STRIDED, Launch, Operator, elementwise
from .passes import forward, grad_in_place
from .row_tiles import tiles_by_pixel


def affine_backward(b: Builder, op: Op) -> None:
    """A multiple of the gradient; where only a number was added, the gradient itself."""
    if op.attrs["scale"] == 1:
        b.adopt_grad(op.inputs[0], b.grad_of(op))
    else:
        grad_in_place(b, op)


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


def _run_straight_through(a: Launch) -> None:
    _, values = a.reads_alike()
    a.kernels.affine(values, a.writes[0], scale=1.0, precision=a.stored)


run_add, _run_multiply = elementwise("add"), elementwise("multiply")
_run_scale = elementwise("affine", "scale")
AFFINE = Operator(
    "affine",
    forward,
    affine_backward,
    {"forward": elementwise("affine", "scale", "shift"), "grad_input": _run_scale},
    in_place=True,
    row_tiles=tiles_by_pixel,
    functions=dict.fromkeys(("neg", "negative", "operator.neg"), neg),
    keeps_axes=True,
    skippable=True,
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
    {"forward": elementwise("add_multiple", "scale"), "grad_input": _run_scale},
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
    {
        "forward": _run_multiply,
        "grad_input": _run_multiply,
        "grad_inputs": elementwise("multiply_grad"),
    },
    saves={"input"},
    row_tiles=tiles_by_pixel,
    functions=dict.fromkeys(("mul", "multiply", "operator.mul"), mul)
    | dict.fromkeys(("div", "divide", "true_divide", "operator.truediv"), div)
    | {name: partial(broadcast, name) for name in ("maximum", "minimum")},
    modules=("GLU", "CosineSimilarity"),
    keeps_axes=True,
)
