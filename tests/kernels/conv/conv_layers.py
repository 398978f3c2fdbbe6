"""Layers that the convolution kernels are tested on, and their gradients by autograd."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d as torch_conv2d

from tests.kernels.numerics import poisoned, randn
from tvdnn.kernels.conv.bands import packed_shape, packed_shape_grad_input
from tvdnn.kernels.conv.pack_weight import pack_weight_grad_input_reference, pack_weight_reference

TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 4e-3}
TF32_TOLERANCE = 4.9e-4  # maps are rounded to 10 bits, by half of 2**-10 at most
PARTIAL_TOLERANCE = 5e-6  # weight gradients add float32 products of the same rounded operands
DTYPES = [torch.float32, torch.bfloat16]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shape:
    """A layer and its input, [samples, height, width] and channels."""

    x: tuple[int, int, int]
    channels: Pair
    size: Pair = (3, 3)
    stride: Pair = (1, 1)
    padding: Pair = (1, 1)
    dilation: Pair = (1, 1)
    groups: int = 1
    group: int = 2
    precision: str = "ieee"

    @property
    def settings(self) -> dict[str, object]:
        names = ("stride", "padding", "dilation", "groups", "precision")
        return {name: getattr(self, name) for name in names}


def tolerance_of(shape: Shape, dtype: torch.dtype) -> float:
    """Relative error that the maps of a layer may have."""
    tf32 = shape.precision == "tf32" and dtype == torch.float32
    return TF32_TOLERANCE if tf32 else TOLERANCE[dtype]


GENERAL = {
    "first layer": Shape((2, 9, 7), (3, 20)),
    "one channel each way": Shape((3, 5, 5), (1, 1)),
    "one by one": Shape((2, 6, 5), (17, 33), (1, 1), padding=(0, 0)),
    "one by one, stride 2": Shape((3, 7, 7), (16, 16), (1, 1), (2, 2), (0, 0)),
    "stride 2": Shape((3, 11, 8), (19, 10), stride=(2, 2)),
    "stride 2, few channels": Shape((2, 11, 8), (5, 6), stride=(2, 2)),
    "stride 4, filter 11": Shape((1, 19, 15), (3, 8), (11, 11), (4, 4), (2, 2)),
    "stride beyond filter": Shape((2, 9, 9), (16, 6), (2, 2), (3, 3), (0, 0)),
    "uneven": Shape((1, 10, 13), (16, 12), (1, 7), (2, 1), (0, 3)),
    "dilated": Shape((2, 9, 9), (18, 7), padding=(2, 2), dilation=(2, 2)),
    "dilated and strided": Shape(
        (2, 12, 11), (18, 7), stride=(2, 3), padding=(3, 1), dilation=(3, 2)
    ),
    "padding beyond filter": Shape((1, 4, 4), (16, 4), padding=(4, 3)),
    "groups": Shape((2, 6, 6), (40, 12), groups=2),
    "depthwise": Shape((2, 6, 6), (9, 18), groups=9),
    "one past a block": Shape((1, 3, 43), (33, 129), (1, 3), padding=(0, 1)),
}
BANDS = {  # convolutions in groups whose bands of input channels TMA can move
    "pairs": Shape((2, 6, 5), (128, 128), groups=64, precision="tf32"),
    "fours": Shape((3, 4, 3), (128, 128), groups=32, precision="tf32"),
    "fours, stride 2": Shape((2, 8, 6), (128, 128), stride=(2, 2), groups=32, precision="tf32"),
    "fours, odd sides": Shape((2, 7, 5), (64, 64), stride=(2, 2), groups=16, precision="tf32"),
    "eights": Shape((2, 5, 4), (104, 104), groups=13, precision="tf32"),
    "eights, one block": Shape((2, 5, 4), (48, 48), groups=6, precision="tf32"),
    "eights, stride 2": Shape((2, 6, 8), (48, 48), stride=(2, 2), groups=6, precision="tf32"),
    "sixteens, dilated": Shape(
        (1, 6, 6), (64, 64), padding=(2, 2), dilation=(2, 2), groups=4, precision="tf32"
    ),
    "twenty-fours": Shape((2, 4, 5), (120, 120), groups=5, precision="tf32"),
    "twenty-fours, stride 2": Shape((2, 8, 6), (72, 72), stride=(2, 2), groups=3, precision="tf32"),
    "thirty-twos, strided and dilated": Shape(
        (2, 9, 8),
        (96, 96),
        stride=(2, 3),
        padding=(3, 1),
        dilation=(3, 2),
        groups=3,
        precision="tf32",
    ),
    "sixty-fours": Shape((2, 4, 4), (192, 192), groups=3, precision="tf32"),
    "wide": Shape((2, 3, 3), (256, 256), (1, 1), padding=(0, 0), groups=2, precision="tf32"),
    "more outputs": Shape((2, 4, 4), (64, 128), groups=16, precision="tf32"),
    "fewer outputs": Shape((2, 4, 4), (256, 64), groups=8, precision="tf32"),
    "forties": Shape((2, 5, 4), (120, 120), groups=3, precision="tf32"),
    "forties, stride 2": Shape((2, 6, 8), (80, 80), stride=(2, 2), groups=2, precision="tf32"),
    "fifty-sixes, one by one": Shape(
        (2, 3, 4), (168, 168), (1, 1), padding=(0, 0), groups=3, precision="tf32"
    ),
    "seventy-twos, odd sides": Shape(
        (2, 7, 5), (144, 144), stride=(2, 2), groups=2, precision="tf32"
    ),
    "hundred and twelves": Shape((1, 4, 4), (224, 224), groups=2, precision="tf32"),
    "tiles beside groups": Shape((1, 3, 3), (272, 272), groups=2, precision="tf32"),
    "forties to eighties": Shape((2, 4, 3), (80, 160), groups=2, precision="tf32"),
    "one channel to two": Shape((2, 4, 4), (40, 80), groups=40, precision="tf32"),
}
DESCRIPTOR = {
    "box": Shape((3, 4, 3), (64, 64), precision="tf32"),
    "box, odd channels": Shape((2, 5, 7), (32, 40), precision="tf32"),
    "box, large filter": Shape((2, 5, 4), (32, 32), (5, 5), padding=(2, 2), precision="tf32"),
    "box, no padding": Shape((2, 5, 5), (32, 32), (2, 3), padding=(0, 0), precision="tf32"),
    "box, dilated": Shape((1, 6, 6), (32, 64), padding=(2, 2), dilation=(2, 2), precision="tf32"),
    "box, one by one": Shape((3, 5, 5), (64, 32), (1, 1), padding=(0, 0), precision="tf32"),
    "box, stride 2": Shape((2, 8, 6), (64, 64), stride=(2, 2), precision="tf32"),
    "box, stride 2, 48 channels": Shape((2, 6, 4), (48, 96), stride=(2, 2), precision="tf32"),
    "box, stride 2, odd sides": Shape((2, 7, 5), (64, 32), stride=(2, 2), precision="tf32"),
    "box, stride 3": Shape((2, 7, 10), (32, 32), (2, 5), (3, 3), padding=(0, 2), precision="tf32"),
    "box, one by one, stride 2": Shape(
        (3, 6, 5), (64, 32), (1, 1), (2, 2), padding=(0, 0), precision="tf32"
    ),
    "samples": Shape((19, 3, 4), (32, 32), group=16, precision="tf32"),
    "samples, stride 2": Shape((18, 5, 4), (64, 32), stride=(2, 2), group=16, precision="tf32"),
}
SHAPES = GENERAL | DESCRIPTOR | BANDS
RUNS = {  # few samples, to be cut into runs
    "first layer": replace(SHAPES["first layer"], x=(5, 5, 7)),
    "stride 2": replace(SHAPES["stride 2"], x=(5, 6, 8)),
    "box": replace(SHAPES["box"], x=(7, 4, 3)),
    "samples": SHAPES["samples"],
    "fours": replace(SHAPES["fours"], x=(5, 4, 3)),
}
ON_GPU = {
    "large": Shape((16, 56, 56), (128, 256), precision="tf32"),
    "small": Shape((64, 14, 14), (256, 256), precision="tf32"),
    "few channels": Shape((8, 112, 112), (3, 64), precision="tf32"),
    "groups": Shape((16, 56, 56), (128, 128), groups=32, precision="tf32"),
    "groups, stride 2": Shape((64, 28, 28), (256, 256), stride=(2, 2), groups=32, precision="tf32"),
    "groups of 8, stride 2": Shape(
        (16, 112, 112), (48, 48), stride=(2, 2), groups=6, precision="tf32"
    ),
    "few channels, stride 2": Shape((16, 96, 96), (48, 192), stride=(2, 2), precision="tf32"),
    "wide groups": Shape((16, 28, 28), (336, 336), groups=3, precision="tf32"),
    "groups of 56": Shape((16, 14, 14), (168, 168), groups=3, precision="tf32"),
    "groups of 80, stride 2": Shape(
        (64, 28, 28), (240, 240), stride=(2, 2), groups=3, precision="tf32"
    ),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """Random operands of a shape, for the launchers."""

    shape: Shape
    x: Tensor
    weight: Tensor
    bias: Tensor
    dy: Tensor

    def packed(self, dtype: torch.dtype) -> Tensor:
        packed = poisoned(packed_shape(**self._packing(dtype)), dtype, self.weight.device)
        pack_weight_reference(self.weight, packed, groups=self.shape.groups)
        return packed

    def packed_grad(self, dtype: torch.dtype) -> Tensor:
        shape = packed_shape_grad_input(**self._packing(dtype))
        packed = poisoned(shape, dtype, self.weight.device)
        pack_weight_grad_input_reference(self.weight, packed, groups=self.shape.groups)
        return packed

    def _packing(self, dtype: torch.dtype) -> dict[str, Any]:
        settings = {"groups": self.shape.groups, "precision": self.shape.precision}
        return {"shape": tuple(self.weight.shape), "dtype": dtype, **settings}


def side(size: int, axis: int, shape: Shape) -> int:
    reach = shape.dilation[axis] * (shape.size[axis] - 1) + 1
    return (size + 2 * shape.padding[axis] - reach) // shape.stride[axis] + 1


def make(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Layer:
    samples, height, width = shape.x
    c, k = shape.channels
    fan_in = c // shape.groups * shape.size[0] * shape.size[1]
    out = (samples, side(height, 0, shape), side(width, 1, shape), k)
    return Layer(
        shape,
        randn((samples, height, width, c), dtype, generator),
        randn((k, c // shape.groups, *shape.size), dtype, generator, fan_in**-0.5).float(),
        randn((k,), torch.float32, generator),
        randn(out, dtype, generator),
    )


def gradients(layer: Layer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, dx, dweight and dbias by autograd in float64, maps in NHWC."""
    x = layer.x.double().permute(0, 3, 1, 2).requires_grad_()
    weight = layer.weight.double().requires_grad_()
    bias = layer.bias.double().requires_grad_()
    shape = layer.shape
    y = torch_conv2d(x, weight, bias, shape.stride, shape.padding, shape.dilation, shape.groups)
    dy = layer.dy.double().permute(0, 3, 1, 2)
    dx, dweight, dbias = torch.autograd.grad(y, (x, weight, bias), dy)
    return y.permute(0, 2, 3, 1), dx.permute(0, 2, 3, 1), dweight, dbias
