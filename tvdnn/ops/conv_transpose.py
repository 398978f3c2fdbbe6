"""conv_transpose2d: a convolution whose forward pass and data gradient change places.

Its weight [C, K/g, R, S] is that of the convolution which makes C channels out of K.
"""

from typing import Any

from ..functional import convolution
from ..graph import Op, Use
from .builder import Builder
from .conv import (
    PRODUCTS,
    add_grad_weight,
    add_param_grads,
    grad_halo_of,
    halo_of,
    pack,
    pack_grad_input,
)
from .conv_launches import LAUNCHES, spreading_of, storing_of
from .conv_translator import Params, convolving, taps_of
from .operator import STRIDED_BY_WORDS, Launch, Operator
from .row_tiles import tiles_of_transposed
from .traced_op import Shape, Source, TracedOp


def _conv_transpose(out: Shape, x: Source, params: Params, settings: dict[str, Any]) -> TracedOp:
    del settings["output_padding"]  # which shows in the output's shape
    attrs = convolution(taps_of(params[0]), **settings)
    return TracedOp("conv_transpose2d", (x,), params, attrs)


conv_transpose = convolving(
    {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}, _conv_transpose
)


def forward(b: Builder, op: Op) -> None:
    reads = (Use(b.input_of(op), halo=grad_halo_of(b, op)), pack_grad_input(b, op))
    writes = (Use(b.new_output(op)),)
    b.add_pass(op, "forward", reads, writes, params=op.params[1:], flops=_flops(b, op))


def backward(b: Builder, op: Op) -> None:
    dy, value = b.grad_of(op), op.inputs[0]
    dy = add_param_grads(b, op, dy, dy, lambda dy: add_grad_weight(b, op, b.input_of(op), dy))
    if b.needs_grad(value):
        reads = (Use(dy, halo=halo_of(b, op)), pack(b, op))
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
