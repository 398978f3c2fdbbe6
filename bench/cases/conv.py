"""Convolutions of VGG-16 and ResNet-50 beside cuDNN's: forward pass, data and weight gradients."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import Calls, Case
from bench.timing import DTYPES
from tvdnn.kernels.conv import batch_stats as conv_moments
from tvdnn.kernels.conv import conv2d as conv
from tvdnn.kernels.conv.grad_weight import launch as conv_grad_weight
from tvdnn.kernels.conv.pack_weight import pack_weight, pack_weight_grad_input
from tvdnn.kernels.language.rounding import stored_reference
from tvdnn.kernels.norm.batch_norm import batch_norm_moments, batch_norm_statistics
from tvdnn.kernels.norm.batch_norm_tiles import batch_norm_plan
from tvdnn.kernels.reduce.partials import sum_partials

SAMPLES: Final = 256
EXACT_SAMPLES: Final = 2
EXACT_CHANNELS: Final = 32
EPS: Final = 1e-5
EXACT_CHUNK: Final = 32  # samples whose float64 copies are in memory together
convolution_backward = torch.ops.aten.convolution_backward


@dataclass(frozen=True, slots=True)
class Layer:
    """A square convolution without groups, and how many of it a network has."""

    side: int
    in_channels: int
    out_channels: int
    size: int = 3
    stride: int = 1
    count: int = 1

    @property
    def name(self) -> str:
        stride = f"/{self.stride}" if self.stride > 1 else ""
        return (
            f"{self.in_channels}->{self.out_channels} {self.size}x{self.size}{stride} @{self.side}"
        )

    @property
    def padding(self) -> int:
        return self.size // 2

    @property
    def out_side(self) -> int:
        return (self.side + 2 * self.padding - self.size) // self.stride + 1

    @property
    def macs(self) -> int:
        """Products that one sample takes."""
        return self.out_side**2 * self.out_channels * self.in_channels * self.size**2


VGG16: Final = (
    Layer(224, 3, 64), Layer(224, 64, 64), Layer(112, 64, 128), Layer(112, 128, 128),
    Layer(56, 128, 256), Layer(56, 256, 256, count=2), Layer(28, 256, 512),
    Layer(28, 512, 512, count=2), Layer(14, 512, 512, count=3),
)  # fmt: skip


def _stage(side: int, inputs: int, width: int, blocks: int, stride: int) -> tuple[Layer, ...]:
    """The convolutions of one stage of bottleneck blocks, the stride in its first 3x3."""
    inner, wide = side // stride, 4 * width
    strided = (Layer(side, width, width, stride=stride),) if stride > 1 else ()
    return (
        Layer(side, inputs, width, 1),
        *strided,
        Layer(inner, width, width, count=blocks - len(strided)),
        Layer(inner, width, wide, 1, count=blocks + (stride == 1)),  # the shortcut has its shape
        *((Layer(side, inputs, wide, 1, stride),) if stride > 1 else ()),
        Layer(inner, wide, width, 1, count=blocks - 1),
    )


RESNET50: Final = (
    Layer(224, 3, 64, 7, 2),
    *_stage(56, 64, 64, 3, 1),
    *_stage(56, 256, 128, 4, 2),
    *_stage(28, 512, 256, 6, 2),
    *_stage(14, 1024, 512, 3, 2),
)


def settings_of(layer: Layer) -> dict[str, Any]:
    pairs = {name: (getattr(layer, name),) * 2 for name in ("stride", "padding")}
    return pairs | {"dilation": (1, 1), "groups": 1, "precision": "tf32"}


class Operands:
    """Random maps and weights of a layer.

    Our kernels find theirs rounded to TF32, as the kernels before them leave maps; `x`, `dy` and
    `native` are the operands before that, for the peer and for float64.
    """

    def __init__(self, layer: Layer, dtype: torch.dtype, samples: int) -> None:
        side, out, c, k = layer.side, layer.out_side, layer.in_channels, layer.out_channels
        size = layer.size
        self.layer = layer
        self.x = torch.randn(samples, side, side, c, dtype=dtype)
        self.dy = torch.randn(samples, out, out, k, dtype=dtype)
        self.weight = torch.randn(k, c, size, size) * (c * size**2) ** -0.5
        self.packed = torch.empty(k, size, size, c, dtype=dtype)
        self.packed_grad = torch.empty(c, size, size, k, dtype=dtype)
        self.bias = torch.randn(k)
        pack_weight(self.weight, self.packed, groups=1, precision="tf32")
        pack_weight_grad_input(self.weight, self.packed_grad, groups=1, precision="tf32")
        self.rounded_x = stored_reference(self.x, dtype, "tf32")
        self.rounded_dy = stored_reference(self.dy, dtype, "tf32")
        self.native = self.weight.to(dtype, memory_format=torch.channels_last)

    @property
    def settings(self) -> dict[str, Any]:
        return settings_of(self.layer)


def forward(o: Operands) -> Calls:
    y, stride, padding = torch.full_like(o.dy, torch.nan), o.layer.stride, o.layer.padding

    def own() -> Tensor:
        conv.conv2d(o.rounded_x, o.packed, None, y, **o.settings)
        return _nchw(y)

    def product(x: Tensor, weight: Tensor) -> Tensor:
        return functional.conv2d(x, weight, None, stride, padding)

    return Calls(
        own,
        lambda: product(_nchw(o.x), o.native),
        lambda: _exactly(product, _nchw(o.x)[:EXACT_SAMPLES], o.native),
        _first_samples,
    )


def grad_input(o: Operands) -> Calls:
    dx = torch.full_like(o.x, torch.nan)

    def own() -> Tensor:
        conv.conv2d_grad_input(o.rounded_dy, o.packed_grad, dx, **o.settings)
        return _nchw(dx)

    def gradient(dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return _backward(o.layer, dy, x, weight, (True, False, False))[0]

    few = slice(EXACT_SAMPLES)
    return Calls(
        own,
        lambda: gradient(_nchw(o.dy), _nchw(o.x), o.native),
        lambda: _exactly(gradient, _nchw(o.dy)[few], _nchw(o.x)[few], o.native),
        _first_samples,
    )


def grad_weight(o: Operands) -> Calls:
    """The sum over partials is part of the work."""
    partials = _partials(o)
    grad = torch.full_like(o.weight, torch.nan)
    launch = conv_grad_weight.conv2d_grad_weight

    def own() -> Tensor:
        launch(o.rounded_x, o.rounded_dy, partials, first=True, **o.settings)
        sum_partials(partials, grad, first=True)
        return grad

    def peer() -> Tensor:
        return _backward(o.layer, _nchw(o.dy), _nchw(o.x), o.native, (False, True, False))[1]

    return Calls(
        own,
        peer,
        lambda: exact_grad_weight(o.layer, o.x, o.dy),
        lambda result: result[:EXACT_CHANNELS, :EXACT_CHANNELS],
    )


def _partials(o: Operands) -> Tensor:
    k, size, _, c = o.packed.shape
    sides = (o.layer.side,) * 2, (o.layer.out_side,) * 2
    plan = conv_grad_weight.grad_weight_plan(
        *sides, (k, c, size, size), **o.settings, dtype=o.x.dtype
    )
    return torch.full((plan.splits, k, size, size, c), torch.nan)


def exact_grad_weight(layer: Layer, x: Tensor, dy: Tensor) -> Tensor:
    """The weight gradient of the first channels [K, C, R, S] in float64: a product for each tap."""
    c, k = (min(EXACT_CHANNELS, t.shape[3]) for t in (x, dy))
    grad = torch.zeros(k, c, layer.size, layer.size, dtype=torch.float64, device=x.device)
    reach = (layer.out_side - 1) * layer.stride + 1
    for start in range(0, x.shape[0], EXACT_CHUNK):
        samples = slice(start, start + EXACT_CHUNK)
        padded = functional.pad(x[samples, ..., :c].double(), (0, 0, *(layer.padding,) * 4))
        upper = dy[samples, ..., :k].double().reshape(-1, k)
        for r in range(layer.size):
            for s in range(layer.size):
                tap = padded[:, r : r + reach : layer.stride, s : s + reach : layer.stride]
                grad[:, :, r, s] += upper.T @ tap.reshape(-1, c)
    return grad


def _backward(
    layer: Layer, dy: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    stride, padding = (layer.stride,) * 2, (layer.padding,) * 2
    geometry = (stride, padding, (1, 1), False, (0, 0), 1)
    result: tuple[Tensor, Tensor, Tensor] = convolution_backward(
        dy, x, weight, None, *geometry, wanted
    )
    return result


def _exactly(compute: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """In float64, without cuDNN's search for the fastest way."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False):
        return compute(*(operand.double() for operand in operands))


def _nchw(tensor: Tensor) -> Tensor:
    return tensor.permute(0, 3, 1, 2)


def _first_samples(result: Tensor) -> Tensor:
    return result[:EXACT_SAMPLES]


def forward_relu(o: Operands) -> Calls:
    """Bias and ReLU in the epilogue; cuDNN has that too."""
    y = torch.full_like(o.dy, torch.nan)

    def own() -> Tensor:
        conv.conv2d(o.rounded_x, o.packed, o.bias, y, relu=True, **o.settings)
        return _nchw(y)

    return Calls(own, lambda: _cudnn_relu(o), lambda: _exact_relu(o), _first_samples)


def forward_moments(o: Operands) -> Calls:
    """The moments of what is stored in the epilogue, for batch normalization; without them."""
    y, (cells, moments), alone = torch.full_like(o.dy, torch.nan), _moments(o), forward(o)

    def own() -> Tensor:
        left = {"moments": moments, "cells": cells}
        conv.conv2d(o.rounded_x, o.packed, None, y, **o.settings, **left)
        return _nchw(y)

    return replace(alone, own=own, peer=alone.own)


def merged_moments(o: Operands) -> Calls:
    """Statistics from the moments of cells that the epilogue left; from the map itself."""
    y, (cells, moments) = o.rounded_dy, _moments(o)
    conv_moments.cell_moments(y, moments, cells=cells)
    slices, channels = batch_norm_plan(y.shape), y.shape[3]
    merged = torch.empty(moments.shape[0], 1, 2, channels)
    partials = torch.empty(slices.partials_shape(len(y), channels))
    settings = {"shape": tuple(y.shape), "momentum": 0.1, "eps": EPS}
    statistics = partial(batch_norm_statistics, **settings)

    def own() -> Tensor:
        found = torch.empty(3, channels)
        conv_moments.merge_cells(moments, merged, samples=len(y), cells=cells)
        statistics(merged, found, None, None, None, group=cells.group)
        return found

    def peer() -> Tensor:
        found = torch.empty(3, channels)
        batch_norm_moments(y, partials, group=slices.group)
        statistics(partials, found, None, None, None, group=slices.group)
        return found

    def exact() -> Tensor:
        parts = zip(*(_exact_moments(part) for part in y.split(1, 3)), strict=True)
        mean, variance = map(torch.stack, parts)
        rows = y.numel() // channels
        return torch.stack((mean, (variance + EPS).rsqrt(), variance * (rows / (rows - 1))))

    return Calls(own, peer, exact)


def _exact_moments(part: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of one channel."""
    wide = part.double()
    return wide.mean(), wide.var(correction=0)


def _moments(o: Operands) -> tuple[conv_moments.MomentCells, Tensor]:
    """The cells of the layer's outputs, and a place for their moments."""
    cells = cells_of(o.layer, o.x.dtype)
    assert cells is not None
    return cells, torch.empty(cells.shape(len(o.dy), o.layer.out_channels))


def cells_of(layer: Layer, dtype: torch.dtype) -> conv_moments.MomentCells | None:
    """Those whose moments its forward pass leaves, if any."""
    sides, shape = ((side, side) for side in (layer.side, layer.out_side)), (layer.size,) * 2
    shape = (layer.out_channels, layer.in_channels, *shape)
    return conv_moments.moment_cells(*sides, shape, **settings_of(layer), dtype=dtype)


def forward_pool(o: Operands) -> Calls:
    """Bias, ReLU and pooling 2x2 in the epilogue; cuDNN, then torch's pooling."""
    samples, side, _, channels = o.dy.shape
    y = torch.full((samples, side // 2, side // 2, channels), torch.nan, dtype=o.dy.dtype)
    codes = torch.zeros(*y.shape[:3], channels // 4, dtype=torch.uint8)

    def own() -> Tensor:
        conv.conv2d_max_pool(o.rounded_x, o.packed, o.bias, y, codes, **o.settings)
        return _nchw(y)

    return Calls(
        own,
        lambda: functional.max_pool2d(_cudnn_relu(o), 2),
        lambda: functional.max_pool2d(_exact_relu(o), 2),
        _first_samples,
    )


def masked_grad_input(o: Operands) -> Calls:
    """The mask of the ReLU before in the epilogue; cuDNN, then torch's gradient of ReLU."""
    dx, mask = torch.full_like(o.x, torch.nan), o.rounded_x
    plain = grad_input(o)

    def own() -> Tensor:
        conv.conv2d_grad_input(o.rounded_dy, o.packed_grad, dx, mask=mask, **o.settings)
        return _nchw(dx)

    def masked(gradient: Tensor) -> Tensor:
        shown = _nchw(mask)[: len(gradient)].to(gradient.dtype)
        result: Tensor = torch.ops.aten.threshold_backward(gradient, shown, 0)
        return result

    return Calls(own, lambda: masked(plain.peer()), lambda: masked(plain.exact()), _first_samples)


def _cudnn_relu(o: Operands) -> Tensor:
    bias, geometry = o.bias.to(o.x.dtype), ((o.layer.stride,) * 2, (o.layer.padding,) * 2, (1, 1))
    result: Tensor = torch.cudnn_convolution_relu(_nchw(o.x), o.native, bias, *geometry, 1)
    return result


def _exact_relu(o: Operands) -> Tensor:
    def compute(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.conv2d(x, weight, bias, o.layer.stride, o.layer.padding).relu()

    return _exactly(compute, _nchw(o.x)[:EXACT_SAMPLES], o.native, o.bias)


PASSES: Final = {
    "conv2d": forward,
    "conv2d_grad_input": grad_input,
    "conv2d_grad_weight": grad_weight,
}
FUSED: Final = {
    "conv2d, ReLU": forward_relu,
    "conv2d_max_pool": forward_pool,
    "conv2d_grad_input, mask": masked_grad_input,
}


MOMENTS: Final = {"conv2d, moments": forward_moments, "merge_cells": merged_moments}


def moment_cases(layers: tuple[Layer, ...], dtype: str, samples: int = SAMPLES) -> Iterator[Case]:
    """Forward passes that leave moments beside the same without, and their merge beside a pass."""
    fitting = tuple(layer for layer in layers if cells_of(layer, DTYPES[dtype]) is not None)
    found = cases(fitting, dtype, samples, MOMENTS)
    return (replace(case, peer="own, apart") for case in found)


def cases(
    layers: tuple[Layer, ...],
    dtype: str,
    samples: int = SAMPLES,
    passes: Mapping[str, Callable[[Operands], Calls]] = PASSES,
) -> Iterator[Case]:
    """Every pass of every layer; the first layer's data gradient is nowhere needed."""
    for layer in layers:
        for kernel, calls in passes.items():
            if "grad_input" in kernel and layer.in_channels == 3:
                continue
            yield Case(
                kernel, f"{layer.name}", dtype, 2.0 * layer.macs * samples,
                _nbytes(layer, samples, dtype), partial(_make, layer, DTYPES[dtype], calls),
                samples, layer.count, "cuDNN",
            )  # fmt: skip


def _make(
    layer: Layer, dtype: torch.dtype, calls: Callable[[Operands], Calls], samples: int
) -> Calls:
    return calls(Operands(layer, dtype, samples))


def _nbytes(layer: Layer, samples: int, dtype: str) -> float:
    x = samples * layer.side**2 * layer.in_channels
    y = samples * layer.out_side**2 * layer.out_channels
    weight = layer.in_channels * layer.out_channels * layer.size**2
    return float((x + y + weight) * DTYPES[dtype].itemsize)
