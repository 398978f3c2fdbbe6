"""Convolution kernels against their references, and the references against PyTorch's autograd."""

from dataclasses import dataclass, replace
from math import ceil

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d as torch_conv2d

from tvdnn.kernels import conv
from tvdnn.kernels.conv_pack import (
    pack_weight,
    pack_weight_grad_input,
    pack_weight_grad_input_reference,
    pack_weight_reference,
)
from tvdnn.kernels.conv_tiles import box_of

from .numerics import assert_repeatable, poisoned, poisoned_like, randn, rms_error

TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 4e-3}
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
    splits: int = 1
    precision: str = "ieee"

    @property
    def settings(self) -> dict[str, object]:
        names = ("stride", "padding", "dilation", "groups", "precision")
        return {name: getattr(self, name) for name in names}


GENERAL = {
    "first layer": Shape((2, 9, 7), (3, 20)),
    "one channel each way": Shape((3, 5, 5), (1, 1), splits=2),
    "one by one": Shape((2, 6, 5), (17, 33), (1, 1), padding=(0, 0)),
    "one by one, stride 2": Shape((3, 7, 7), (16, 16), (1, 1), (2, 2), (0, 0)),
    "stride 2": Shape((3, 11, 8), (19, 10), stride=(2, 2), splits=3),
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
    "one past a block": Shape((1, 3, 43), (33, 129)),
}
DESCRIPTOR = {
    "box": Shape((3, 6, 5), (64, 64), splits=3, precision="tf32"),
    "box, odd channels": Shape((2, 5, 9), (32, 40), precision="tf32"),
    "box, large filter": Shape((2, 7, 7), (32, 32), (5, 5), padding=(2, 2), precision="tf32"),
    "box, no padding": Shape((2, 6, 7), (32, 32), (2, 3), padding=(0, 0), precision="tf32"),
    "box, dilated": Shape((1, 9, 9), (32, 64), padding=(2, 2), dilation=(2, 2), precision="tf32"),
    "box, one by one": Shape((3, 5, 5), (64, 32), (1, 1), padding=(0, 0), precision="tf32"),
    "samples": Shape((19, 3, 4), (32, 32), group=16, splits=3, precision="tf32"),
    "samples, stride 2": Shape((18, 5, 4), (64, 32), stride=(2, 2), group=16, precision="tf32"),
}
SHAPES = GENERAL | DESCRIPTOR


@dataclass(frozen=True, slots=True)
class Layer:
    """Random operands of a shape: what the launchers take."""

    shape: Shape
    x: Tensor
    weight: Tensor
    bias: Tensor
    dy: Tensor

    def packed(self, dtype: torch.dtype) -> Tensor:
        k, c, r, s = self.weight.shape
        packed = poisoned((k, r, s, c), dtype, self.weight.device)
        pack_weight_reference(self.weight, packed, groups=self.shape.groups)
        return packed

    def packed_grad(self, dtype: torch.dtype) -> Tensor:
        k, c, r, s = self.weight.shape
        groups = self.shape.groups
        packed = poisoned((c * groups, r, s, k // groups), dtype, self.weight.device)
        pack_weight_grad_input_reference(self.weight, packed, groups=groups)
        return packed

    def partials(self) -> Tensor:
        k, c, r, s = self.weight.shape
        num_groups = ceil(len(self.x) / self.shape.group)
        shape = (num_groups, self.shape.splits, k, r, s, c)
        return poisoned(shape, torch.float32, self.weight.device)


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


@pytest.fixture(params=DTYPES, ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def layer(request: pytest.FixtureRequest, dtype: torch.dtype, generator: torch.Generator) -> Layer:
    shape = request.param
    if generator.device.type == "cuda":
        shape = replace(shape, precision="ieee")
    return make(shape, dtype, generator)


def test_references_match_autograd(layer: Layer, dtype: torch.dtype) -> None:
    y, dx, dweight, dbias = (gradient.detach() for gradient in gradients(layer))
    settings, group = layer.shape.settings, layer.shape.group
    out, dx_out = poisoned_like(layer.dy), poisoned_like(layer.x)
    conv.conv2d_reference(layer.x, layer.packed(dtype), layer.bias, out, **settings)
    conv.conv2d_grad_input_reference(layer.dy, layer.packed_grad(dtype), dx_out, **settings)
    partials = layer.partials()
    conv.conv2d_grad_weight_reference(
        layer.x, layer.dy, partials, group=group, splits=layer.shape.splits, **settings
    )
    bias_partials = poisoned((len(partials), len(dbias)), torch.float32, y.device)
    conv.conv2d_grad_bias_reference(layer.dy, bias_partials, group=group)
    assert rms_error(out, y) < TOLERANCE[dtype]
    assert rms_error(dx_out, dx) < TOLERANCE[dtype]
    assert rms_error(partials.sum((0, 1)).permute(0, 3, 1, 2), dweight) < TOLERANCE[dtype]
    assert rms_error(bias_partials.sum(0), dbias) < TOLERANCE[dtype]


def test_forward(layer: Layer, dtype: torch.dtype) -> None:
    packed = layer.packed(dtype)
    for bias in (layer.bias, None):
        out, expected = poisoned_like(layer.dy), poisoned_like(layer.dy)
        conv.conv2d(layer.x, packed, bias, out, **layer.shape.settings)
        conv.conv2d_reference(layer.x, packed, bias, expected, **layer.shape.settings)
        assert rms_error(out, expected) < TOLERANCE[dtype]


def test_grad_input(layer: Layer, dtype: torch.dtype) -> None:
    packed = layer.packed_grad(dtype)
    out, expected = poisoned_like(layer.x), poisoned_like(layer.x)
    conv.conv2d_grad_input(layer.dy, packed, out, **layer.shape.settings)
    conv.conv2d_grad_input_reference(layer.dy, packed, expected, **layer.shape.settings)
    assert rms_error(out, expected) < TOLERANCE[dtype]


def test_grad_weight(layer: Layer) -> None:
    out, expected = layer.partials(), layer.partials()
    cut = {"group": layer.shape.group, "splits": layer.shape.splits}
    conv.conv2d_grad_weight(layer.x, layer.dy, out, **cut, **layer.shape.settings)
    conv.conv2d_grad_weight_reference(layer.x, layer.dy, expected, **cut, **layer.shape.settings)
    assert rms_error(out.sum(1), expected.sum(1)) < PARTIAL_TOLERANCE


@pytest.mark.parametrize("name", ["box", "box, odd channels", "box, dilated"])
def test_pointers_take_every_shape(
    name: str, dtype: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "capability", lambda: (8, 0))
    layer = make(replace(SHAPES[name], precision="ieee"), dtype, generator)
    test_forward(layer, dtype)
    test_grad_input(layer, dtype)
    test_grad_weight(layer)


def test_grad_bias(layer: Layer) -> None:
    group = layer.shape.group
    num_groups, splits = ceil(len(layer.x) / group), layer.shape.splits
    out = poisoned((num_groups, splits, layer.dy.shape[3]), torch.float32, layer.dy.device)
    expected = poisoned_like(out)
    conv.conv2d_grad_bias(layer.dy, out, group=group)
    conv.conv2d_grad_bias_reference(layer.dy, expected, group=group)
    assert rms_error(out, expected) < PARTIAL_TOLERANCE


@pytest.mark.parametrize("groups", [1, 3])
def test_packing_is_exact(groups: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    weight = randn((6, 5, 3, 2), torch.float32, generator)
    for source in (weight, weight.to(memory_format=torch.channels_last), weight[:, 1:, :, ::2]):
        k, c, r, s = source.shape
        packed = poisoned((k, r, s, c), dtype, weight.device)
        expected = poisoned_like(packed)
        pack_weight(source, packed, groups=groups)
        pack_weight_reference(source, expected, groups=groups)
        assert torch.equal(packed, expected)
        packed = poisoned((c * groups, r, s, k // groups), dtype, weight.device)
        expected = poisoned_like(packed)
        pack_weight_grad_input(source, packed, groups=groups)
        pack_weight_grad_input_reference(source, expected, groups=groups)
        assert torch.equal(packed, expected)


RUNS = {
    "first layer": replace(SHAPES["first layer"], x=(5, 5, 7)),
    "stride 2": replace(SHAPES["stride 2"], x=(5, 6, 8)),
    "box": replace(SHAPES["box"], x=(7, 6, 5)),
    "samples": SHAPES["samples"],
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_runs_have_the_bits_of_the_whole(
    name: str, suffix: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Samples [group, N), computed alone, are what a launch over all samples makes of them."""
    layer = make(RUNS[name], dtype, generator)
    settings, group = layer.shape.settings, layer.shape.group
    x, dy = layer.x[group:], layer.dy[group:]

    def launch(name: str, *arguments: object, **extra: object) -> None:
        getattr(conv, name + suffix)(*arguments, **extra, **settings)

    whole, part = poisoned_like(layer.dy), poisoned_like(dy)
    launch("conv2d", layer.x, layer.packed(dtype), layer.bias, whole)
    launch("conv2d", x, layer.packed(dtype), layer.bias, part)
    assert torch.equal(whole[group:], part)
    whole, part = poisoned_like(layer.x), poisoned_like(x)
    launch("conv2d_grad_input", layer.dy, layer.packed_grad(dtype), whole)
    launch("conv2d_grad_input", dy, layer.packed_grad(dtype), part)
    assert torch.equal(whole[group:], part)
    whole = layer.partials()
    part = poisoned_like(whole[1:])
    cut = {"group": group, "splits": layer.shape.splits}
    launch("conv2d_grad_weight", layer.x, layer.dy, whole, **cut)
    launch("conv2d_grad_weight", x, dy, part, **cut)
    assert torch.equal(whole[1:], part)


@pytest.mark.parametrize("name", ["first layer", "box"])
def test_empty_batch(name: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    layer = make(replace(SHAPES[name], x=(0, *SHAPES[name].x[1:])), dtype, generator)
    settings = layer.shape.settings
    for suffix in ("", "_reference"):
        getattr(conv, "conv2d" + suffix)(
            layer.x, layer.packed(dtype), layer.bias, layer.dy, **settings
        )
        getattr(conv, "conv2d_grad_input" + suffix)(
            layer.dy, layer.packed_grad(dtype), layer.x, **settings
        )
        getattr(conv, "conv2d_grad_weight" + suffix)(
            layer.x, layer.dy, layer.partials(), group=2, splits=1, **settings
        )


def test_boxes_waste_little() -> None:
    for height in (224, 112, 56, 28, 14):
        samples, rows, columns = box_of(height, height, 256)
        assert samples * rows * columns == 256
        assert height % rows == 0
        assert height % columns == 0
    assert box_of(7, 7, 256) == (32, 1, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["large", "small", "few channels"])
def test_repeats_to_the_bit(name: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    shape = {
        "large": Shape((16, 56, 56), (128, 256), group=4, splits=4, precision="tf32"),
        "small": Shape((64, 14, 14), (256, 256), group=64, splits=8, precision="tf32"),
        "few channels": Shape((8, 112, 112), (3, 64), group=4, splits=4, precision="tf32"),
    }[name]
    layer = make(shape, dtype, generator)
    settings = shape.settings
    y, dx, partials = poisoned_like(layer.dy), poisoned_like(layer.x), layer.partials()
    packed, packed_grad = layer.packed(dtype), layer.packed_grad(dtype)

    def launch() -> None:
        conv.conv2d(layer.x, packed, layer.bias, y, **settings)
        conv.conv2d_grad_input(layer.dy, packed_grad, dx, **settings)
        conv.conv2d_grad_weight(
            layer.x, layer.dy, partials, group=shape.group, splits=shape.splits, **settings
        )

    assert_repeatable(launch, y, dx, partials)


@pytest.mark.gpu
def test_offsets_beyond_32_bits(generator: torch.Generator) -> None:
    """The last sample of a map of over 2^31 elements is what it is alone."""
    samples = (1 << 31) // (224 * 224 * 64) + 2
    layer = make(Shape((2, 224, 224), (64, 64)), torch.bfloat16, generator)
    x = torch.empty(samples, 224, 224, 64, dtype=torch.bfloat16, device="cuda")
    x.copy_(layer.x[1])
    y = poisoned_like(x)
    conv.conv2d(x, layer.packed(torch.bfloat16), None, y, **layer.shape.settings)
    alone = poisoned_like(layer.dy)
    conv.conv2d(layer.x, layer.packed(torch.bfloat16), None, alone, **layer.shape.settings)
    assert torch.equal(y[-1], alone[1])
