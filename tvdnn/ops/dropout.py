"""dropout of elements and of parts: masks come from seed and place, and are never stored."""

from ..graph import Op, Use
from .builder import Builder
from .operator import Launch, OpDef


def forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.home[op.output]),))


def backward(b: Builder, op: Op) -> None:
    b.add_pass(op, "grad_input", (Use(b.grad_of(op)),), (Use(b.next_grad(op)),))


def run_dropout(a: Launch) -> None:
    settings = a.settings("p", "op_id") | {"precision": a.stored}
    a.kernels.dropout(a.reads[0], a.writes[0], a.control.seed, first_sample=a.start, **settings)


def _run_parts(a: Launch) -> None:
    x, y = (maps.view(len(maps), -1, a.attrs["channels"]) for maps in (a.reads[0], a.writes[0]))
    settings = a.settings("part", "p", "op_id") | {"precision": a.stored}
    a.kernels.dropout_parts(x, y, a.control.seed, first_sample=a.start, **settings)


DROPOUT = OpDef(
    kind="dropout",
    forward=forward,
    backward=backward,
    roles={"forward": run_dropout, "grad_input": run_dropout},
    elementwise=True,
)
DROPOUT_PARTS = OpDef(
    kind="dropout_parts",
    forward=forward,
    backward=backward,
    roles={"forward": _run_parts, "grad_input": _run_parts},
    elementwise=True,
)
