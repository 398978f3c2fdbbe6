"""Convolutions: outputs, with pooling or moments behind them, and gradients of inputs."""

from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import At, KernelCase
from bench.cases.conv.layers import (
    Layer,
    Tensors,
    exactly,
    few,
    measured,
    measured_in_groups,
    of_layer,
)
from bench.cases.launch import Call, Launch, Peer, Settings, first_samples, launching, nchw
from bench.cases.operands import BF16, F32, U8, Operands, Shape
from tvdnn.kernels.conv.batch_stats import MomentCells
from tvdnn.kernels.conv.conv2d import conv2d, conv2d_grad_input, conv2d_max_pool
from tvdnn.kernels.language.gluon import widens

CELL: Final = 4  # rows and columns that tests sum, a divisor of every side


@of_layer
def _forward(
    o: Operands,
    t: Tensors,
    moments: bool = False,
    bias: bool = True,
    out_precision: str | None = None,
    relu: bool = False,
) -> Launch:
    """With `moments` the launch also leaves moments of the stored map, over the kernel's cells."""
    y = o.out(*t.dy.shape, dtype=t.dy.dtype, beside=t.beside(t.dy.shape[3]))
    settings = {**t.settings, "out_precision": out_precision, "relu": relu}
    cells = t.layer.cells(y.dtype, t.settings["precision"]) if moments else None
    if cells is not None:
        settings |= {"moments": moments_of(o, cells, len(y), y.shape[3]), "cells": cells}
    added = t.bias if bias else None
    peer = Peer(
        lambda: nchw(y),
        lambda: _cudnn_relu(t) if relu else _product(t, nchw(t.x), t.native),
        lambda: _exact(t, relu=relu),
        first_samples,
    )
    return launching(conv2d, t.rounded_x, t.packed, added, y, peer=peer, **settings)


def moments_of(o: Operands, cells: MomentCells, samples: int, channels: int) -> Tensor:
    """Room for the moments of cells. Cells behind the last map's are not written."""
    shape, count = cells.shape(samples, channels), cells.count(samples)
    return o.out(*shape, written=lambda moments: moments.flatten(0, 1)[:count])


def _product(t: Tensors, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    layer = t.layer
    pairs = (layer.stride, layer.padding, layer.dilation, layer.groups)
    return functional.conv2d(x, weight, bias, *pairs)


def _cudnn_relu(t: Tensors) -> Tensor:
    geometry = [t.settings[name] for name in ("stride", "padding", "dilation")]
    result: Tensor = torch.cudnn_convolution_relu(
        nchw(t.x), t.native, t.bias.to(t.x.dtype), *geometry, t.layer.groups
    )
    return result


def _exact(t: Tensors, *, relu: bool) -> Tensor:
    """The first samples' outputs, with bias and ReLU or without."""
    if not relu:
        return exactly(lambda x, weight: _product(t, x, weight), few(t.x), t.native)
    return exactly(lambda *each: _product(t, *each).relu(), few(t.x), t.native, t.bias)


@of_layer
def _max_pool(o: Operands, t: Tensors) -> Launch:
    """Bias, ReLU and pooling 2x2 in the epilogue; cuDNN's ReLU, then torch's pooling."""
    samples, side, _, channels = t.dy.shape
    y = o.out(samples, side // 2, side // 2, channels, dtype=t.dy.dtype)
    codes = o.out(*y.shape[:3], channels // 4, dtype=U8)
    peer = Peer(
        lambda: nchw(y),
        lambda: functional.max_pool2d(_cudnn_relu(t), 2),
        lambda: functional.max_pool2d(_exact(t, relu=True), 2),
        first_samples,
    )
    operands = (t.rounded_x, t.packed, t.bias, y, codes)
    return launching(conv2d_max_pool, *operands, peer=peer, **t.settings)


@of_layer
def _grad_input(
    o: Operands, t: Tensors, masked: bool = False, bits: bool = False, cell: int = 0,
    bias: bool = False,
) -> Launch:  # fmt: skip
    """`masked` by the ReLU before, by its sign `bits`, with the sums of cells of `cell` rows."""
    settings = dict[str, Any](t.settings)
    dx = o.out(*t.x.shape, dtype=t.x.dtype, beside=t.beside(t.x.shape[3]))
    if masked:
        signs = (*t.x.shape[:3], t.x.shape[3] // 8)
        settings["mask"] = o.integers(256, *signs, dtype=U8) if bits else t.rounded_x
    if cell:
        side = t.layer.side // cell
        settings["sums"] = o.out(len(dx), side, side, t.layer.in_channels)
    if bias:
        settings["bias"] = o.randn(t.layer.in_channels)

    def shown(gradient: Tensor) -> Tensor:
        if not masked:
            return gradient
        mask = nchw(t.rounded_x)[: len(gradient)].to(gradient.dtype)
        result: Tensor = torch.ops.aten.threshold_backward(gradient, mask, 0)
        return result

    def gradient(dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return t.backward(dy, x, weight, 0)

    peer = Peer(
        lambda: nchw(dx),
        lambda: shown(gradient(nchw(t.dy), nchw(t.x), t.native)),
        lambda: shown(exactly(gradient, few(t.dy), few(t.x), t.native)),
        first_samples,
    )
    return launching(conv2d_grad_input, t.rounded_dy, t.packed_grad, dx, peer=peer, **settings)


def _with_moments(o: Operands, size: Shape, layer: Layer, dtype: torch.dtype = BF16) -> Launch:
    """A convolution with moments, beside our own without them."""
    own = _forward(o, size, layer, dtype, moments=True, bias=False)
    (call,) = own.calls
    plain = {
        name: call.settings[name] for name in call.settings if name not in ("moments", "cells")
    }
    alone, peer = Call(conv2d, call.operands, plain), own.peer
    assert peer is not None

    def run() -> Tensor:
        alone.run()
        return peer.result()

    return Launch(own.calls, replace(peer, run=run))


EXACT, HALF, WIDE = {"dtype": F32, "precision": "ieee"}, {"dtype": BF16}, {"dtype": F32}
WIDTHS: Final = (2, 4, 8, 16, 32, 64)  # channels of groups
FOURS: Final = Layer(8, 128, 128, groups=32)
CHECKED: Final[dict[str, Settings]] = {
    "bf16": HALF,
    "tf32": WIDE,
    "fp32": EXACT,
    "stride 2": {"stride": 2},
    "1x1": {"taps": 1},
    "few channels": {"channels": 3},
    "few channels, tf32": {"channels": 3, **WIDE},
    "40 channels": {"channels": 40},
    "40 channels, 1x1, tf32": {"channels": 40, "taps": 1, **WIDE},
    "120 channels": {"channels": 120},
    "18 to 36 channels, padded": {"layer": Layer(8, 18, 36, padded=True)},
    "122 channels, padded, 1x1": {"layer": Layer(8, 122, 122, 1, padded=True)},
    "50 channels, padded, stride 2": {"layer": Layer(8, 50, 27, stride=2, padded=True)},
    "in groups": {"groups": 4},
    **{f"groups of {each}": {"layer": Layer(8, 128, 128, groups=128 // each)} for each in WIDTHS},
    "groups of 4, tf32": {"layer": FOURS, **WIDE},
    "groups of 4, fp32": {"layer": FOURS, **EXACT},
    "groups of 16, stride 2": {"layer": Layer(8, 64, 64, stride=2, groups=4)},
    "groups of 8, tf32, stride 2": {"layer": Layer(8, 104, 104, stride=2, groups=13), **WIDE},
    "groups of 24, dilated": {"layer": Layer(9, 72, 72, stride=3, dilation=2, groups=3)},
}


def _at(layer: Layer, *settings: Settings, wgmma: bool = True, tuned: bool = False) -> At:
    """Products of float32 operands in full precision use no warpgroups."""
    given: dict[str, Any] = {"layer": layer}
    for each in settings:
        given |= each
    return At((64,), given, wgmma and given.get("precision") != "ieee", tuned)


def both(layer: Layer, *settings: Settings, wgmma: bool = True) -> tuple[At, At]:
    """The layer compiled in bfloat16 and in TF32."""
    return _at(layer, *settings, HALF, wgmma=wgmma), _at(layer, *settings, WIDE, wgmma=wgmma)


RELU: Final = {"relu": True}
FIRST, BOX, NARROW = Layer(56, 3, 64), Layer(14, 128, 256), Layer(56, 64, 64)
STRIDED, ROWS, LARGE = Layer(14, 64, 128, stride=2), Layer(112, 128, 256), Layer(224, 64, 64)
SPREAD: Final = Layer(14, 64, 128, stride=2, dilation=2)
FORWARD: Final = (
    _at(BOX, RELU, HALF, tuned=True),
    _at(BOX, RELU, WIDE),
    _at(FIRST, RELU, HALF, tuned=True),
    _at(FIRST, RELU, WIDE),
    _at(FIRST, RELU, EXACT),
    *both(NARROW, RELU),
    _at(Layer(14, 96, 40), RELU, HALF, tuned=True),
    *both(STRIDED, RELU),
    _at(Layer(14, 64, 128), RELU, EXACT),
    _at(Layer(14, 36, 36, groups=9), RELU, HALF, wgmma=False),  # TMA moves multiples of 16 bytes
    *both(Layer(56, 128, 128, groups=32), RELU),
    *both(Layer(56, 256, 256, stride=2, groups=32), RELU),
    *both(Layer(112, 72, 72, stride=2, groups=3), RELU),
    _at(Layer(28, 216, 216, groups=9), RELU, HALF),
    _at(Layer(14, 256, 256, groups=2), RELU, HALF),
    _at(Layer(14, 128, 128, groups=32), RELU, EXACT),
    _at(Layer(15, 72, 72, stride=3, groups=3), RELU, HALF),  # by pointers
    _at(ROWS, RELU, HALF),
    _at(ROWS, RELU, WIDE, tuned=True),
    _at(Layer(14, 24, 128, stride=2), RELU, HALF),
    *both(Layer(28, 72, 24, 1), RELU),
    *both(Layer(14, 240, 80, 1), RELU),
    *both(Layer(14, 120, 16), RELU),
    _at(Layer(28, 122, 122, 1, padded=True), RELU, HALF),
    _at(Layer(56, 18, 36, padded=True), RELU, HALF),
)
MOMENTS: Final = tuple(
    _at(layer, {"moments": True, "bias": False, "out_precision": "ieee"}, kind)
    for layer, kind in (
        (Layer(224, 3, 64, 7, 2), HALF),
        (Layer(56, 64, 256, 1), HALF),
        (Layer(56, 64, 64), HALF),
        (Layer(56, 96, 128, 1), HALF),
        (Layer(28, 24, 72, 1), HALF),
        (Layer(28, 120, 40, 1), HALF),
        (Layer(56, 18, 36, padded=True), HALF),
        (Layer(28, 122, 122, 1, padded=True), HALF),
        (Layer(112, 128, 128), WIDE),
        (Layer(56, 64, 256, 1), WIDE),
        (Layer(56, 128, 128, groups=32), HALF),
        (Layer(56, 256, 256, stride=2, groups=32), HALF),
    )
)
POOLED: Final = (
    _at(BOX, HALF, tuned=True),
    _at(BOX, WIDE),
    _at(NARROW, HALF),
    _at(Layer(56, 128, 256), HALF),
    _at(STRIDED, HALF),
    _at(LARGE, WIDE),
    _at(Layer(56, 128, 128, groups=32), HALF),
)
MASKED: Final = {"masked": True}
BY_BITS: Final = {"masked": True, "bits": True}
UNEVEN: Final = Layer(14, 24, 64, 5)  # Triton stores and loads 24 channels in two layouts
TRANSPOSED: Final = Layer(128, 256, 512, 2, 2, pad=0)  # a decoder's windows of 2x2 side by side
GRADIENTS: Final = (
    _at(BOX, MASKED, HALF),
    _at(LARGE, MASKED, HALF, tuned=True),
    _at(LARGE, MASKED, WIDE),
    _at(BOX, BY_BITS, HALF),
    _at(LARGE, BY_BITS, WIDE),
    _at(Layer(112, 64, 64), BY_BITS, HALF),
    _at(Layer(112, 64, 64), BY_BITS, {"cell": 8}, HALF),
    _at(LARGE, MASKED, {"cell": 8}, HALF),
    _at(Layer(28, 512, 512), MASKED, {"cell": 4}, HALF),
    _at(Layer(14, 512, 512), MASKED, {"cell": 2}, HALF),
    # Where products widen no tile, a kernel of its own sums the cells.
    _at(Layer(112, 64, 64), MASKED, {"cell": 8}, WIDE, wgmma=widens()),
    _at(Layer(14, 3, 64), MASKED, HALF),
    *both(STRIDED, MASKED),
    _at(STRIDED, BY_BITS, HALF),
    _at(Layer(14, 24, 64), BY_BITS, WIDE),
    _at(UNEVEN, MASKED, EXACT),
    _at(UNEVEN, BY_BITS, EXACT),
    *both(Layer(28, 72, 24, 1), MASKED),
    *both(Layer(14, 72, 120), BY_BITS),
    _at(Layer(28, 122, 122, 1, padded=True), MASKED, HALF),
    _at(Layer(56, 18, 36, padded=True), MASKED, HALF),
    *both(TRANSPOSED, {"bias": True}),
    *both(SPREAD, MASKED),
    *both(Layer(56, 128, 128, groups=32), MASKED),
    *both(Layer(56, 128, 128, groups=32), BY_BITS),
    *both(Layer(56, 256, 256, stride=2, groups=32), MASKED),
    _at(Layer(56, 128, 128, groups=32), MASKED, {"cell": 8}, HALF),
    _at(Layer(28, 216, 216, stride=3, groups=9), MASKED, HALF),  # by pointers
)
SMALL_MOMENTS: Final = Layer(9, 3, 32, 7, 2)
CASES = (
    KernelCase(
        conv2d,
        _forward,
        {**CHECKED, "moments": {"moments": True}, "ReLU": RELU},
        (*FORWARD, *MOMENTS),
        (
            *measured("conv2d", "vgg16", bias=False),
            *measured("conv2d", "resnet50", bias=False),
            *measured_in_groups("conv2d", bias=False),
            *measured("conv2d, ReLU", "vgg16", of="fused", relu=True),
            *measured(
                "conv2d, moments",
                "resnet50",
                "own, apart",
                of="moments",
                moments=True,
                small=SMALL_MOMENTS,
                make=_with_moments,
            ),
        ),
        odd=False,
        tolerance=1e-4,  # a value that is stored may round the other way to TF32
    ),
    KernelCase(
        conv2d_max_pool,
        _max_pool,
        {
            "bf16": HALF,
            "few channels": {"channels": 3},
            "tf32": WIDE,
            "groups of 4": {"layer": FOURS},
        },
        POOLED,
        measured("conv2d_max_pool", "vgg16", of="fused"),
        odd=False,
        tolerance=1e-4,  # a value that is stored may round the other way to TF32
    ),
    KernelCase(
        conv2d_grad_input,
        _grad_input,
        {
            **CHECKED,
            "masked": MASKED,
            "cells": {"masked": True, "cell": CELL},
            "bits": BY_BITS,
            "groups of 4, bits": {"layer": FOURS, **BY_BITS},
            "groups of 8, masked": {"layer": Layer(8, 104, 104, groups=13), **MASKED},
            "24 channels, masked": {"channels": 24, "taps": 5, **MASKED, **EXACT},
        },
        GRADIENTS,
        (
            *measured("conv2d_grad_input", "vgg16"),
            *measured("conv2d_grad_input", "resnet50"),
            *measured_in_groups("conv2d_grad_input"),
            *measured("conv2d_grad_input, mask", "vgg16", of="fused", masked=True),
        ),
        odd=False,
        tolerance=1e-4,  # a value that is stored may round the other way to TF32
    ),
)
