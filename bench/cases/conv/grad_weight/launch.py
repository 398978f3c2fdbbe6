"""Gradients of convolutions' weights."""

from typing import Final

import torch
from torch import Tensor

from bench.cases.case import At, KernelCase
from bench.cases.conv.conv2d_settings import CHECKED, EXACT, HALF, WIDE
from bench.cases.conv.layers import Layer, Tensors, measured, measured_in_groups, of_layer
from bench.cases.conv.remade import BOTH, MAKERS, REMADE, REMADE_IN_TF32, made_by_of
from bench.cases.launch import Call, Launch, Peer, Settings, launching, nchw
from bench.cases.operands import Operands, Shape
from tvdnn.kernels.conv.grad_weight.launch import conv2d_grad_weight, grad_weight_plan
from tvdnn.kernels.conv.grad_weight.split_plan import remakes_maps
from tvdnn.kernels.reduce.partials import sum_partials

EXACT_CHANNELS: Final = 32
EXACT_CHUNK: Final = 32  # samples whose float64 copies are in memory together


def _partials_shape(t: Tensors, batch: int = 0) -> Shape:
    """The shape of partial gradients, [splits, K, R, S, C/g]."""
    k, c, taps, _ = t.layer.shape
    settings = {**t.settings, "dtype": t.x.dtype, "pitches": t.layer.pitches, "batch": batch}
    plan = grad_weight_plan(*t.layer.sides, t.layer.shape, **settings)
    return (plan.splits, k, taps, taps, c)


@of_layer
def _grad(
    o: Operands, t: Tensors, first: bool = True, maker: str = "", whole: bool = False
) -> Launch:
    """Running sums, of which `first` starts new ones. x is made again by a `maker`, if named.

    The samples are a `whole` batch, or a part of one of any size.
    """
    batch = len(t.x) if whole else 0
    shape, made_by = _partials_shape(t, batch), made_by_of(o, t, maker, remakes_maps)
    if first:
        partials = o.out(*shape, compared=lambda sums: sums.sum(0))
    else:
        partials = o.updated(o.randn(*shape), compared=lambda sums: sums.sum(0))
    operands = (t.rounded_x, t.rounded_dy, partials)
    settings = {**t.settings, **made_by, "first": first, "batch": batch}
    return launching(conv2d_grad_weight, *operands, **settings)


@of_layer
def _whole(o: Operands, t: Tensors) -> Launch:
    """The sum over partials is part of the work."""
    partials, grad = o.out(*_partials_shape(t)), o.out(*t.weight.shape)
    settings = {"first": True, **t.settings}
    peer = Peer(
        lambda: grad,
        lambda: t.backward(nchw(t.dy), nchw(t.x), t.native, 1),
        lambda: _exact(t.layer, t.x, t.dy),
        lambda result: result[:EXACT_CHANNELS, :EXACT_CHANNELS],
    )
    calls = (
        Call(conv2d_grad_weight, (t.rounded_x, t.rounded_dy, partials), settings),
        Call(sum_partials, (partials, grad), {"first": True}),
    )
    return Launch(calls, peer, scratch=(partials,))


def _exact(layer: Layer, x: Tensor, dy: Tensor) -> Tensor:
    """The gradient of the first channels [K, C/g, R, S] in float64: a product for each tap."""
    k, width = min(EXACT_CHANNELS, dy.shape[3]), layer.shape[1]
    group = torch.arange(k) // (layer.out_channels // layer.groups)  # of each output channel
    c = min(EXACT_CHANNELS, width) if layer.groups == 1 else (int(group[-1]) + 1) * width
    grad = torch.zeros(k, c, layer.taps, layer.taps, dtype=torch.float64, device=x.device)
    reach = (layer.out_side - 1) * layer.stride + 1
    for start in range(0, x.shape[0], EXACT_CHUNK):
        samples = slice(start, start + EXACT_CHUNK)
        around = (0, 0, *(layer.padding,) * 4)
        padded = torch.nn.functional.pad(x[samples, ..., :c].double(), around)
        upper = dy[samples, ..., :k].double().reshape(-1, k)
        for r in range(layer.taps):
            for s in range(layer.taps):
                tap = padded[:, r : r + reach : layer.stride, s : s + reach : layer.stride]
                grad[:, :, r, s] += upper.T @ tap.reshape(-1, c)
    if layer.groups == 1:
        return grad
    own = grad.unflatten(1, (-1, width))[torch.arange(k), group]  # [K, C/g, R, S]
    return own[:, :EXACT_CHANNELS]


def _both_runs(
    layer: Layer, kind: Settings, *, wgmma: bool = True, tuned: bool = False
) -> list[At]:
    """Sums that a launch starts, and sums that it goes on with."""
    exact = kind.get("precision") == "ieee"
    return [
        At((64,), {"layer": layer, **kind, "first": first}, wgmma and not exact, tuned)
        for first in (True, False)
    ]


BY_STRIDE: Final = (Layer(28, 64, 128, stride=2), Layer(112, 64, 128, stride=2))
LAYERS: Final = (  # of products in bfloat16 by each of the algorithms
    *(Layer(56, 3, 64), Layer(56, 64, 64), Layer(56, 64, 128), Layer(56, 128, 128)),
    *(Layer(56, 128, 256), Layer(56, 256, 256), Layer(14, 512, 512), *BY_STRIDE),
)
UNEVEN: Final = (Layer(56, 72, 24, 1), Layer(56, 24, 120), Layer(14, 112, 40, 1))
WINDOWS: Final = (
    Layer(224, 3, 64, 7, 2),
    Layer(192, 24, 24),
    Layer(56, 18, 18),
    Layer(56, 256, 18),
)
WINDOWS_BY_STRIDE: Final = (Layer(192, 24, 96, stride=2), Layer(224, 3, 96, 4, 4, pad=0))
TF32_WINDOWS: Final = (*WINDOWS, Layer(224, 16, 16), Layer(224, 16, 32, stride=2))
# Of whole batches of few samples, which have short steps.
FEW: Final = (
    *((samples, Layer(15, 128, 256, 1)) for samples in (8, 16, 24)),
    *((samples, Layer(7, 256, 512, 1)) for samples in (16, 32)),
    *((samples, Layer(14, 256, 256)) for samples in (16, 32)),
    *((samples, Layer(14, 384, 768, 2, 2, pad=0)) for samples in (16, 32)),
    (16, Layer(30, 224, 1344, 1)),
)
FEW_MADE: Final = tuple(
    At((16,), {"layer": Layer(15, 384, 128, 1), **HALF, "maker": maker, "whole": True})
    for maker in ("silu", "gate", "gated silu")
)
SPREAD: Final = Layer(56, 128, 256, dilation=2, pad=2)
STRIDED: Final = Layer(28, 128, 256, stride=2)
# In TF32 of columns of channels and taps: pointwise and strided, of at least 160 output channels.
COLUMNS: Final = (
    *(Layer(14, 256, 1024, 1), Layer(28, 128, 512, 1), Layer(28, 512, 1024, 1, 2)),
    *(SPREAD, STRIDED, Layer(56, 64, 256, stride=2)),
)
COMPILED: Final = (
    *(
        At((64,), {"layer": layer, **HALF, "maker": maker}, wgmma=layer.in_channels >= 64)
        for layer in REMADE
        for maker in (*MAKERS, *BOTH)
    ),
    *(
        At((64,), {"layer": layer, **WIDE, "maker": maker})
        for layer in REMADE_IN_TF32
        for maker in (*MAKERS, *BOTH)
    ),
    *(each for layer in LAYERS for each in _both_runs(layer, HALF)),
    *(each for layer in (*WINDOWS, *WINDOWS_BY_STRIDE) for each in _both_runs(layer, HALF)),
    *(each for layer in TF32_WINDOWS for each in _both_runs(layer, WIDE, wgmma=False)),
    *(each for layer in UNEVEN for each in _both_runs(layer, HALF)),
    *(At((samples,), {"layer": layer, **HALF, "whole": True}) for samples, layer in FEW),
    *FEW_MADE,
    *_both_runs(Layer(56, 18, 18, padded=True), HALF, wgmma=False),
    *_both_runs(Layer(28, 122, 244, 1, padded=True), HALF),
    *_both_runs(Layer(14, 128, 256), HALF, tuned=True),
    *_both_runs(Layer(56, 3, 64), WIDE, wgmma=False),
    *_both_runs(Layer(56, 128, 256), WIDE, tuned=True),
    *_both_runs(Layer(224, 64, 64), WIDE),
    *_both_runs(Layer(56, 24, 72), WIDE),
    *_both_runs(Layer(56, 40, 120, 1), WIDE, wgmma=False),
    *(each for layer in COLUMNS for each in _both_runs(layer, WIDE)),
    At((16,), {"layer": COLUMNS[0], **WIDE, "whole": True}),
    *_both_runs(Layer(56, 128, 256), EXACT),
    *_both_runs(Layer(56, 128, 128, groups=32), HALF),
    *_both_runs(Layer(56, 128, 128, groups=32), WIDE),
    *_both_runs(Layer(56, 256, 256, stride=2, groups=32), HALF),
    *_both_runs(Layer(56, 256, 256, stride=2, groups=32), WIDE, wgmma=False),
    *_both_runs(Layer(112, 72, 72, stride=2, groups=3), HALF),
    *_both_runs(Layer(28, 216, 216, groups=9), HALF),
    *_both_runs(Layer(56, 64, 128, groups=8), HALF),
    *_both_runs(Layer(28, 256, 256, groups=32), HALF),
    *_both_runs(Layer(56, 224, 224, groups=2), HALF),
    *_both_runs(Layer(56, 224, 224, groups=2), WIDE),
    *_both_runs(Layer(112, 224, 224, stride=2, groups=2), HALF),
    *_both_runs(Layer(14, 560, 560, groups=10), HALF),
    *_both_runs(Layer(28, 464, 464, groups=2), HALF),
    *_both_runs(Layer(56, 128, 256, groups=2), HALF),
    *_both_runs(Layer(14, 128, 128, groups=32), EXACT),
    *_both_runs(Layer(14, 36, 36, groups=9), HALF, wgmma=False),
)
CASES = (
    KernelCase(
        conv2d_grad_weight,
        _grad,
        {**CHECKED, "running": {"first": False}},
        COMPILED,
        (
            *measured("conv2d_grad_weight", "vgg16", make=_whole),
            *measured("conv2d_grad_weight", "resnet50", make=_whole),
            *measured("conv2d_grad_weight", "few channels", make=_whole),
            *measured_in_groups("conv2d_grad_weight", make=_whole),
        ),
        odd=False,
    ),
)
