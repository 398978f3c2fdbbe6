"""Max, average and adaptive average pooling.

Max pooling's gradient finds the argmax again in its input, or reads the codes that forward left.
"""

from math import prod
from typing import Any

from torch.fx import Node

from ..functional import Ints, pair, window
from ..graph import Kind, Need, Op, Use, channels_per_code_byte
from .builder import Builder
from .operator import STRIDED, Launch, Operator, as_maps
from .passes import forward, grad_apart
from .row_tiles import tiles_of_pools
from .traced_op import Shape, TracedOp, shape_of


def max_pool2d(
    out: Shape,
    x: Node,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,  # with it torch calls another function
) -> TracedOp:
    attrs = window(kernel_size, stride, padding) | {"dilation": pair(dilation)}
    return TracedOp("max_pool2d", (x,), (), attrs)


def avg_pool2d(
    out: Shape,
    x: Node,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TracedOp:
    attrs = window(kernel_size, stride, padding)
    if attrs["kernel"] == attrs["stride"] == (1, 1) and divisor_override in (None, 1):
        return TracedOp("view", (x,))
    averaging = {"count_include_pad": count_include_pad, "divisor_override": divisor_override}
    return TracedOp("avg_pool2d", (x,), (), attrs | averaging)


def adaptive_avg_pool2d(out: Shape, x: Node, output_size: Any) -> TracedOp:
    return TracedOp("view" if out == shape_of(x) else "adaptive_avg_pool2d", (x,))


_MAX = ("kernel", "stride", "padding", "dilation")
_AVG = ("kernel", "stride", "padding", "count_include_pad", "divisor_override")


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
    rows = b.buffers[b.buffer_of[op.output]].section
    return b.add_map(codes_of(op), shape, Kind.AUX, "uint8", rows)


def codes_of(op: Op) -> str:
    """The name of the buffer that `add_codes` makes."""
    return f"codes {op.name}"


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


MAX_POOL2D = Operator(
    "max_pool2d",
    forward,
    max_backward,
    {"forward": _run_max, "grad_input": _run_max_grad},
    saves={"input"},
    copies_values={"forward"},
    strided=STRIDED,
    row_tiles=tiles_of_pools,
    vdnn="all",
    functions={"max_pool2d": max_pool2d},
    modules=("MaxPool1d", "MaxPool2d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d"),
)
MAX_POOL2D_CODES = Operator(
    "max_pool2d_codes",
    codes_forward,
    codes_backward,
    {"forward": _run_max_codes, "grad_input": _run_unpool},
    copies_values={"forward"},
    strided=STRIDED,
    row_tiles=tiles_of_pools,
    vdnn="all",
)
AVG_POOL2D = Operator(
    "avg_pool2d",
    forward,
    grad_apart,
    {"forward": _run_avg, "grad_input": _run_avg_grad},
    strided=STRIDED,
    row_tiles=tiles_of_pools,
    functions={"avg_pool2d": avg_pool2d},
    modules=("AvgPool1d", "AvgPool2d", "LPPool1d", "LPPool2d"),
)
ADAPTIVE_AVG_POOL2D = Operator(
    "adaptive_avg_pool2d",
    forward,
    grad_apart,
    {"forward": _run_adaptive, "grad_input": _run_adaptive_grad},
    strided=STRIDED,
    functions={"adaptive_avg_pool2d": adaptive_avg_pool2d},
    modules=("AdaptiveAvgPool1d", "AdaptiveAvgPool2d"),
    takes_rows=True,
)
