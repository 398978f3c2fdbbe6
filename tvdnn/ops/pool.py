"""Max, average and adaptive average pooling.

Max pooling's gradient finds the argmax again in its input, or reads the codes that forward left.
"""

from functools import partial
from math import prod
from typing import Any

from torch.fx import Node

from ..functional import Ints, pair, window
from ..graph import Kind, Need, Op, Use, channels_per_code_byte
from .builder import Builder
from .operator import STRIDED, Launch, Operator, as_maps, launches
from .passes import forward, grad_apart
from .row_tiles import tiles_of_pools
from .squeeze import add_reader, split_reads, unstored_source
from .traced_op import Shape, TracedOp, given_settings, shape_of

_MAX_SETTINGS = {"stride": None, "padding": 0, "dilation": 1}


def max_pool2d(out: Shape, x: Node, kernel_size: Ints, *given: Any, **named: Any) -> TracedOp:
    """The shape `out` says of `ceil_mode`. With indices torch calls another function."""
    settings = given_settings(_MAX_SETTINGS, given, named)
    attrs = window(kernel_size, settings["stride"], settings["padding"])
    attrs["dilation"] = pair(settings["dilation"])
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


def adaptive_forward(b: Builder, op: Op) -> None:
    source = unstored_source(b, op.inputs[0])
    add_reader(b, op, "forward", source, (Use(b.input_of(op)),), (Use(b.new_output(op)),))


def _run_adaptive_forward(a: Launch) -> None:
    (x,), made_by = split_reads(a)
    if made_by is None:
        _run_adaptive("adaptive_avg_pool2d", a)
    else:
        operands = as_maps(x), as_maps(a.writes[0])
        a.kernels.normalized_avg(*operands, made_by=made_by, precision=a.stored)


def _run_adaptive(kernel: str, a: Launch) -> None:
    source, target = map(as_maps, (a.reads[0], a.writes[0]))
    getattr(a.kernels, kernel)(source, target, precision=a.stored)


_MAX = ("kernel", "stride", "padding", "dilation")
_AVG = ("kernel", "stride", "padding", "count_include_pad", "divisor_override")
MAX_POOL2D = Operator(
    "max_pool2d",
    forward,
    max_backward,
    {
        "forward": launches("max_pool2d", *_MAX, stores=False),
        "grad_input": launches("max_pool2d_grad", *_MAX),
    },
    saves={"input"},
    copies_values={"forward"},
    changes_nan=True,
    strided=STRIDED,
    row_tiles=tiles_of_pools,
    vdnn="all",
    functions={"max_pool2d": max_pool2d},
    modules=("MaxPool1d", "MaxPool2d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d"),
)
MAX_POOL2D_CODES = MAX_POOL2D.untraced(
    "max_pool2d_codes",
    forward=codes_forward,
    backward=codes_backward,
    launches={
        "forward": launches("max_pool2d_codes", *_MAX, stores=False),
        "grad_input": launches("max_unpool2d", *_MAX),
    },
    saves=frozenset(),
)
AVG_POOL2D = Operator(
    "avg_pool2d",
    forward,
    grad_apart,
    {
        "forward": launches("avg_pool2d", *_AVG),
        "grad_input": launches("avg_pool2d_grad", *_AVG),
    },
    strided=STRIDED,
    row_tiles=tiles_of_pools,
    functions={"avg_pool2d": avg_pool2d},
    modules=("AvgPool1d", "AvgPool2d", "LPPool1d", "LPPool2d"),
)
ADAPTIVE_AVG_POOL2D = Operator(
    "adaptive_avg_pool2d",
    adaptive_forward,
    grad_apart,
    {
        "forward": _run_adaptive_forward,
        "grad_input": partial(_run_adaptive, "adaptive_avg_pool2d_grad"),
    },
    strided=STRIDED,
    functions={"adaptive_avg_pool2d": adaptive_avg_pool2d},
    modules=("AdaptiveAvgPool1d", "AdaptiveAvgPool2d"),
    takes_rows=True,
)
