"""Depthwise convolution over NHWC maps: each channel has a filter of its own.

The kernels use no tensor cores. A thread computes a run of output columns of some channels, and
multiplies each value that it loads by all taps of a filter's row. Filters are packed [R, S, C]. One
kernel computes the forward pass and the data gradient, a convolution with flipped filters of dy
spread out by the stride. The weight's gradient is in running sums, as that of other convolutions.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from ..language.channel_ranges import pitch_of
from ..language.cost import costing
from ..language.rounding import stored
from . import cost
from .conv2d import conv2d_grad_input_reference, conv2d_reference
from .grad_weight.launch import conv2d_grad_weight_reference
from .grad_weight.program_steps import share_of
from .tiles import Pair

WIDEST: Final = 7  # columns of a filter, at most: a thread holds the weights of a row
COLUMNS: Final = range(8, 3, -1)  # columns of a run
BLOCK_C: Final = 64  # channels of a program, at most
TILE: Final = 1024  # rows times channels of a program
TAPS: Final = 16  # taps of a filter whose sums a program holds, at most
PROGRAMS: Final = 528  # programs of a weight gradient: four for each multiprocessor of an H200
STEPS: Final = 256  # steps of a unit, at least, where UNIT_SAMPLES allow
UNIT_SAMPLES: Final = 64  # samples of a unit, at most


@dataclass(frozen=True, slots=True)
class DepthwisePlan:
    """The running sums of a weight gradient: float32 [splits, C, R, S, 1].

    Every launch of a batch after the first must start at a multiple of `unit` samples.
    """

    splits: int
    unit: int


def suits_depthwise(channels: int, out_channels: int, groups: int, size: Pair) -> bool:
    """Whether these kernels compute a layer with filters of `size` (h, w).

    Each channel has one filter of at most WIDEST columns, and channels are a multiple of 8. Other
    numbers of channels break loads of 16 bytes, and threads run out of registers.
    """
    single = groups == channels == out_channels
    return single and channels % 8 == 0 and size[1] <= WIDEST


def depthwise_plan(out_sides: Pair, channels: int, size: Pair) -> DepthwisePlan:
    """The plan for a gradient dy of sides (p, q) and filters of `size` (r, s)."""
    rows, columns = _tile_rows(channels), _run_of(out_sides[1], 1)
    runs = cdiv(out_sides[1], columns)
    unit = 1
    while unit < UNIT_SAMPLES and cdiv(unit * out_sides[0], rows) * runs < STEPS:
        unit *= 2
    steps = cdiv(unit * out_sides[0], rows) * runs
    programs = cdiv(size[0], _group_of(size)) * cdiv(channels, BLOCK_C)
    return DepthwisePlan(max(1, min(steps, cdiv(PROGRAMS, programs))), unit)


def _tile_rows(channels: int) -> int:
    return TILE // min(triton.next_power_of_2(channels), BLOCK_C)


def _run_of(width: int, up: int) -> int:
    """Columns of a run: a multiple of `up` that overruns a row of `width` columns least."""
    return min((n for n in COLUMNS if n % up == 0), key=lambda n: cdiv(width, n) * n, default=up)


def _group_of(size: Pair) -> int:
    """Rows of a filter whose sums a program holds."""
    return cdiv(size[0], cdiv(size[0], max(1, TAPS // size[1])))


@triton.jit
def _loaded(ptrs, column, width, pitch, mask, FIRST: tl.constexpr, COUNT: tl.constexpr) -> tl.tuple:
    """COUNT columns from `column` + FIRST on, float32 each; `ptrs` point to `column`."""
    columns = ()
    for j in tl.static_range(FIRST, FIRST + COUNT):
        inside = mask & (column + j >= 0) & (column + j < width)
        columns += (tl.load(ptrs + j * pitch, mask=inside, other=0.0).to(tl.float32),)
    return columns


@triton.jit(do_not_specialize=["num_rows", "in_h", "in_w", "out_h", "out_w", "pad_h", "dil_h"])
def _depthwise_kernel(
    x_ptr, packed_ptr, bias_ptr, y_ptr, num_rows, in_h, in_w, out_h, out_w,
    eighths, x_eighths, y_eighths, pad_h, dil_h,
    R: tl.constexpr, S: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    UP_H: tl.constexpr, UP_W: tl.constexpr, PAD_W: tl.constexpr, DIL_W: tl.constexpr,
    FLIPPED: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Output h sums taps r of input (h * STRIDE - pad + r * dil) / UP, where whole; w likewise.

    With FLIPPED tap r has weight R - 1 - r.
    """
    channels = eighths * 8  # which loads of 16 bytes divide
    x_pitch, y_pitch = x_eighths * 8, y_eighths * 8
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    first = tl.program_id(1) * COLUMNS
    c = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    c = tl.zeros((ROWS, 1), tl.int32) + c  # a thread loads its own weights
    mask = (row < num_rows) & (c < channels)
    sample, h = row // out_h, (row % out_h).to(tl.int32)
    column = first * STRIDE_W // UP_W
    sums = ()
    for _ in tl.static_range(COLUMNS):
        sums += (tl.zeros((ROWS, BLOCK_C), tl.float32),)
    for r in range(R):
        up = h * STRIDE_H + r * dil_h - pad_h
        inside = mask & (up >= 0) & (up % UP_H == 0) & (up // UP_H < in_h)
        x_ptrs = x_ptr + ((sample * in_h + up // UP_H) * in_w + column) * x_pitch + c
        x = _loaded(x_ptrs, column, in_w, x_pitch, inside, FIRST, COUNT)
        tap_row = R - 1 - r if FLIPPED else r
        weights = ()
        for s in tl.static_range(S):
            tap = tap_row * S + (S - 1 - s if FLIPPED else s)
            w = tl.load(packed_ptr + tap * channels + c, mask=c < channels, other=0.0)
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
    bias = tl.zeros((ROWS, BLOCK_C), tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + c, mask=c < channels, other=0.0)
    y_ptrs = y_ptr + (row * out_w + first) * y_pitch + c
    for t in tl.static_range(COLUMNS):
        y = stored(sums[t] + bias, y_ptr.dtype.element_ty, PRECISION)
        tl.store(y_ptrs + t * y_pitch, y, mask=mask & (first + t < out_w))


@triton.jit(
    do_not_specialize=[
        "first", "num_samples", "in_h", "in_w", "out_h", "out_w", "pad_h", "dil_h", "unit", "splits"
    ]
)  # fmt: skip
def _depthwise_grad_weight_kernel(
    x_ptr, dy_ptr, partials_ptr, first, num_samples, in_h, in_w, out_h, out_w,
    eighths, x_eighths, dy_eighths, pad_h, dil_h, unit, splits,
    R: tl.constexpr, S: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_W: tl.constexpr, DIL_W: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A program adds to the sums of GROUP rows of filters, one unit of samples after another."""
    channels = eighths * 8
    x_pitch, dy_pitch = x_eighths * 8, dy_eighths * 8
    split, tiles_c = tl.program_id(0), tl.cdiv(channels, BLOCK_C)
    first_r = tl.program_id(1) // tiles_c * GROUP
    c = tl.program_id(1) % tiles_c * BLOCK_C + tl.arange(0, BLOCK_C)
    runs = tl.cdiv(out_w, COLUMNS)
    start, share = share_of(split, splits, tl.cdiv(unit * out_h, ROWS) * runs)
    for unit_start in range(0, num_samples, unit):
        rows = tl.minimum(unit, num_samples - unit_start) * out_h
        stop = tl.minimum(start + share, tl.cdiv(rows, ROWS) * runs)
        sums = ()
        for _ in tl.static_range(GROUP * S):
            sums += (tl.zeros((ROWS, BLOCK_C), tl.float32),)
        for step in range(start, stop):
            row = step // runs * ROWS + tl.arange(0, ROWS)[:, None]
            q = step % runs * COLUMNS
            mask = (row < rows) & (c < channels)[None, :]
            sample, p = (unit_start + row // out_h).to(tl.int64), row % out_h
            dy_ptrs = dy_ptr + ((sample * out_h + p) * out_w + q) * dy_pitch + c[None, :]
            dy = _loaded(dy_ptrs, q, out_w, dy_pitch, mask, 0, COLUMNS)
            column = q * STRIDE_W
            added = ()
            for i in tl.static_range(GROUP):
                h = p * STRIDE_H + (first_r + i) * dil_h - pad_h
                inside = mask & (h >= 0) & (h < in_h)
                x_ptrs = x_ptr + ((sample * in_h + h) * in_w + column) * x_pitch + c[None, :]
                x = _loaded(x_ptrs, column, in_w, x_pitch, inside, FIRST, COUNT)
                for s in tl.static_range(S):
                    total = sums[i * S + s]
                    for t in tl.static_range(COLUMNS):
                        met = x[t * STRIDE_W + s * DIL_W - PAD_W - FIRST]
                        total = tl.fma(dy[t], met, total)
                    added += (total,)
            sums = added
        totals = ()
        for i in tl.static_range(GROUP):
            for s in tl.static_range(S):
                tap = (split.to(tl.int64) * channels + c) * R * S + (first_r + i) * S + s
                mask_c = (c < channels) & (first_r + i < R)
                older = mask_c & ((first == 0) | (unit_start > 0))
                before = tl.load(partials_ptr + tap, mask=older, other=0.0)
                totals += (before + tl.sum(sums[i * S + s], 0),)
        for i in tl.static_range(GROUP):
            for s in tl.static_range(S):
                tap = (split.to(tl.int64) * channels + c) * R * S + (first_r + i) * S + s
                mask_c = (c < channels) & (first_r + i < R)
                tl.store(partials_ptr + tap, totals[i * S + s], mask=mask_c)
        tl.debug_barrier()  # other threads may load what this one stored


@costing(cost.depthwise)
def depthwise_conv2d(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, precision: str,
) -> None:  # fmt: skip
    """y [N, P, Q, C] = x [N, H, W, C] convolved with packed [R, S, C], plus bias, float32 [C].

    Pairs are (h, w). `suits_depthwise` says which layers the launchers take.
    """
    _launch(x, packed, bias, y, stride, (1, 1), padding, dilation, precision, flipped=False)


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
) -> None:  # fmt: skip
    if y.numel() == 0:
        return
    samples, out_h, out_w, channels = y.shape
    size_r, size_s, _ = packed.shape
    block_c = min(triton.next_power_of_2(channels), BLOCK_C)
    rows, columns = TILE // block_c, _run_of(out_w, up[1])
    first, last = _reach(size_s, columns, stride[1], up[1], padding[1], dilation[1])
    grid = (cdiv(samples * out_h, rows), cdiv(out_w, columns), cdiv(channels, block_c))
    _depthwise_kernel[grid](
        x, packed, bias, y, samples * out_h, x.shape[1], x.shape[2], out_h, out_w,
        channels // 8, pitch_of(x) // 8, pitch_of(y) // 8, padding[0], dilation[0],
        R=size_r, S=size_s, STRIDE_H=stride[0], STRIDE_W=stride[1],
        UP_H=up[0], UP_W=up[1], PAD_W=padding[1], DIL_W=dilation[1], FLIPPED=flipped,
        FIRST=first, COUNT=last - first + 1, PRECISION=precision,
        ROWS=rows, COLUMNS=columns, BLOCK_C=block_c, num_warps=_num_warps(x),
    )  # fmt: skip


def _reach(size: int, columns: int, stride: int, up: int, pad: int, dil: int) -> Pair:
    """First and last column that a run reads, relative to the column of its first output."""
    met = [t * stride + s * dil - pad for t in range(columns) for s in range(size)]
    whole = [place // up for place in met if place % up == 0] or [0]
    return min(whole), max(whole)


def _num_warps(x: Tensor) -> int:
    """Warps of a program whose threads load 16 bytes of a row each."""
    return TILE * x.element_size() // (32 * 16)


@costing(cost.grad_weight)
def depthwise_conv2d_grad_weight(
    x: Tensor, dy: Tensor, partials: Tensor, *, first: bool,
    stride: Pair, padding: Pair, dilation: Pair,
) -> None:  # fmt: skip
    """Add the weight gradient of x and dy to running sums, float32 [splits, C, R, S, 1].

    `first` starts new sums. `depthwise_plan` gives the splits, and where launches may cut a batch.
    """
    if x.numel() == 0 or dy.numel() == 0:
        return
    splits, channels, size_r, size_s, _ = partials.shape
    sides = (dy.shape[1], dy.shape[2])
    plan = depthwise_plan(sides, channels, (size_r, size_s))
    columns, group = _run_of(sides[1], 1), _group_of((size_r, size_s))
    start, last = _reach(size_s, columns, stride[1], 1, padding[1], dilation[1])
    block_c = min(triton.next_power_of_2(channels), BLOCK_C)
    _depthwise_grad_weight_kernel[(splits, cdiv(size_r, group) * cdiv(channels, block_c))](
        x, dy, partials, int(first), x.shape[0], x.shape[1], x.shape[2], *sides,
        channels // 8, pitch_of(x) // 8, pitch_of(dy) // 8, padding[0], dilation[0],
        plan.unit, splits,
        R=size_r, S=size_s, STRIDE_H=stride[0], STRIDE_W=stride[1], PAD_W=padding[1],
        DIL_W=dilation[1], FIRST=start, COUNT=last - start + 1, GROUP=group,
        ROWS=TILE // block_c, COLUMNS=columns, BLOCK_C=block_c, num_warps=8,
    )  # fmt: skip


def _by_channel(packed: Tensor) -> Tensor:
    """The filters as `conv2d` reads them: [C, R, S, 1]."""
    return packed.permute(2, 0, 1)[..., None]


def depthwise_conv2d_reference(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, precision: str,
) -> None:  # fmt: skip
    """Computes `depthwise_conv2d` in torch."""
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    groups = packed.shape[2]
    conv2d_reference(
        x, _by_channel(packed), bias, y, **geometry, groups=groups, precision=precision
    )


def depthwise_conv2d_grad_input_reference(
    dy: Tensor, packed: Tensor, dx: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, precision: str,
) -> None:  # fmt: skip
    """Computes `depthwise_conv2d_grad_input` in torch."""
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    flipped, groups = _by_channel(packed).flip(1, 2), packed.shape[2]
    conv2d_grad_input_reference(dy, flipped, dx, **geometry, groups=groups, precision=precision)


def depthwise_conv2d_grad_weight_reference(
    x: Tensor, dy: Tensor, partials: Tensor, *, first: bool,
    stride: Pair, padding: Pair, dilation: Pair,
) -> None:  # fmt: skip
    """Computes `depthwise_conv2d_grad_weight` in torch. All splits but the first hold zeros."""
    if first:
        partials.zero_()
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    _, groups, size_r, size_s, _ = partials.shape
    own = torch.empty_like(partials)
    unit = depthwise_plan((dy.shape[1], dy.shape[2]), groups, (size_r, size_s)).unit
    for start in range(0, len(x), unit):
        part = slice(start, start + unit)
        conv2d_grad_weight_reference(
            x[part], dy[part], own, first=True, **geometry, groups=groups, precision="ieee"
        )
        partials += own
