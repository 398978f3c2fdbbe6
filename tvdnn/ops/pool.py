"""Max, average and adaptive average pooling; max's gradient finds the argmax again in its input."""

from ..graph import Need, Op, Use
from .builder import Builder
from .definition import Launch, OpDef

_MAX = ("kernel", "stride", "padding", "dilation")
_AVG = ("kernel", "stride", "padding", "count_include_pad", "divisor_override")


def forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.new_output(op)),))


def max_backward(b: Builder, op: Op) -> None:
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    b.add_pass(op, "grad_input", (Use(b.input_of(op), need=Need.ARGMAX), Use(dy)), (Use(dx),))


def avg_backward(b: Builder, op: Op) -> None:
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    b.add_pass(op, "grad_input", (Use(dy),), (Use(dx),))


def _run_max(a: Launch) -> None:
    a.kernels.max_pool2d(a.reads[0], a.writes[0], **a.settings(*_MAX))


def _run_max_grad(a: Launch) -> None:
    a.kernels.max_pool2d_grad(*a.reads, a.writes[0], **a.settings(*_MAX))


def _run_avg(a: Launch) -> None:
    a.kernels.avg_pool2d(a.reads[0], a.writes[0], **a.settings(*_AVG))


def _run_avg_grad(a: Launch) -> None:
    a.kernels.avg_pool2d_grad(a.reads[0], a.writes[0], **a.settings(*_AVG))


def _run_adaptive(a: Launch) -> None:
    a.kernels.adaptive_avg_pool2d(a.reads[0], a.writes[0])


def _run_adaptive_grad(a: Launch) -> None:
    a.kernels.adaptive_avg_pool2d_grad(a.reads[0], a.writes[0])


MAX_POOL2D = OpDef(
    kind="max_pool2d",
    forward=forward,
    backward=max_backward,
    roles={"forward": _run_max, "grad_input": _run_max_grad},
    saves=frozenset({"input"}),
)
AVG_POOL2D = OpDef(
    kind="avg_pool2d",
    forward=forward,
    backward=avg_backward,
    roles={"forward": _run_avg, "grad_input": _run_avg_grad},
)
ADAPTIVE_AVG_POOL2D = OpDef(
    kind="adaptive_avg_pool2d",
    forward=forward,
    backward=avg_backward,
    roles={"forward": _run_adaptive, "grad_input": _run_adaptive_grad},
)
