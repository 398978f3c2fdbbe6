"""Convolution over NHWC maps: launchers and references of the forward pass and the data gradient.

Weights are packed by pack_weight.py. pointer.py has the kernel for every shape, im2col.py and
windows.py those for few channels, tma.py and warp_specialized.py those for maps that suit tensor
descriptors. The kernel, its tile and the order of its sums depend on every size but the number of
samples. A sample's result therefore has the same bits in every launch. `precision` is "ieee" or
"tf32", for float32 maps. Pairs are (h, w). Maps may be channel ranges.
"""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d as torch_conv2d
from torch.nn.grad import conv2d_input

from ..codec.sign_bits import passes_reference
from ..language.cost import costing
from ..language.rounding import stored_reference
from ..pointwise.activation_math import rectified_reference
from . import cost
from .bands import filter_of
from .batch_stats import MomentCells, cell_moments, cell_moments_reference
from .grad_bias import sum_cells_reference
from .launch import (
    Epilogue,
    launch_box,
    launch_im2col,
    launch_pointer,
    launch_specialized,
    specialized_box,
    sum_apart,
    weights_of,
)
from .pack_weight import of_groups
from .remade import MadeBy, remade_reference
from .row_tiles import rows_read, rows_spread
from .tiles import FEW_CHANNELS, Filter, Pair, has_descriptors, suits_descriptors, suits_specialized
from .windows_launch import launch_windows
from .windows_tile import windows_tile


@costing(cost.forward)
def conv2d(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
    out_precision: str | None = None, relu: bool = False,
    moments: Tensor | None = None, cells: MomentCells | None = None,
    made_by: MadeBy | None = None,
) -> None:  # fmt: skip
    """y [N, P, Q, K] = x [N, H, W, C] convolved with packed weights, plus bias, float32 [K].

    packed [K, R, S, C/g], or of bands (bands.py), is that of `pack_weight`. With bands NaN and
    infinity of an input channel make NaN of the outputs of all groups whose band has it.
    With few channels they may make NaN of up to three outputs beside those that read them.
    `out_precision` is the precision of the products that read y, by default the same. With `relu`
    negative outputs become 0. `moments`, if given, get those that `cell_moments` finds for `cells`
    of y; x must start at a whole cell. With `made_by` the convolution is of the map that it makes
    of x, where `makes_input`.
    """
    if y.numel() == 0:
        return
    taps = _filter(x, packed, groups, stride=stride, padding=padding, dilation=dilation)
    epilogue = Epilogue(
        bias, relu=relu, moments=moments, cells=cells, out_precision=out_precision or precision
    )
    _launch_forward(x, packed, y, taps, epilogue, precision, made_by)


@costing(cost.max_pool)
def conv2d_max_pool(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, codes: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
    out_precision: str | None = None, relu: bool = True,
) -> None:  # fmt: skip
    """y [N, P//2, Q//2, K] = the maxima of windows 2x2 at stride 2 of the output of `conv2d`.

    codes, uint8 [N, P//2, Q//2, K//4], are the argmax codes of `max_pool2d_codes`: the tap of the
    first maximum of a window, or of its last NaN. K/g must be a multiple of 4, or packed of bands.
    """
    if y.numel() == 0:
        return
    taps = _filter(x, packed, groups, stride=stride, padding=padding, dilation=dilation)
    assert taps.out_channels % 4 == 0, f"{taps.out_channels} channels of a block fill no bytes"
    epilogue = Epilogue(bias, relu=relu, codes=codes, out_precision=out_precision or precision)
    _launch_forward(x, packed, y, taps, epilogue, precision)


@costing(cost.grad_input)
def conv2d_grad_input(
    dy: Tensor, packed: Tensor, dx: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
    out_precision: str | None = None, bias: Tensor | None = None, mask: Tensor | None = None,
    sums: Tensor | None = None,
) -> None:  # fmt: skip
    """The gradient dx [N, H, W, C] of `conv2d` from dy [N, P, Q, K] and flipped filters.

    packed [C, R, S, K/g], or of bands, is that of `pack_weight_grad_input`. NaN and infinity spread
    as in `conv2d`. The gradient is a convolution of dy
    spread out by the stride. With `bias`, float32 [C], it is the output of a transposed
    convolution, which may have rows and columns that no window reaches. Where `mask`, the output of
    a ReLU with the shape and type of dx, is not above zero, dx is 0. Sign bits of that output,
    uint8 [N, H, W, C / 8], mask as well. `sums`, if given, get those of `sum_cells` of dx.
    `out_precision` is that of `conv2d`.
    """
    if dx.numel() == 0:
        return
    _, size_r, size_s, _ = packed.shape
    flipped = (dilation[0] * (size_r - 1) - padding[0], dilation[1] * (size_s - 1) - padding[1])
    taps = _filter(dy, packed, groups, stride=(1, 1), padding=flipped, dilation=dilation)
    epilogue = Epilogue(bias, mask=mask, sums=sums, out_precision=out_precision or precision)
    windows = windows_tile(taps, dy.dtype, precision, dy.shape[2]) if stride == (1, 1) else None
    if windows is not None:
        launch_windows(dy, packed, dx, taps, epilogue, windows)
        sum_apart(dx, epilogue)
    elif not _suits_box(dy, dx, taps, precision) or not _has_phases(taps, stride, epilogue):
        launch_pointer(dy, packed, dx, taps, stride, epilogue, precision)
        sum_apart(dx, epilogue)
    elif stride == (1, 1):
        launch_box(dy, weights_of(packed), dx, taps, epilogue, precision)
    else:
        _launch_phases(dy, packed, dx, taps, stride, epilogue, precision)
        sum_apart(dx, epilogue)


def _filter(maps: Tensor, packed: Tensor, groups: int, **geometry: Pair) -> Filter:
    out_channels, size_r, size_s, band = packed.shape
    channels = (maps.shape[3], out_channels)
    return filter_of(channels, groups, band, size=(size_r, size_s), **geometry)


# Which kernel


def _suits_im2col(y: Tensor, taps: Filter, precision: str) -> bool:
    """Whether the input has few channels and TMA can store the output."""
    few = taps.in_channels < FEW_CHANNELS and taps.blocks == 1
    exact = y.dtype == torch.float32 and precision == "ieee"
    return few and not exact and has_descriptors(y)


def _suits_box(x: Tensor, y: Tensor, taps: Filter, precision: str) -> bool:
    few = taps.out_channels < FEW_CHANNELS
    return taps.stride == (1, 1) and not few and suits_descriptors(x, y, taps, precision)


# Launches


def _launch_forward(
    x: Tensor, packed: Tensor, y: Tensor, taps: Filter, epilogue: Epilogue, precision: str,
    made_by: MadeBy | None = None,
) -> None:  # fmt: skip
    read, box_taps = _at_stride_1(x, taps)
    windows = windows_tile(taps, x.dtype, precision, x.shape[2])
    left = False
    suits_box = windows is None and _suits_box(read, y, box_taps, precision)
    assert made_by is None or suits_box, "only boxes of pixels make maps"
    if windows is not None:
        left = launch_windows(x, packed, y, taps, epilogue, windows)
    elif suits_box:
        left = launch_box(read, weights_of(packed), y, box_taps, epilogue, precision, made_by)
    elif _suits_halves(x, y, taps, epilogue, precision):
        box = specialized_box(y, taps, epilogue)
        left = launch_specialized(x, weights_of(packed), y, taps, epilogue, box)
    elif _suits_im2col(y, taps, precision):
        left = launch_im2col(x, packed, y, taps, epilogue, precision)
    else:
        launch_pointer(x, packed, y, taps, (1, 1), epilogue, precision)
    if epilogue.moments is not None and epilogue.cells is not None and not left:
        cell_moments(y, epilogue.moments, cells=epilogue.cells)


def _at_stride_1(x: Tensor, taps: Filter) -> tuple[Tensor, Filter]:
    """For filters 1x1 a view of the pixels that they read, at stride 1; else x as it is."""
    if taps.size != (1, 1) or taps.padding != (0, 0):
        return x, taps
    return x[:, :: taps.stride[0], :: taps.stride[1]], replace(taps, stride=(1, 1))


def _suits_halves(x: Tensor, y: Tensor, taps: Filter, epilogue: Epilogue, precision: str) -> bool:
    """Whether specialised warps compute a layer of stride 2: sides are even, and descriptors suit.

    128->128 @56, N = 256, bf16 takes 0.10 ms, and 0.16 ms by pointers (H200, 2026-11).
    """
    even = x.shape[1] % 2 == 0 and x.shape[2] % 2 == 0
    if taps.stride != (2, 2) or not even or not suits_descriptors(x, y, taps, precision):
        return False
    box, pooled = specialized_box(y, taps, epilogue), epilogue.codes is not None
    return taps.out_channels >= 2 * FEW_CHANNELS and suits_specialized(
        taps, x.dtype, box, pooled=pooled
    )


def _has_phases(taps: Filter, up: Pair, epilogue: Epilogue) -> bool:
    """Whether `_launch_phases` computes a data gradient with dy spread out by `up`.

    With a bias every phase must have a tap: outputs of a phase without one are never launched.
    """
    if up == (1, 1):
        return True
    meets = taps.size[0] >= up[0] and taps.size[1] >= up[1]
    return taps.dilation == (1, 1) and (meets or epilogue.bias is None)


def _launch_phases(
    dy: Tensor, packed: Tensor, dx: Tensor, taps: Filter, up: Pair, epilogue: Epilogue,
    precision: str,
) -> None:  # fmt: skip
    """Compute the data gradient phase by phase, each a convolution of dy at stride 1.

    The pixels of a phase lie `up` apart. Only every `up`-th tap meets dy there. Phases without such
    taps are zero.
    """
    if taps.size[0] < up[0] or taps.size[1] < up[1]:
        # Zeroing at once takes 0.2 ms less than by phase: 256->512 1x1/2 @56 (H200, 2026-11-21).
        dx.zero_()
    for phase in itertools.product(range(up[0]), range(up[1])):
        pixels = (slice(None), slice(phase[0], None, up[0]), slice(phase[1], None, up[1]))
        ahead = (taps.padding[0] - phase[0], taps.padding[1] - phase[1])
        first = (ahead[0] % up[0], ahead[1] % up[1])
        size = tuple(len(range(*args)) for args in zip(first, taps.size, up, strict=True))
        if dx[pixels].numel() == 0 or 0 in size:
            continue
        met = replace(taps, size=size, padding=(ahead[0] // up[0], ahead[1] // up[1]))
        masked = None if epilogue.mask is None else epilogue.mask[pixels]
        weights = weights_of(packed, first, up)
        phase_epilogue = replace(epilogue, mask=masked, sums=None)
        launch_box(dy, weights, dx[pixels], met, phase_epilogue, precision)


# References


def conv2d_reference(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
    out_precision: str | None = None, relu: bool = False,
    moments: Tensor | None = None, cells: MomentCells | None = None,
    made_by: MadeBy | None = None,
) -> None:  # fmt: skip
    """Computes `conv2d` in torch."""
    x = remade_reference(x, made_by, precision)
    weight = _computed(of_groups(packed, x.shape[3], groups)).permute(0, 3, 1, 2)
    x, padding = rows_read(x, y.shape[1], packed.shape[1], stride, padding, dilation)
    with rounding(precision):
        for part, out in _runs(x, y):
            result = torch_conv2d(
                _channels_first(part), weight, None, stride, padding, dilation, groups
            ).permute(0, 2, 3, 1)
            wide = result if bias is None else result.float() + bias
            out.copy_(stored_reference(wide, out.dtype, out_precision or precision))
    if relu:
        y.copy_(rectified_reference(y))
    if moments is not None and cells is not None:
        cell_moments_reference(y, moments, cells=cells)


def conv2d_max_pool_reference(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, codes: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
    out_precision: str | None = None, relu: bool = True,
) -> None:  # fmt: skip
    """Computes `conv2d_max_pool` in torch, through the whole map."""
    num_samples, height, width, channels = y.shape
    reach = [step * (size - 1) + 1 for step, size in zip(dilation, packed.shape[1:3], strict=True)]
    sides = [(x.shape[i + 1] + 2 * padding[i] - reach[i]) // stride[i] + 1 for i in (0, 1)]
    sides[0] = max(sides[0], 2 * height)
    whole = y.new_empty(num_samples, *sides, channels)
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    rounding_of = {"precision": precision, "out_precision": out_precision}
    conv2d_reference(x, packed, bias, whole, **settings, **rounding_of, relu=relu)
    windows = whole[:, : 2 * height, : 2 * width].unflatten(1, (-1, 2)).unflatten(3, (-1, 2))
    values = windows.permute(0, 1, 3, 5, 2, 4).flatten(4)  # [N, P//2, Q//2, K, 4]
    y.copy_(values[..., 0])
    taps = torch.zeros(y.shape, dtype=torch.uint8, device=y.device)
    for tap, value in enumerate(values.unbind(-1)):
        replaces = (value > y) | value.isnan()
        y.copy_(torch.where(replaces, value, y))
        taps.masked_fill_(replaces, tap)
    places = torch.arange(0, 8, 2, dtype=torch.uint8, device=y.device)
    codes.copy_((taps.unflatten(3, (-1, 4)) << places).sum(-1))


def conv2d_grad_input_reference(
    dy: Tensor, packed: Tensor, dx: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
    out_precision: str | None = None, bias: Tensor | None = None, mask: Tensor | None = None,
    sums: Tensor | None = None,
) -> None:  # fmt: skip
    """Computes `conv2d_grad_input` in torch."""
    own = _computed(of_groups(packed, dy.shape[3], groups))
    grouped = own.unflatten(0, (groups, -1)).flip(2, 3)  # [g, C/g, R, S, K/g]
    weight = grouped.permute(0, 4, 1, 2, 3).flatten(0, 1)
    rows = dx.shape[1]
    dy, reached = rows_spread(dy, rows, packed.shape[1], stride, padding, dilation)
    with rounding(precision):
        for part, out in _runs(dy, dx):
            size = (out.shape[0], out.shape[3], reached, out.shape[2])
            grad = _channels_first(part)
            result = conv2d_input(size, weight, grad, stride, padding, dilation, groups)
            result = result.permute(0, 2, 3, 1)[:, :rows]
            wide = result if bias is None else result.float() + bias
            out.copy_(stored_reference(wide, out.dtype, out_precision or precision))
    if mask is not None:
        passing = passes_reference(mask) if mask.dtype == torch.uint8 else ~(mask <= 0)
        dx.masked_fill_(~passing, 0.0)
    if sums is not None:
        sum_cells_reference(dx, sums)


def _computed(tensor: Tensor) -> Tensor:
    """The tensor in the type in which references compute: its own on a GPU, float32 on a CPU."""
    return tensor if tensor.is_cuda else tensor.float()


def _channels_first(nhwc: Tensor) -> Tensor:
    return _computed(nhwc).permute(0, 3, 1, 2)


def _runs(inputs: Tensor, outputs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Whole maps on a GPU. On a CPU single samples, whose bits do not depend on other samples."""
    if inputs.is_cuda:
        return iter([(inputs, outputs)] if len(inputs) else [])
    return zip(inputs.split(1), outputs.split(1), strict=True)


@contextlib.contextmanager
def rounding(precision: str) -> Iterator[None]:
    """Set cuDNN's precision for float32, and let it give the same bits every time."""
    cudnn: Any = torch.backends.cudnn
    before = cudnn.conv.fp32_precision, cudnn.deterministic
    cudnn.conv.fp32_precision, cudnn.deterministic = precision, True
    try:
        yield
    finally:
        cudnn.conv.fp32_precision, cudnn.deterministic = before
