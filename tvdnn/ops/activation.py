"""Activation functions: those whose gradient needs the output alone, and those that keep the input.

The former run in place where nothing else reads their input; ReLU's gradient needs the output's
sign. A ReLU inside a fused op takes its gradient masked: from the only reader of what it leaves, or
else by a pass of the op's own.
"""

from collections.abc import Callable
from functools import partial

from ..graph import Kind, Need, Op, Use
from ..kernels.pointwise.activation import BY_INPUT, BY_OUTPUT
from .builder import Builder
from .operator import PITCHED, Launch, OpDef


def forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.home[op.output]),))


def backward(b: Builder, op: Op) -> None:
    reads = (Use(b.home[op.output], need=Need.SIGN), Use(b.grad_of(op)))
    b.add_pass(op, "grad_input", reads, (Use(b.next_grad(op)),))


def by_output_backward(b: Builder, op: Op) -> None:
    reads = (Use(b.home[op.output]), Use(b.grad_of(op)))
    b.add_pass(op, "grad_input", reads, (Use(b.next_grad(op)),))


def by_input_forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.new_output(op)),))


def by_input_backward(b: Builder, op: Op) -> None:
    reads = (Use(b.input_of(op)), Use(b.grad_of(op)))
    b.add_pass(op, "grad_input", reads, (Use(b.next_grad(op)),))


def behind_relu(b: Builder, op: Op) -> str:
    """The buffer with the gradient of what the ReLU inside a fused op takes."""
    dy = b.grad_of(op)
    if op.output in b.masked:
        return dy
    masked = (
        dy
        if not b.is_shared(dy)
        else b.add_map(b.unique(f"masked {dy}"), b.shape(op.output), Kind.GRAD)
    )
    b.add_pass(op, "mask", (Use(b.home[op.output], need=Need.SIGN), Use(dy)), (Use(masked),))
    return masked


def _run_forward(a: Launch) -> None:
    a.kernels.relu(*a.reads_alike(), a.writes[0], precision=a.stored)


def run_mask(a: Launch) -> None:
    """Zero a gradient where the output is not above zero."""
    a.kernels.relu_grad(*a.reads_alike(), a.writes[0], precision=a.stored)


def _run_activate(function: str, a: Launch) -> None:
    settings = {"function": function, "precision": a.stored, **a.attrs}
    a.kernels.activate(*a.reads_alike(), a.writes[0], **settings)


def _run_activate_grad(function: str, a: Launch) -> None:
    settings = {"function": function, "precision": a.stored, **a.attrs}
    a.kernels.activate_grad(*a.reads_alike(), a.writes[0], **settings)


def _by_output(function: str) -> OpDef:
    return OpDef(
        kind=function,
        forward=forward,
        backward=by_output_backward,
        roles=_roles(function),
        saves=frozenset({"output"}),
        elementwise=True,
        pitched=PITCHED,
    )


def _by_input(function: str) -> OpDef:
    return OpDef(
        kind=function,
        forward=by_input_forward,
        backward=by_input_backward,
        roles=_roles(function),
        saves=frozenset({"input"}),
        pitched=PITCHED,
    )


def _roles(function: str) -> dict[str, Callable[[Launch], None]]:
    return {
        "forward": partial(_run_activate, function),
        "grad_input": partial(_run_activate_grad, function),
    }


RELU = OpDef(
    kind="relu",
    forward=forward,
    backward=backward,
    roles={"forward": _run_forward, "grad_input": run_mask},
    saves=frozenset({"output"}),
    elementwise=True,
    pitched=PITCHED,
)
ACTIVATIONS = (*map(_by_output, BY_OUTPUT), *map(_by_input, BY_INPUT))
