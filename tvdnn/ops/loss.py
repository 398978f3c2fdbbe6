"""Softmax cross-entropy: per-sample rows, a fixed-order total, and the gradient of the logits."""

from ..graph import Kind, Op, Use
from .builder import Builder, whole
from .definition import Launch, OpDef


def forward(b: Builder, op: Op) -> None:
    logits, target = (b.home[name] for name in op.inputs)
    batch = b.batch
    losses = b.add_map(f"{op.name} rows", (batch,), Kind.AUX, "float32")
    lse = b.add_map(f"{op.name} logsumexp", (batch,), Kind.AUX, "float32")
    b.add_pass(op, "rows", (Use(logits), Use(target)), (Use(losses), Use(lse)))
    total = b.home[op.output] = b.add_whole(op.output, Kind.AUX, (2,))
    reads = (Use(losses), Use(target))
    b.add_pass(op, "total", reads, (whole(total),), unit=batch, reduction=True)


def backward(b: Builder, op: Op) -> None:
    logits, target = (b.home[name] for name in op.inputs)
    lse, total = f"{op.name} logsumexp", b.home[op.output]
    dx = b.new_grad(op.inputs[0])
    reads = (Use(logits), Use(target), Use(lse), whole(total))
    b.add_pass(op, "grad_input", reads, (Use(dx),))


def _run_rows(a: Launch) -> None:
    logits, target = a.reads
    a.kernels.cross_entropy_rows(logits.flatten(1), target, *a.writes, **a.settings("ignore_index"))


def _run_total(a: Launch) -> None:
    a.kernels.cross_entropy_total(*a.reads, a.writes[0], **a.attrs)


def _run_grad_input(a: Launch) -> None:
    logits, *rest = a.reads
    grad = a.writes[0].flatten(1)
    a.kernels.cross_entropy_grad(logits.flatten(1), *rest, a.control.scale, grad, **a.attrs)


CROSS_ENTROPY = OpDef(
    kind="cross_entropy",
    forward=forward,
    backward=backward,
    roles={"rows": _run_rows, "total": _run_total, "grad_input": _run_grad_input},
    saves=frozenset({"input"}),
)
