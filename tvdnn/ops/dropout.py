"""dropout: the mask comes from the step's seed and the element's place, and is never stored."""

from ..graph import Op, Use
from .builder import Builder
from .definition import Launch, OpDef


def forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.home[op.output]),))


def backward(b: Builder, op: Op) -> None:
    b.add_pass(op, "grad_input", (Use(b.grad_of(op)),), (Use(b.next_grad(op)),))


def scale_of(p: float) -> float:
    """The factor of what is kept where a share `p` is dropped."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0


def run_dropout(a: Launch) -> None:
    settings = a.settings("p", "op_id") | {"precision": a.precision}
    a.kernels.dropout(a.reads[0], a.writes[0], a.control.seed, first_sample=a.start, **settings)


DROPOUT = OpDef(
    kind="dropout",
    forward=forward,
    backward=backward,
    roles={"forward": run_dropout, "grad_input": run_dropout},
    elementwise=True,
)
