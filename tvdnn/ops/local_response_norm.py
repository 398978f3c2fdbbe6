"""Local response normalization; its gradient computes the scales again from the input."""

from ..graph import Op, Use
from .builder import Builder
from .operator import Launch, OpDef

_SETTINGS = ("size", "alpha", "beta", "k")


def forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.new_output(op)),))


def backward(b: Builder, op: Op) -> None:
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    b.add_pass(op, "grad_input", (Use(b.input_of(op)), Use(dy)), (Use(dx),))


def _run_forward(a: Launch) -> None:
    settings = a.settings(*_SETTINGS)
    a.kernels.local_response_norm(a.reads[0], a.writes[0], **settings, precision=a.stored)


def _run_grad_input(a: Launch) -> None:
    settings = a.settings(*_SETTINGS)
    a.kernels.local_response_norm_grad(*a.reads, a.writes[0], **settings, precision=a.stored)


LOCAL_RESPONSE_NORM = OpDef(
    kind="local_response_norm",
    forward=forward,
    backward=backward,
    roles={"forward": _run_forward, "grad_input": _run_grad_input},
    saves=frozenset({"input"}),
)
