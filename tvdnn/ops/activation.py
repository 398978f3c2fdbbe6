"""relu, in place where nothing else reads its input; its gradient needs the output's sign alone."""

from ..graph import Need, Op, Use
from .builder import Builder
from .definition import Launch, OpDef


def forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.home[op.output]),))


def backward(b: Builder, op: Op) -> None:
    dy = b.grad_of(op)
    dx = b.adopt_grad(op.inputs[0], dy)
    b.add_pass(op, "grad_input", (Use(b.home[op.output], need=Need.SIGN), Use(dy)), (Use(dx),))


def _run_forward(a: Launch) -> None:
    a.kernels.relu(a.reads[0], a.writes[0])


def _run_grad_input(a: Launch) -> None:
    a.kernels.relu_grad(a.reads[0], a.reads[1], a.writes[0])


RELU = OpDef(
    kind="relu",
    forward=forward,
    backward=backward,
    roles={"forward": _run_forward, "grad_input": _run_grad_input},
    saves=frozenset({"output"}),
    elementwise=True,
)
