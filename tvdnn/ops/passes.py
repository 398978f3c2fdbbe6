"""The passes that most ops have: one forward, and one backward for the first input."""

from collections.abc import Callable
from dataclasses import replace

from ..graph import Op, Use
from .builder import Builder
from .operator import Launch, Operator


def forward(b: Builder, op: Op) -> None:
    """From all inputs to the output, which may lie in the place of one of them."""
    reads = tuple(Use(b.buffer_of[name]) for name in op.inputs)
    b.add_pass(op, "forward", reads, (Use(b.new_output(op)),), params=op.params)


def forward_by_pixel(b: Builder, op: Op) -> None:
    """The same, which notes the channels of pixels."""
    reads = tuple(Use(b.buffer_of[name]) for name in op.inputs)
    writes = (Use(b.new_output(op)),)
    b.add_pass(op, "forward", reads, writes, params=op.params, attrs=channels_of(b, op))


def channels_of(b: Builder, op: Op) -> dict[str, int]:
    return {"channels": b.shape(op.output)[-1]}


def grad_by_input(b: Builder, op: Op) -> None:
    """In place of the output's gradient where that may be handed on, by the input."""
    reads = (Use(b.input_of(op)), Use(b.grad_of(op)))
    b.add_pass(op, "grad_input", reads, (Use(b.next_grad(op)),))


def grad_by_output(b: Builder, op: Op) -> None:
    reads = (Use(b.buffer_of[op.output]), Use(b.grad_of(op)))
    b.add_pass(op, "grad_input", reads, (Use(b.next_grad(op)),))


def with_grad_by_input(
    operator: Operator, grad_input: Callable[[Launch], None]
) -> tuple[Operator, Operator]:
    """An operator with a gradient by the output, and the one that stands for it if rounded."""
    other = operator.untraced(
        f"{operator.kind}_by_input",
        backward=grad_by_input,
        launches={**operator.launches, "grad_input": grad_input},
        saves={"input"},
        in_place=False,
    )
    return replace(operator, if_rounded=other.kind), other


def grad_in_place(b: Builder, op: Op) -> None:
    """In place of the output's gradient where that may be handed on, by that alone."""
    b.add_pass(op, "grad_input", (Use(b.grad_of(op)),), (Use(b.next_grad(op)),))


def grad_apart(b: Builder, op: Op) -> None:
    """In a buffer of its own, by the output's gradient alone."""
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    b.add_pass(op, "grad_input", (Use(dy),), (Use(dx),))
