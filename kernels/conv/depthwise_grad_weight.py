"""Gradient of a depthwise convolution's weight: kernel, plan, launcher and a reference.

The gradient is in running sums, as that of other convolutions. A thread multiplies runs of output
columns of two channels by all taps of some rows of a filter, and keeps the sums in registers.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from ..language.channel_ranges import pitch_of
from ..language.cost import costing
from ..norm.normalized_again import (
    Normalized,
    normalized_again_reference,
    normalizer_of,
    settings_of_normalizer,
)
from . import cost
from .depthwise_runs import load_columns, made_columns, run_of, settings_of_runs
from .depthwise_strips_grad_weight import add_strips, plan_of_strips, sums_go_by_strips
from .depthwise_sums import DepthwisePlan, add_sums, block_of, pieces_of
from .grad_weight.launch import conv2d_grad_weight_reference
from .grad_weight.program_steps import share_of
from .tiles import Pair

TILE: Final = 256  # rows times channels of a program: each of its 128 threads has two channels
TALL: Final = 2  # rows of dy that a thread multiplies in a step
TAPS: Final = 49  # taps of a filter whose sums a program holds, at most
FEW_TAPS: Final = 9  # taps whose sums leave registers for four programs on a multiprocessor
PROGRAMS: Final = 264  # two for each multiprocessor of an H200; of FEW_TAPS twice as many
UNITS: Final = (1, 2, 4, 8, 16, 32, 64)  # samples of a unit
WORSE: Final = 1.15  # a smaller unit may take so much longer than the largest


def depthwise_plan(
    out_sides: Pair, channels: int, size: Pair, stride: Pair, dilation: Pair
) -> DepthwisePlan:
    """The plan for a gradient dy of sides (p, q) and filters of `size` (r, s)."""
    if sums_go_by_strips(channels, size, stride, dilation):
        return plan_of_strips(out_sides, channels, size, stride)[0]
    block_c, columns = block_of(channels), _run_of(out_sides[1], size)
    group = _group_of(size)
    programs = PROGRAMS * (2 if size[0] * size[1] <= FEW_TAPS else 1)
    most = max(1, programs // (cdiv(size[0], group) * cdiv(channels, block_c)))
    steps = {unit: _steps(unit, out_sides, block_c, columns) for unit in UNITS}
    # a program's steps for a sample, where adding to the running sums takes as long as a step
    cost = {unit: (cdiv(steps[unit], most) + 1) / unit for unit in UNITS}
    unit = min(unit for unit in UNITS if cost[unit] <= WORSE * cost[UNITS[-1]])
    return DepthwisePlan(cdiv(steps[unit], cdiv(steps[unit], most)), unit)


def _steps(samples: int, sides: Pair, block_c: int, columns: int) -> int:
    return cdiv(samples * cdiv(sides[0], TALL), TILE // block_c) * cdiv(sides[1], columns)


def _run_of(width: int, size: Pair, itemsize: int = 2) -> int:
    """Columns of a run: fewer where sums, or loaded values, leave fewer registers."""
    return run_of(width, most=7 if size[1] >= 7 else 8 * 2 // itemsize)


def _group_of(size: Pair, itemsize: int = 2) -> int:
    """Rows of a filter whose sums a program holds, beside loaded values of `itemsize` bytes."""
    return cdiv(size[0], cdiv(size[0], max(1, TAPS * 2 // itemsize // size[1])))


@triton.jit
def _add_products(
    sums, dy, x, ROW: tl.constexpr, PLACE: tl.constexpr, DIL_H: tl.constexpr, S: tl.constexpr,
    COLUMNS: tl.constexpr, STRIDE_W: tl.constexpr, DIL_W: tl.constexpr, FIRST: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The sums of all taps, to those of the row at PLACE added products of ROW of dy by x."""
    added = ()
    for tap in tl.static_range(len(sums)):
        total = sums[tap]
        if tap // S * DIL_H == PLACE:
            for t in tl.static_range(COLUMNS):
                met = x[t * STRIDE_W + tap % S * DIL_W - FIRST]
                total = tl.fma(dy[ROW * COLUMNS + t], met, total)
        added += (total,)
    return added


@triton.jit(
    do_not_specialize=[
        "first", "num_samples", "in_h", "in_w", "out_h", "out_w", "pad_h", "unit", "splits"
    ]
)  # fmt: skip
def _depthwise_grad_weight_kernel(
    x_ptr, dy_ptr, partials_ptr, source, coefficient, first, num_samples, in_h, in_w, out_h, out_w,
    eighths, pad_h, unit, splits, X_PITCH: tl.constexpr, DY_PITCH: tl.constexpr, R: tl.constexpr,
    S: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, DIL_H: tl.constexpr,
    PAD_W: tl.constexpr, DIL_W: tl.constexpr, COLUMNS: tl.constexpr, FIRST: tl.constexpr,
    COUNT: tl.constexpr, INNER: tl.constexpr, OUT_INNER: tl.constexpr,
    GROUP: tl.constexpr, TALL: tl.constexpr, PLACES: tl.constexpr, PIECES: tl.constexpr,
    EMPTY: tl.constexpr, READABLE: tl.constexpr, FUNCTION: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A program adds to the sums of GROUP rows of filters, one unit of samples after another.

    An item is TALL rows of dy of a sample. Each row of x that they meet is loaded once: PLACES are
    these rows, counted from the first. Steps go down the rows of one run of columns after the
    other, and find most rows of x in L1. The last EMPTY of the channels are behind the maps'; they
    are loaded if READABLE.
    """
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    channels = eighths * 8 - EMPTY
    tiles_c, talls, split = tl.cdiv(channels, BLOCK_C), tl.cdiv(out_h, TALL), tl.program_id(1)
    first_r = tl.program_id(0) // tiles_c * GROUP
    c = tl.program_id(0) % tiles_c * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c = c < (eighths * 8 if READABLE else channels)
    sums_ptrs = partials_ptr + ((split.to(tl.int64) * channels + c) * R + first_r)[:, None] * S
    if source is not None:
        at = normalizer_of(source, c[None, :], (c < channels)[None, :], channels)
    for unit_start in range(0, num_samples, unit):
        items = tl.minimum(unit, num_samples - unit_start) * talls
        blocks = tl.cdiv(items, ROWS)
        start, share = share_of(split, splits, blocks * tl.cdiv(out_w, COLUMNS))
        sums = ()
        for _ in tl.static_range(GROUP * S):
            sums += (tl.zeros((ROWS, BLOCK_C), tl.float32),)
        for step in range(start, start + share):
            item = step % blocks * ROWS + tl.arange(0, ROWS)[:, None]
            q = step // blocks * COLUMNS
            mask = (item < items) & mask_c[None, :]
            sample, p = (unit_start + item // talls).to(tl.int64), item % talls * TALL
            dy_ptrs = dy_ptr + ((sample * out_h + p) * out_w + q) * DY_PITCH + c[None, :]
            dy = ()
            for k in tl.static_range(TALL):
                inside = mask & (p + k < out_h)
                dy += load_columns(dy_ptrs, q, out_w, DY_PITCH, inside, 0, COLUMNS, OUT_INNER)
                dy_ptrs += out_w * DY_PITCH
            column, first_h = q * STRIDE_W, p * STRIDE_H + first_r * DIL_H - pad_h
            for i in tl.static_range(len(PLACES)):
                h = first_h + PLACES[i]
                inside = mask & (h >= 0) & (h < in_h)
                x_ptrs = x_ptr + ((sample * in_h + h) * in_w + column) * X_PITCH + c[None, :]
                x = load_columns(x_ptrs, column, in_w, X_PITCH, inside, FIRST, COUNT, INNER)
                if source is not None:
                    x = made_columns(
                        x, at, coefficient, inside, column, in_w, dtype, FUNCTION, FIRST, INNER
                    )
                for k in tl.static_range(TALL):
                    sums = _add_products(
                        sums, dy, x, k, PLACES[i] - k * STRIDE_H, DIL_H, S, COLUMNS, STRIDE_W,
                        DIL_W, PAD_W + FIRST
                    )  # fmt: skip
        older = (first == 0) | (unit_start > 0)
        left = tl.minimum(GROUP, R - first_r) * S
        add_sums(sums_ptrs, sums, (c < channels)[:, None], older, left, PIECES)


@costing(cost.grad_weight)
def depthwise_conv2d_grad_weight(
    x: Tensor, dy: Tensor, partials: Tensor, *, first: bool,
    stride: Pair, padding: Pair, dilation: Pair, made_by: Normalized | None = None,
) -> None:  # fmt: skip
    """Add the weight gradient of x and dy to running sums, float32 [splits, C, R, S, 1].

    `first` starts new sums. `depthwise_plan` gives the splits, and where launches may cut a batch.
    x may be what the convolved map is `made_by`.
    """
    if x.numel() == 0 or dy.numel() == 0:
        return
    splits, channels, size_r, size_s, _ = partials.shape
    if sums_go_by_strips(channels, (size_r, size_s), stride, dilation):
        by = {"padding": padding, "dilation": dilation[1], "made_by": made_by}
        add_strips(x, dy, partials, first=first, stride=stride, **by)
        return
    sides, maker = (dy.shape[1], dy.shape[2]), settings_of_normalizer(made_by)
    plan = depthwise_plan(sides, channels, (size_r, size_s), stride, dilation)
    group, block_c = _group_of((size_r, size_s), x.element_size()), block_of(channels)
    tall = TALL if stride[0] == 1 else 1  # other strides meet few rows of x twice
    places = {k * stride[0] + i * dilation[0] for k in range(tall) for i in range(group)}
    columns = _run_of(sides[1], (size_r, size_s), x.element_size())
    along = (size_s, stride[1], 1, padding[1], dilation[1])
    runs = settings_of_runs(x.shape[2], sides[1], columns, *along)
    _depthwise_grad_weight_kernel[(cdiv(size_r, group) * cdiv(channels, block_c), splits)](
        x, dy, partials, maker["source"], maker["coefficient"], int(first), x.shape[0],
        x.shape[1], x.shape[2], *sides, cdiv(channels, 8), padding[0], plan.unit, splits,
        X_PITCH=pitch_of(x), DY_PITCH=pitch_of(dy), R=size_r, STRIDE_H=stride[0],
        DIL_H=dilation[0], **runs, GROUP=group, TALL=tall, PLACES=tuple(sorted(places)),
        PIECES=pieces_of(group * size_s), EMPTY=-channels % 8,
        READABLE=all(pitch_of(maps) % 8 == 0 for maps in (x, dy)),
        FUNCTION=maker["FUNCTION"],
        ROWS=TILE // block_c, BLOCK_C=block_c, num_warps=4,
        maxnreg=128 if size_r * size_s <= FEW_TAPS else 255,
    )  # fmt: skip


def depthwise_conv2d_grad_weight_reference(
    x: Tensor, dy: Tensor, partials: Tensor, *, first: bool,
    stride: Pair, padding: Pair, dilation: Pair, made_by: Normalized | None = None,
) -> None:  # fmt: skip
    """Computes `depthwise_conv2d_grad_weight` in torch. All splits but the first hold zeros."""
    x = normalized_again_reference(x, made_by)
    if first:
        partials.zero_()
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    _, groups, size_r, size_s, _ = partials.shape
    own = torch.empty_like(partials)
    sides, size = (dy.shape[1], dy.shape[2]), (size_r, size_s)
    unit = depthwise_plan(sides, groups, size, stride, dilation).unit
    for start in range(0, len(x), unit):
        part = slice(start, start + unit)
        conv2d_grad_weight_reference(
            x[part], dy[part], own, first=True, **geometry, groups=groups, precision="ieee"
        )
        partials += own
