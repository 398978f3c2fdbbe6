"""Convolutions: outputs, with pooling or moments behind them, and gradients of inputs."""

from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import At, KernelCase
from bench.cases.conv.conv2d_settings import (
    BY_BITS,
    CELL,
    CHECKED,
    EXACT,
    FORWARD,
    FOURS,
    GRADIENTS,
    HALF,
    MASKED,
    MOMENTS,
    POOLED,
    RELU,
    WIDE,
)
from bench.cases.conv.layers import (
    Layer,
    Tensors,
    exactly,
    few,
    measured,
    measured_in_groups,
    of_layer,
)
from bench.cases.conv.remade import MAKERS, REMADE, REMADE_IN_TF32, made_by_of
from bench.cases.launch import Call, Launch, Peer, first_samples, launching, nchw
from bench.cases.operands import BF16, U8, Operands, Shape
from tvdnn.kernels.conv.batch_stats import MomentCells
from tvdnn.kernels.conv.conv2d import conv2d, conv2d_grad_input, conv2d_max_pool
from tvdnn.kernels.conv.remade import makes_input


@of_layer
def _forward(
    o: Operands,
    t: Tensors,
    moments: bool = False,
    bias: bool = True,
    out_precision: str | None = None,
    relu: bool = False,
    maker: str = "",
) -> Launch:
    """With `moments` the launch also leaves moments of the stored map, over the kernel's cells.

    x is made again by a `maker`, if named.
    """
    y = o.out(*t.dy.shape, dtype=t.dy.dtype, beside=t.beside(t.dy.shape[3]))
    settings = {**t.settings, "out_precision": out_precision, "relu": relu}
    settings |= made_by_of(o, t, maker, makes_input)
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


SMALL_MOMENTS: Final = Layer(9, 3, 32, 7, 2)
MADE: Final = tuple(
    At((64,), {"layer": layer, **kind, "maker": maker, "moments": True})
    for kind, layers in ((HALF, REMADE), (WIDE, REMADE_IN_TF32))
    for layer in layers
    for maker in MAKERS
)
CASES = (
    KernelCase(
        conv2d,
        _forward,
        {
            **CHECKED,
            "moments": {"moments": True},
            "moments, groups of 40": {"layer": Layer(8, 120, 120, groups=3), "moments": True},
            "ReLU": RELU,
        },
        (*FORWARD, *MOMENTS, *MADE),
        (
            *measured("conv2d", "vgg16", bias=False),
            *measured("conv2d", "resnet50", bias=False),
            *measured("conv2d", "few channels", bias=False),
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
            "groups of 40": {"layer": Layer(8, 120, 120, groups=3)},
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
            "groups of 40, masked": {"layer": Layer(8, 120, 120, groups=3), **MASKED},
            "groups of 40, bits": {"layer": Layer(8, 80, 80, groups=2), **BY_BITS},
            "groups of 96, bits": {"layer": Layer(4, 192, 192, groups=2), **BY_BITS},
            "groups of 112, cells": {
                "layer": Layer(8, 224, 224, groups=2),
                **MASKED,
                "cell": CELL,
            },
            "groups of 8, masked": {"layer": Layer(8, 104, 104, groups=13), **MASKED},
            "24 channels, masked": {"channels": 24, "taps": 5, **MASKED, **EXACT},
        },
        GRADIENTS,
        (
            *measured("conv2d_grad_input", "vgg16"),
            *measured("conv2d_grad_input", "resnet50"),
            *measured("conv2d_grad_input", "few channels"),
            *measured_in_groups("conv2d_grad_input"),
            *measured("conv2d_grad_input, mask", "vgg16", of="fused", masked=True),
        ),
        odd=False,
        tolerance=1e-4,  # a value that is stored may round the other way to TF32
    ),
)
