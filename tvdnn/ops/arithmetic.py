"""Multiples, sums and products of maps of one shape; products keep both factors for backward.

A map that was written over by its detached alias has the gradient of what it was before.
"""

from ..graph import Op, Use
from .builder import Builder
from .operator import Launch, OpDef


def affine_forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.home[op.output]),))


def affine_backward(b: Builder, op: Op) -> None:
    """A multiple of the gradient; where only a number was added, the gradient itself."""
    if op.attrs["scale"] == 1:
        b.adopt_grad(op.inputs[0], b.grad_of(op))
    else:
        b.add_pass(op, "grad_input", (Use(b.grad_of(op)),), (Use(b.next_grad(op)),))


def add_multiple_forward(b: Builder, op: Op) -> None:
    reads = tuple(Use(b.home[name]) for name in op.inputs)
    b.add_pass(op, "forward", reads, (Use(b.home[op.output]),))


def add_multiple_backward(b: Builder, op: Op) -> None:
    """The first term's gradient is the sum's, where it lies."""
    first, second = op.inputs
    if b.needs_grad(first):
        b.adopt_grad(first, b.grad_of(op))
    if b.needs_grad(second):
        b.add_pass(op, "grad_input", (Use(b.grad_of(op)),), (Use(b.new_grad(second)),))


def straight_through_forward(b: Builder, op: Op) -> None:
    """The second map's values; the first is among the reads because it is what was written over."""
    reads = tuple(Use(b.home[name]) for name in op.inputs)
    b.add_pass(op, "forward", reads, (Use(b.new_output(op)),))


def straight_through_backward(b: Builder, op: Op) -> None:
    """The first map's gradient is the result's, where it lies; the second has none."""
    b.adopt_grad(op.inputs[0], b.grad_of(op))


def multiply_forward(b: Builder, op: Op) -> None:
    reads = tuple(Use(b.home[name]) for name in op.inputs)
    b.add_pass(op, "forward", reads, (Use(b.new_output(op)),))


def multiply_backward(b: Builder, op: Op) -> None:
    factors = tuple(Use(b.home[name]) for name in op.inputs)
    dy, wanted = Use(b.grad_of(op)), [b.needs_grad(name) for name in op.inputs]
    if all(wanted):
        grads = (Use(b.next_grad(op)), Use(b.new_grad(op.inputs[1])))
        b.add_pass(op, "grad_inputs", (*factors, dy), grads)
    else:
        value, factor = op.inputs[wanted.index(True)], factors[wanted.index(False)]
        b.add_pass(op, "grad_input", (factor, dy), (Use(b.new_grad(value)),))


def _run_affine(a: Launch) -> None:
    settings = a.settings("scale", "shift") | {"precision": a.stored}
    a.kernels.affine(*a.reads_alike(), a.writes[0], **settings)


def _run_scale(a: Launch) -> None:
    a.kernels.affine(*a.reads_alike(), a.writes[0], scale=a.attrs["scale"], precision=a.stored)


def _run_add_multiple(a: Launch) -> None:
    a.kernels.add_multiple(
        *a.reads_alike(), a.writes[0], scale=a.attrs["scale"], precision=a.stored
    )


def _run_straight_through(a: Launch) -> None:
    _, values = a.reads_alike()
    a.kernels.affine(values, a.writes[0], scale=1.0, precision=a.stored)


def _run_multiply(a: Launch) -> None:
    a.kernels.multiply(*a.reads_alike(), a.writes[0], precision=a.stored)


def _run_multiply_grad(a: Launch) -> None:
    shape = a.writes[0].shape
    operands = (tensor.view(shape) for tensor in (*a.reads, *a.writes))
    a.kernels.multiply_grad(*operands, precision=a.stored)


AFFINE = OpDef(
    kind="affine",
    forward=affine_forward,
    backward=affine_backward,
    roles={"forward": _run_affine, "grad_input": _run_scale},
    elementwise=True,
)
ADD_MULTIPLE = OpDef(
    kind="add_multiple",
    forward=add_multiple_forward,
    backward=add_multiple_backward,
    roles={"forward": _run_add_multiple, "grad_input": _run_scale},
    elementwise=True,
)
STRAIGHT_THROUGH = OpDef(
    kind="straight_through",
    forward=straight_through_forward,
    backward=straight_through_backward,
    roles={"forward": _run_straight_through},
)
MULTIPLY = OpDef(
    kind="multiply",
    forward=multiply_forward,
    backward=multiply_backward,
    roles={
        "forward": _run_multiply,
        "grad_input": _run_multiply,
        "grad_inputs": _run_multiply_grad,
    },
    saves=frozenset({"input"}),
)
