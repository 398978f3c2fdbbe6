"""Resizing of maps, by nearest pixels or bilinear: backward reads the gradient alone."""

from ..graph import Op, Use
from .builder import Builder
from .definition import PITCHED, Launch, OpDef

_SETTINGS = ("mode", "scales")


def forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.new_output(op)),))


def backward(b: Builder, op: Op) -> None:
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    b.add_pass(op, "grad_input", (Use(dy),), (Use(dx),))


def _run_forward(a: Launch) -> None:
    a.kernels.resize(a.reads[0], a.writes[0], **a.settings(*_SETTINGS), precision=a.stored)


def _run_grad_input(a: Launch) -> None:
    a.kernels.resize_grad(a.reads[0], a.writes[0], **a.settings(*_SETTINGS), precision=a.stored)


RESIZE = OpDef(
    kind="resize",
    forward=forward,
    backward=backward,
    roles={"forward": _run_forward, "grad_input": _run_grad_input},
    pitched=PITCHED,
)
