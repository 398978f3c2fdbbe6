"""dropout: the mask comes from the step's seed and the element's place in the batch, and is never stored."""

from ..graph import Op, Use
from .builder import Builder
from .definition import Launch, OpDef


def forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.home[op.inputs[0]]),), (Use(b.home[op.output]),))


def backward(b: Builder, op: Op) -> None:
    dy = b.grad_of(op)
    b.add_pass(op, "grad_input", (Use(dy),), (Use(b.adopt_grad(op.inputs[0], dy)),))


def _run(a: Launch) -> None:
    settings = {"p": a.attrs["p"], "op_id": a.attrs["op_id"], "first_sample": a.start}
    a.kernels.dropout(a.reads[0], a.writes[0], a.control.seed, **settings)


DROPOUT = OpDef(
    kind="dropout",
    forward=forward,
    backward=backward,
    roles={"forward": _run, "grad_input": _run},
    elementwise=True,
)
