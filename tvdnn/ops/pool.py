"""Max, average and adaptive average pooling.

Max pooling's gradient finds the argmax again in its input, or reads the codes that forward left.
"""

from math import prod

from ..graph import Kind, Need, Op, Use, channels_per_code_byte
from .builder import Builder
from .operator import PITCHED, Launch, OpDef, as_maps

_MAX = ("kernel", "stride", "padding", "dilation")
_AVG = ("kernel", "stride", "padding", "count_include_pad", "divisor_override")


def forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.new_output(op)),))


def max_backward(b: Builder, op: Op) -> None:
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    b.add_pass(op, "grad_input", (Use(b.input_of(op), need=Need.ARGMAX), Use(dy)), (Use(dx),))


def codes_forward(b: Builder, op: Op) -> None:
    y, codes = b.new_output(op), add_codes(b, op, prod(op.attrs["kernel"]))
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(y), Use(codes)))
    b.passes_masks(op)


def codes_backward(b: Builder, op: Op) -> None:
    b.hand_mask_on(op)
    dx = b.new_grad(op.inputs[0])
    b.add_pass(op, "grad_input", (Use(b.grad_of(op)), Use(codes_of(op))), (Use(dx),))


def add_codes(b: Builder, op: Op, taps: int) -> str:
    """A buffer for where in each window of `taps` the maximum is that the op's output holds."""
    *pixels, channels = b.shape(op.output)
    shape = (*pixels, channels // channels_per_code_byte(taps))
    rows = b.buffers[b.home[op.output]].section
    return b.add_map(codes_of(op), shape, Kind.AUX, "uint8", rows)


def codes_of(op: Op) -> str:
    """The name of the buffer that `add_codes` makes."""
    return f"codes {op.name}"


def avg_backward(b: Builder, op: Op) -> None:
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    b.add_pass(op, "grad_input", (Use(dy),), (Use(dx),))


def _run_max(a: Launch) -> None:
    a.kernels.max_pool2d(a.reads[0], a.writes[0], **a.settings(*_MAX))


def _run_max_grad(a: Launch) -> None:
    a.kernels.max_pool2d_grad(*a.reads, a.writes[0], **a.settings(*_MAX), precision=a.stored)


def _run_max_codes(a: Launch) -> None:
    a.kernels.max_pool2d_codes(a.reads[0], *a.writes, **a.settings(*_MAX))


def _run_unpool(a: Launch) -> None:
    a.kernels.max_unpool2d(*a.reads, a.writes[0], **a.settings(*_MAX), precision=a.stored)


def _run_avg(a: Launch) -> None:
    a.kernels.avg_pool2d(a.reads[0], a.writes[0], **a.settings(*_AVG), precision=a.stored)


def _run_avg_grad(a: Launch) -> None:
    a.kernels.avg_pool2d_grad(a.reads[0], a.writes[0], **a.settings(*_AVG), precision=a.stored)


def _run_adaptive(a: Launch) -> None:
    x, y = map(as_maps, (a.reads[0], a.writes[0]))
    a.kernels.adaptive_avg_pool2d(x, y, precision=a.stored)


def _run_adaptive_grad(a: Launch) -> None:
    dy, dx = map(as_maps, (a.reads[0], a.writes[0]))
    a.kernels.adaptive_avg_pool2d_grad(dy, dx, precision=a.stored)


MAX_POOL2D = OpDef(
    kind="max_pool2d",
    forward=forward,
    backward=max_backward,
    roles={"forward": _run_max, "grad_input": _run_max_grad},
    moves=frozenset({"forward"}),
    saves=frozenset({"input"}),
    pitched=PITCHED,
)
MAX_POOL2D_CODES = OpDef(
    kind="max_pool2d_codes",
    forward=codes_forward,
    backward=codes_backward,
    roles={"forward": _run_max_codes, "grad_input": _run_unpool},
    moves=frozenset({"forward"}),
    pitched=PITCHED,
)
AVG_POOL2D = OpDef(
    kind="avg_pool2d",
    forward=forward,
    backward=avg_backward,
    roles={"forward": _run_avg, "grad_input": _run_avg_grad},
    pitched=PITCHED,
)
ADAPTIVE_AVG_POOL2D = OpDef(
    kind="adaptive_avg_pool2d",
    forward=forward,
    backward=avg_backward,
    roles={"forward": _run_adaptive, "grad_input": _run_adaptive_grad},
    pitched=PITCHED,
)
