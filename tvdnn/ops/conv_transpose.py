"""conv_transpose2d: a convolution whose forward pass and data gradient change places.

Its weight [C, K/g, R, S] is that of the convolution which makes C channels out of K.
"""

from torch.fx import Node

from ..functional import Ints, convolution, in_row
from ..graph import Op, Use
from .builder import Builder
from .conv import (
    PRODUCTS,
    add_grad_weight,
    add_param_grads,
    filter_shape,
    grad_halo_of,
    halo_of,
    pack_grad_input,
)
from .conv_launches import LAUNCHES, spreading_of, storing_of
from .conv_translator import taps_of
from .operator import STRIDED_BY_WORDS, Launch, Operator
from .reshape_translator import as_rows, of_rows
from .row_tiles import tiles_of_transposed
from .traced_op import Shape, Source, TracedOp, shape_of


def conv_transpose(
    out: Shape,
    x: Source,
    weight: Node,
    bias: Node | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> TracedOp:
    """As `conv`; the padding of the output shows in its shape."""
    if len(shape_of(weight)) == 3 and len(shape_of(x)) != 4:
        settings = (in_row(stride, 1), in_row(padding, 0), 0, groups, in_row(dilation, 1))
        maps = (*out[:2], 1, out[2])
        return of_rows(out, conv_transpose(maps, as_rows(x), weight, bias, *settings))
    attrs = convolution(taps_of(weight), stride, padding, dilation, groups)
    return TracedOp("conv_transpose2d", (x,), (weight, bias), attrs)


def forward(b: Builder, op: Op) -> None:
    reads = (Use(b.input_of(op), halo=grad_halo_of(b, op)), pack_grad_input(b, op))
    writes = (Use(b.new_output(op)),)
    b.add_pass(op, "forward", reads, writes, params=op.params[1:], flops=_flops(b, op))


def backward(b: Builder, op: Op) -> None:
    dy, value = b.grad_of(op), op.inputs[0]
    dy = add_param_grads(b, op, dy, dy, lambda dy: add_grad_weight(b, op, b.input_of(op), dy))
    if b.needs_grad(value):
        k, c, r, s = filter_shape(b, op)
        packed = b.add_weight_copy(op, "pack", f"packed {op.name}", (k, r, s, c))
        reads = (Use(dy, halo=halo_of(b, op)), packed)
        b.add_pass(op, "grad_input", reads, (Use(b.new_grad(value)),), flops=_flops(b, op))


def _flops(b: Builder, op: Op) -> float:
    return b.product_flops(op, *b.shape(op.inputs[0])[:-1])


def _run_forward(a: Launch) -> None:
    x, packed = a.reads
    a.kernels.conv2d_grad_input(x, packed, a.writes[0], bias=a.params[0], **spreading_of(a))


def _run_grad_input(a: Launch) -> None:
    a.kernels.conv2d(*a.reads, None, a.writes[0], **storing_of(a))


CONV_TRANSPOSE2D = Operator(
    "conv_transpose2d",
    forward,
    backward,
    {**LAUNCHES, "forward": _run_forward, "grad_input": _run_grad_input},
    saves={"input"},
    products=PRODUCTS,
    strided=STRIDED_BY_WORDS,
    row_tiles=tiles_of_transposed,
    vdnn="conv",
    functions=dict.fromkeys(("conv_transpose1d", "conv_transpose2d"), conv_transpose),
    modules=("ConvTranspose1d", "ConvTranspose2d"),
)
