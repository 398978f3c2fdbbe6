"""conv2d_depthwise: convolution of each channel by a filter of its own.

Its passes are those of a convolution. Forward pass and data gradient read the same copy of the
weight, [R, S, C], unrounded: their products are exact in float32.
"""

from math import prod

from ..graph import Kind, Op, Use
from ..kernels.conv.depthwise import depthwise_plan
from .builder import Builder, whole
from .conv import add_grad_bias, filter_shape
from .conv_launches import LAUNCHES, as_filters
from .operator import STRIDED_BY_WORDS, Launch, Operator

GEOMETRY = ("stride", "padding", "dilation")


def forward(b: Builder, op: Op) -> None:
    packed = _pack(b, op, f"packed {op.name}")
    reads, writes = (Use(b.input_of(op)), packed), (Use(b.new_output(op)),)
    b.add_pass(op, "forward", reads, writes, params=op.params[1:], flops=_flops(b, op))


def backward(b: Builder, op: Op) -> None:
    dy, value = b.grad_of(op), op.inputs[0]
    _grad_weight(b, op, dy)
    add_grad_bias(b, op, dy, dy)
    if b.needs_grad(value):
        reads = (Use(dy), _pack(b, op, f"packed grad {op.name}"))
        b.add_pass(op, "grad_input", reads, (Use(b.new_grad(value)),), flops=_flops(b, op))


def _pack(b: Builder, op: Op, name: str) -> Use:
    """A copy of the weight in the compute type, channels innermost."""
    c, _, r, s = filter_shape(b, op)
    packed = whole(b.add_whole(name, Kind.WEIGHT, (r, s, c), b.dtype))
    weight = op.params[0]
    nbytes = b.param_nbytes(weight)
    b.add_pass(op, "pack", (), (packed,), params=(weight,), extra_nbytes=nbytes)
    return packed


def _grad_weight(b: Builder, op: Op, dy: str) -> None:
    weight, (c, _, r, s) = op.params[0], filter_shape(b, op)
    if not b.needs_param_grad(weight):
        return
    _, height, width, _ = b.shape(op.output)
    plan = depthwise_plan((height, width), c, (r, s))
    sums = whole(b.add_partials(op, weight, (plan.splits, c, r, s, 1)))
    reads, flops = (Use(b.input_of(op)), Use(dy)), _flops(b, op)
    b.add_pass(op, "grad_weight", reads, (sums,), unit=plan.unit, reduction=True, flops=flops)


def _flops(b: Builder, op: Op) -> float:
    _, _, r, s = filter_shape(b, op)
    return 2.0 * prod(b.shape(op.output)) * r * s


def _run_pack(a: Launch) -> None:
    """Pack the weight [C, 1, R, S] as a convolution from C channels to one."""
    (weight,), (packed,) = a.params, a.writes
    assert weight is not None
    a.kernels.pack_weight(as_filters(weight).transpose(0, 1), packed[None], groups=1)


def _run_forward(a: Launch) -> None:
    settings = a.settings(*GEOMETRY) | {"precision": a.stored}
    a.kernels.depthwise_conv2d(*a.reads, a.params[0], a.writes[0], **settings)


def _run_grad_input(a: Launch) -> None:
    settings = a.settings(*GEOMETRY) | {"precision": a.stored}
    a.kernels.depthwise_conv2d_grad_input(*a.reads, a.writes[0], **settings)


def _run_grad_weight(a: Launch) -> None:
    settings = a.settings(*GEOMETRY) | {"first": a.start == 0}
    a.kernels.depthwise_conv2d_grad_weight(*a.reads, a.writes[0], **settings)


CONV2D_DEPTHWISE = Operator(
    "conv2d_depthwise",
    forward,
    backward,
    {
        **LAUNCHES,
        "pack": _run_pack,
        "forward": _run_forward,
        "grad_input": _run_grad_input,
        "grad_weight": _run_grad_weight,
    },
    saves={"input"},
    strided=STRIDED_BY_WORDS,
    vdnn="conv",
    takes_buffers=True,
)
