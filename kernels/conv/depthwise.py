"""Depthwise convolution over NHWC maps: each channel has a filter of its own.

The kernels use no tensor cores. A thread computes a run of output columns of some channels, and
multiplies each value that it loads by all taps of a filter's row. Filters are packed [R, S, C]. One
kernel computes the forward pass and the data gradient, a convolution with flipped filters of dy
spread out by the stride. At stride 1 filters of many taps, or over narrow rows, are left to
depthwise_rows.py. The weight's gradient is in depthwise_grad_weight.py.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from ..language.channel_ranges import pitch_of
from ..language.cost import costing
from ..language.rounding import stored
from ..norm.normalized_again import (
    CHEAP,
    Normalized,
    normalized_again_reference,
    normalizer_of,
    settings_of_normalizer,
)
from . import cost
from .batch_stats import MomentCells
from .conv2d import conv2d_grad_input_reference, conv2d_reference
from .depthwise_moments import cells_of, strip_moments, strip_moments_reference
from .depthwise_rows import convolve_rows, goes_by_rows
from .depthwise_runs import load_columns, made_columns, run_of, settings_of_runs
from .depthwise_strips import convolve_strips, goes_by_strips
from .tiles import Pair

WIDEST: Final = 11  # columns of a filter, at most: a thread holds the weights of a row
LEAST: Final = 16  # channels, unless they are a multiple of 8
ZERO_AT_ZERO: Final = (*CHEAP, "silu", "gelu", "gelu_tanh", "tanh", "elu")
MOST_TIMES: Final = 6.25  # taps that meet an input whose function is cheap: 5x5 by 2
THREADS: Final = 128  # threads of a program: each has four channels


def suits_depthwise(channels: int, out_channels: int, groups: int, size: Pair) -> bool:
    """Whether these kernels compute a layer with filters of `size` (h, w).

    Each channel has one filter of at most WIDEST columns. Few channels, of which threads do not
    load several, are left to others.
    """
    single = groups == channels == out_channels
    return single and (channels % 8 == 0 or channels >= LEAST) and size[1] <= WIDEST


def makes_depthwise_input(
    weight_shape: tuple[int, int, int, int],
    stride: Pair,
    dilation: Pair,
    *,
    maker: str,
    function: str = "",
) -> bool:
    """Whether the kernels can make a normalized input, and it pays.

    Of 0 the function must be 0, as inputs on padding are. Functions with exponentials pay where
    each value is made about once.
    """
    channels, _, *size = weight_shape
    if maker != "normalize" or channels % 8 or function not in ZERO_AT_ZERO:
        return False
    if goes_by_strips(channels, (size[0], size[1]), stride, dilation):
        return True
    times = size[0] * size[1] / (stride[0] * stride[1])
    return dilation == (1, 1) and times <= (MOST_TIMES if function in CHEAP else MOST_TIMES / 2)


def depthwise_cells(
    out_sides: Pair, weight_shape: tuple[int, int, int, int], stride: Pair, dilation: Pair,
    dtype: torch.dtype,
) -> MomentCells | None:  # fmt: skip
    """The cells of a layer's output; None where no kernel that makes its input leaves moments."""
    channels, _, *size = weight_shape
    leaves = goes_by_strips(channels, (size[0], size[1]), stride, dilation)
    return cells_of(out_sides) if leaves and dtype == torch.bfloat16 else None


@triton.jit(do_not_specialize=["num_rows", "in_h", "in_w", "out_h", "out_w", "pad_h", "dil_h"])
def _depthwise_kernel(
    x_ptr, packed_ptr, bias_ptr, y_ptr, source, coefficient, num_rows, in_h, in_w, out_h, out_w,
    quarters, pad_h, dil_h,
    X_PITCH: tl.constexpr, Y_PITCH: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, UP_H: tl.constexpr, UP_W: tl.constexpr,
    PAD_W: tl.constexpr, DIL_W: tl.constexpr, FLIPPED: tl.constexpr, COLUMNS: tl.constexpr,
    FIRST: tl.constexpr, COUNT: tl.constexpr, INNER: tl.constexpr, OUT_INNER: tl.constexpr,
    EMPTY: tl.constexpr, READABLE: tl.constexpr, FUNCTION: tl.constexpr,
    PRECISION: tl.constexpr, THREADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Output h sums taps r of input (h * STRIDE - pad + r * dil) / UP, where whole; w likewise.

    With FLIPPED tap r has weight R - 1 - r. A thread has four channels, the last EMPTY of which are
    behind the map's; they are loaded if READABLE. WIDTH threads have a row of the map, where WIDTH
    need not be a power of two.
    """
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    ROWS: tl.constexpr = THREADS // WIDTH
    pid, tiles_c, runs = tl.program_id(0), tl.cdiv(quarters, WIDTH), tl.cdiv(out_w, COLUMNS)
    first = pid // tiles_c % runs * COLUMNS
    thread = tl.arange(0, THREADS)[:, None]
    row = pid // (tiles_c * runs) * ROWS + thread // WIDTH
    quarter = pid % tiles_c * WIDTH + thread % WIDTH
    mask = (thread < ROWS * WIDTH) & (row < num_rows) & (quarter < quarters)
    channels, c = quarters * 4 - EMPTY, quarter * 4 + tl.arange(0, 4)[None, :]
    own = mask & (c < channels) if EMPTY > 0 else mask
    readable = mask if READABLE else own
    sample, h = (row // out_h).to(tl.int64), row % out_h
    column = first * STRIDE_W // UP_W
    if source is not None:
        at = normalizer_of(source, c, own, channels)
    sums = ()
    for _ in tl.static_range(COLUMNS):
        sums += (tl.zeros((THREADS, 4), tl.float32),)
    for r in range(R):
        up = h * STRIDE_H + r * dil_h - pad_h
        inside = readable & (up >= 0) & (up % UP_H == 0) & (up // UP_H < in_h)
        x_ptrs = x_ptr + ((sample * in_h + up // UP_H) * in_w + column) * X_PITCH + c
        x = load_columns(x_ptrs, column, in_w, X_PITCH, inside, FIRST, COUNT, INNER)
        if source is not None:
            x = made_columns(
                x, at, coefficient, inside, column, in_w, dtype, FUNCTION, FIRST, INNER
            )
        tap_row = R - 1 - r if FLIPPED else r
        weights = ()
        for s in tl.static_range(S):
            tap = tap_row * S + (S - 1 - s if FLIPPED else s)
            w = tl.load(packed_ptr + tap * channels + c, mask=own, other=0.0)
            weights += (w.to(tl.float32),)
        added = ()
        for t in tl.static_range(COLUMNS):
            total = sums[t]
            for s in tl.static_range(S):
                if (t * STRIDE_W + s * DIL_W - PAD_W) % UP_W == 0:
                    met = x[(t * STRIDE_W + s * DIL_W - PAD_W) // UP_W - FIRST]
                    total = tl.fma(met, weights[s], total)
            added += (total,)
        sums = added
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + c, mask=own, other=0.0)
    y_ptrs = y_ptr + (row.to(tl.int64) * out_w + first) * Y_PITCH + c
    for t in tl.static_range(COLUMNS):
        y = sums[t] if bias_ptr is None else sums[t] + bias
        y = stored(y, y_ptr.dtype.element_ty, PRECISION)
        inside = mask
        if t >= OUT_INNER:
            inside = inside & (first + t < out_w)
        if EMPTY > 0:  # four channels at a time, and those of the last four that the map has
            last = quarter == quarters - 1
            tl.store(y_ptrs + t * Y_PITCH, y, mask=inside & own & last)
            inside = inside & ~last
        tl.store(y_ptrs + t * Y_PITCH, y, mask=inside)


@costing(cost.depthwise)
def depthwise_conv2d(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, precision: str, made_by: Normalized | None = None,
    moments: Tensor | None = None, cells: MomentCells | None = None,
) -> None:  # fmt: skip
    """y [N, P, Q, C] = x [N, H, W, C] convolved with packed [R, S, C], plus bias, float32 [C].

    Pairs are (h, w). `suits_depthwise` says which layers the launchers take. x may be what the
    convolved map is `made_by`, for layers that `makes_depthwise_input` says. `moments` get those of
    `cells` of y, as `depthwise_cells` gives them: float32 [N, cells of a map, 2, C].
    """
    if made_by is not None and goes_by_strips(y.shape[3], packed.shape[:2], stride, dilation):
        operands = (x, made_by, packed, bias, y)
        left = {"moments": moments, "cells": cells, "precision": precision}
        convolve_strips(*operands, padding=padding, dilation=dilation[1], **left)
        return
    where = (stride, (1, 1), padding, dilation)
    _launch(x, packed, bias, y, *where, precision, flipped=False, made_by=made_by)
    if moments is not None and cells is not None:
        strip_moments(y, moments, cells=cells)


@costing(cost.depthwise_grad_input)
def depthwise_conv2d_grad_input(
    dy: Tensor, packed: Tensor, dx: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, precision: str,
) -> None:  # fmt: skip
    """The gradient dx [N, H, W, C] of `depthwise_conv2d` from dy [N, P, Q, C] and its packed."""
    reach = [d * (size - 1) for d, size in zip(dilation, packed.shape[:2], strict=True)]
    flipped = (reach[0] - padding[0], reach[1] - padding[1])
    _launch(dy, packed, None, dx, (1, 1), stride, flipped, dilation, precision, flipped=True)


def _launch(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor,
    stride: Pair, up: Pair, padding: Pair, dilation: Pair, precision: str, *, flipped: bool,
    made_by: Normalized | None = None,
) -> None:  # fmt: skip
    if y.numel() == 0:
        return
    if (
        made_by is None
        and up == (1, 1)
        and goes_by_rows(y.shape[2], y.shape[3], packed.shape[:2], stride, dilation)
    ):
        by = {"padding": padding, "dilation": dilation[1], "precision": precision}
        convolve_rows(x, packed, bias, y, **by, flipped=flipped)
        return
    maker = settings_of_normalizer(made_by)
    samples, out_h, out_w, channels = y.shape
    size_r, size_s, _ = packed.shape
    quarters = cdiv(channels, 4)
    width, empty = _width_of(quarters), quarters * 4 - channels
    columns, along = run_of(out_w, up[1]), (size_s, stride[1], up[1], padding[1], dilation[1])
    runs = settings_of_runs(x.shape[2], out_w, columns, *along)
    tiles = cdiv(out_w, columns) * cdiv(quarters, width)
    _depthwise_kernel[(cdiv(samples * out_h, THREADS // width) * tiles,)](
        x, packed, bias, y, maker["source"], maker["coefficient"], samples * out_h, x.shape[1],
        x.shape[2], out_h, out_w, quarters, padding[0], dilation[0],
        X_PITCH=pitch_of(x), Y_PITCH=pitch_of(y), R=size_r, STRIDE_H=stride[0],
        UP_H=up[0], UP_W=up[1], FLIPPED=flipped, **runs,
        EMPTY=empty, READABLE=empty == 0 or pitch_of(x) % 4 == 0,
        FUNCTION=maker["FUNCTION"],
        PRECISION=precision, THREADS=THREADS, WIDTH=width, num_warps=THREADS // 32,
    )  # fmt: skip


def _width_of(quarters: int) -> int:
    """Threads that have a row of a map: 64 channels, or a number that leaves few threads idle."""

    def key(width: int) -> tuple[float, bool, int]:
        used = quarters / (cdiv(quarters, width) * width) * (THREADS // width * width / THREADS)
        return min(used, 0.93), width == 16, width

    return max(range(1, 19), key=key)


def _by_channel(packed: Tensor) -> Tensor:
    """The filters as `conv2d` reads them: [C, R, S, 1]."""
    return packed.permute(2, 0, 1)[..., None]


def depthwise_conv2d_reference(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, precision: str, made_by: Normalized | None = None,
    moments: Tensor | None = None, cells: MomentCells | None = None,
) -> None:  # fmt: skip
    """Computes `depthwise_conv2d` in torch."""
    x = normalized_again_reference(x, made_by)
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    groups = packed.shape[2]
    conv2d_reference(
        x, _by_channel(packed), bias, y, **geometry, groups=groups, precision=precision
    )
    if moments is not None and cells is not None:
        strip_moments_reference(y, moments, cells=cells)


def depthwise_conv2d_grad_input_reference(
    dy: Tensor, packed: Tensor, dx: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, precision: str,
) -> None:  # fmt: skip
    """Computes `depthwise_conv2d_grad_input` in torch."""
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    flipped, groups = _by_channel(packed).flip(1, 2), packed.shape[2]
    conv2d_grad_input_reference(dy, flipped, dx, **geometry, groups=groups, precision=precision)
