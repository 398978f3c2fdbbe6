"""Depthwise convolutions that are tested, compiled and measured, and torch's kernels for them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, contiguous_format
from torch.nn import functional

from bench.cases.case import At, Measured
from bench.cases.conv.depthwise_networks import NETWORKS
from bench.cases.conv.layers import padding_of
from bench.cases.launch import EXACT_SAMPLES, Peer, Settings, first_samples, nchw
from bench.cases.operands import F32, Operands, Shape
from tvdnn.kernels.norm.normalized_again import Normalized

TF32: Final = 1e-4  # a value that is stored may round the other way
# Architectures other than Hopper compile the first alone, which is the least.
COMPILED = (
    At((2, 112, 112, 96), {"stride": 2}),
    At((2, 56, 56, 96), {"taps": 7}),
    At((2, 7, 7, 768), {"taps": 7, "dtype": F32}),
    At((2, 14, 14, 24), {"taps": 5, "stride": 2, "dtype": F32}),
    At((2, 56, 56, 72)),
    At((2, 28, 28, 120), {"taps": 5}),
    At((2, 14, 14, 384), {"taps": 7}),
    At((2, 14, 14, 384), {"taps": 11}),
    At((2, 112, 112, 16), {"dtype": F32}),
    At((2, 112, 112, 64), {"stride": 2, "dtype": F32}),
    At((2, 32, 32, 64), {"taps": 7, "stride": 2}),
    At((2, 13, 13, 200), {"taps": 9, "stride": 2, "dtype": F32}),
    At((2, 28, 28, 122)),
    At((2, 28, 28, 122), {"stride": 2}),
    At((2, 28, 28, 27), {"taps": 5, "dtype": F32}),
)
MADE = (
    *(At((2, 56, 56, 144), {"maker": each}) for each in ("", "relu", "relu6", "silu", "hardswish")),
    At((2, 28, 28, 120), {"taps": 5, "maker": "silu"}),
    At((2, 7, 7, 960), {"taps": 5, "maker": "hardswish"}),
    At((2, 112, 112, 96), {"stride": 2, "maker": "relu6"}),
    At((2, 56, 56, 72), {"taps": 5, "stride": 2, "maker": "relu"}),
    *(At((2, 56, 56, 144), {"maker": each, "dtype": F32}) for each in ("relu6", "silu")),
    At((2, 28, 28, 120), {"taps": 5, "maker": "silu", "dtype": F32}),
    At((2, 112, 112, 96), {"stride": 2, "maker": "relu6", "dtype": F32}),
)
WITH_MOMENTS = (
    At((2, 56, 56, 144), {"maker": "relu6", "moments": True}),
    At((2, 56, 56, 144), {"maker": "silu", "moments": True}),
    At((2, 28, 28, 240), {"taps": 5, "maker": "silu", "moments": True}),
)
CHECKED: dict[str, Settings] = {
    "5x5": {"taps": 5},
    "3x3 by 2": {"stride": 2},
    "7x7, float32": {"taps": 7, "dtype": F32},
    "11x11": {"taps": 11},
    "27 channels": {"channels": 27},
    "122 channels, 5x5 by 2, float32": {"channels": 122, "taps": 5, "stride": 2, "dtype": F32},
}


def layer_of(
    o: Operands, size: Shape, channels: int, taps: int, stride: int, dtype: torch.dtype
) -> tuple[Shape, Shape, torch.Tensor, dict[str, Any]]:
    """The shapes of inputs and outputs, of `channels` if not 0, the weight, and the geometry."""
    samples, height, width, _ = size
    channels = channels or size[3]
    size = (samples, height, width, channels)
    out = (samples, -(-height // stride), -(-width // stride), channels)
    around = (taps // 2, taps // 2)
    geometry = {"stride": (stride, stride), "padding": around, "dilation": (1, 1)}
    return size, out, o.randn(taps, taps, channels, dtype=dtype), geometry


def made_by_of(o: Operands, channels: int, maker: str | None) -> Settings:
    """A normalization with a function of this name, as a launcher takes it; nothing without."""
    if maker is None:
        return {}
    affine = o.randn(channels), o.randn(channels)
    return {"made_by": Normalized(o.randn(3, channels), *affine, maker)}


def beside(size: Shape) -> Shape:
    """The channels before and after those of a map that is padded; () for others."""
    padding = padding_of(size[3])
    return (0, padding) if padding else ()


def peer_of(
    o: Operands, x: Tensor, dy: Tensor, packed: Tensor, which: int | None,
    geometry: dict[str, Any], result: Callable[[], Tensor], first: bool | None,
) -> Peer | None:  # fmt: skip
    """torch's output (`which` is None) or gradient, channels `first` or last; ours as `result`.

    None where the order of channels is not given.
    """
    if first is None:
        return None
    pairs = tuple(geometry[name] for name in ("stride", "padding", "dilation"))
    native = packed.permute(2, 0, 1)[:, None]  # [C, 1, R, S]
    layout = contiguous_format if first else torch.channels_last
    maps, grads, weight = (
        each.contiguous(memory_format=layout) for each in (nchw(x), nchw(dy), native)
    )

    def run(maps: Tensor, grads: Tensor, weight: Tensor) -> Tensor:
        if which is None:
            return functional.conv2d(maps, weight, None, *pairs, len(weight))
        wanted = [which == 0, which == 1, False]
        operands = (grads, maps, weight, None, *pairs, False, (0, 0), len(weight), wanted)
        gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(*operands)
        return gradients[which]

    def exact() -> Tensor:
        samples = slice(None) if which == 1 else slice(EXACT_SAMPLES)
        return run(maps[samples].double(), grads[samples].double(), weight.double())

    part = (lambda found: found) if which == 1 else first_samples
    return Peer(result, partial(run, maps, grads, weight), exact, part)


def measured(kernel: str) -> Iterator[Measured]:
    """Layers of networks beside torch's kernels, whose channels are last or first."""
    for name, network in NETWORKS.items():
        for first, peer in ((False, "torch, channels last"), (True, "torch, channels first")):
            for side, channels, taps, stride, count in network.layers:
                yield Measured(
                    kernel,
                    (network.samples, side, side, channels),
                    {"taps": taps, "stride": stride, "first": first},
                    set=f"{name}, depthwise" + (", channels first" if first else ""),
                    title=f"{channels} {taps}x{taps}{'/2' if stride > 1 else ''} @{side}",
                    peer=peer,
                    count=count,
                )
