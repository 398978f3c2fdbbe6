"""Weight gradients in TF32 on Hopper: x is transposed in shared memory, once for a column of taps.

TF32 products need adjacent pixels, over which the sum runs; in maps channels are adjacent. One warp
loads rows of pixels. Four warps transpose the rows of x into a ring, which the three taps of a
column share. Transposing for each tap would take shared memory longer than the products. Two groups
of four warps load rows of dy to registers, which transposes them, and sum.

The kernel is written in Gluon, which the interpreter does not run. Every variable that a loop
changes starts from a number (see warp_specialized.py).
"""

from typing import Final

from ...language.gluon import (
    fence_async_shared,
    gl,
    gluon,
    load_box,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from ...language.hopper import barriers, buffers
from ..bands import band_start, first_output, tiles_of
from .transposed_layouts import (
    CHANNELS,
    DY_LAYOUT,
    FRAGMENT,
    PARTIALS,
    PIXELS,
    SUMS,
    X_LAYOUT,
    load_sum,
    store_sum,
    transposed_dy,
    transposed_x,
)

SIZES: Final = (
    "first", "num_samples", "out_h", "out_w", "unit", "splits", "range_start", "pad_h", "pad_w",
    "in_width", "out_width", "last_band",
)  # fmt: skip

ROWS: Final = gl.constexpr(8)  # rows of x in the ring, of which three are read at a time


# The steps of a unit are the rows of one strip of maps after another. A strip is as wide as a step.
# The steps of a split in one strip need two more rows of x than of dy.


@gluon.jit
def _tile_of(channels, S: gl.constexpr, BLOCK: gl.constexpr, BANDS: gl.constexpr, BY_GROUP):
    """First output channel, first input channel, tap column, split in the range of a program.

    `channels` are the input channels of a band, the output channels of the map, both of a group,
    and the first channel of the last band (bands.py). BY_GROUP a tile lies in one group. BLOCK are
    the samples, columns and output channels of a step.
    """
    tiles_c = gl.cdiv(channels[0], CHANNELS)
    tiles_k = tiles_of(channels[1], channels[3], BLOCK[2], BY_GROUP)
    pid = gl.program_id(0)
    c = pid // S % tiles_c * CHANNELS
    k = first_output(pid // (S * tiles_c) % tiles_k, channels[3], BLOCK[2], BY_GROUP)
    if BANDS:
        c += band_start(k, channels[2], channels[3], channels[4])
    return k, c, pid % S, pid // (S * tiles_c * tiles_k)


@gluon.jit
def _share_of(split, cut, BLOCK: gl.constexpr):
    """The first of the steps of a unit that a split takes, and their number."""
    _, out_h, out_w, unit, splits, range_start = cut
    share = gl.cdiv(unit // BLOCK[0] * gl.cdiv(out_w, BLOCK[1]) * out_h, splits)
    return (range_start + split) * share, share


@gluon.jit
def _strips_of(index, start, share, cut, BLOCK: gl.constexpr):
    """End of a split's steps in unit `index`, first strip that they lie in, one past the last."""
    num_samples, out_h, out_w, unit, _, _ = cut
    samples = gl.minimum(unit, num_samples - index * unit)
    steps = gl.cdiv(samples, BLOCK[0]) * gl.cdiv(out_w, BLOCK[1]) * out_h
    stop = gl.minimum(start + share, steps)
    first = start // out_h
    return stop, first, gl.maximum(gl.cdiv(stop, out_h), first)


@gluon.jit
def _load(
    x_desc, dy_desc, x_bufs, dy_bufs, x_full, x_empty, dy_full, dy_empty, channels, padding, cut,
    S: gl.constexpr, BLOCK: gl.constexpr, BANDS: gl.constexpr, BY_GROUP: gl.constexpr,
):  # fmt: skip
    """Fill the rings of loaded rows of x and dy."""
    X_STAGES: gl.constexpr = x_bufs.shape[0]
    DY_STAGES: gl.constexpr = dy_bufs.shape[0]
    num_samples, out_h, out_w, unit, _, _ = cut
    pad_h, pad_w = padding
    k, c, tap, split = _tile_of(channels, S, BLOCK, BANDS, BY_GROUP)
    start, share = _share_of(split, cut, BLOCK)
    strips = gl.cdiv(out_w, BLOCK[1])
    x_stage = 0
    x_phase = 1
    dy_stage = 0
    dy_phase = 1
    for index in range(gl.cdiv(num_samples, unit)):
        stop, first_strip, stop_strip = _strips_of(index, start, share, cut, BLOCK)
        for strip in range(first_strip, stop_strip):
            n = index * unit + strip // strips * BLOCK[0]
            w = strip % strips * BLOCK[1]
            first_row = gl.maximum(start - strip * out_h, 0)
            stop_row = gl.minimum(stop - strip * out_h, out_h)
            for row in range(first_row, stop_row + 2):
                mbarrier.wait(x_empty.index(x_stage), x_phase)
                x_bar = x_full.index(x_stage)
                mbarrier.expect(x_bar, x_desc.block_type.nbytes)
                load_box(x_desc, [n, row - pad_h, w + tap - pad_w, c], x_bar, x_bufs.index(x_stage))
                x_stage += 1
                if x_stage == X_STAGES:
                    x_stage = 0
                    x_phase ^= 1
                if row >= first_row + 2:
                    mbarrier.wait(dy_empty.index(dy_stage), dy_phase)
                    dy_bar = dy_full.index(dy_stage)
                    mbarrier.expect(dy_bar, dy_desc.block_type.nbytes)
                    load_box(dy_desc, [n, row - 2, w, k], dy_bar, dy_bufs.index(dy_stage))
                    dy_stage += 1
                    if dy_stage == DY_STAGES:
                        dy_stage = 0
                        dy_phase ^= 1


@gluon.jit
def _transpose(
    x_bufs, xt_bufs, x_full, x_empty, xt_full, xt_empty, channels, cut,
    S: gl.constexpr, BLOCK: gl.constexpr, BANDS: gl.constexpr, BY_GROUP: gl.constexpr,
):  # fmt: skip
    """Transpose rows of x, one after the other.

    A row is released after its transpose has been stored. At an earlier barrier loads from shared
    memory may still be in flight, and the next row would overwrite it (H200, 2026-11-21).
    """
    STAGES: gl.constexpr = x_bufs.shape[0]
    num_samples, _, _, unit, _, _ = cut
    _, _, _, split = _tile_of(channels, S, BLOCK, BANDS, BY_GROUP)
    start, share = _share_of(split, cut, BLOCK)
    stage = 0
    phase = 0
    slot = 0
    slot_phase = 1
    for index in range(gl.cdiv(num_samples, unit)):
        stop, first_strip, stop_strip = _strips_of(index, start, share, cut, BLOCK)
        for _ in range(gl.maximum(stop - start, 0) + 2 * (stop_strip - first_strip)):
            mbarrier.wait(x_full.index(stage), phase)
            x = x_bufs.index(stage).reshape([PIXELS, CHANNELS]).load(X_LAYOUT)
            mbarrier.wait(xt_empty.index(slot), slot_phase)
            xt_bufs.index(slot).store(transposed_x(x, CHANNELS))
            fence_async_shared()
            mbarrier.arrive(xt_full.index(slot))
            mbarrier.arrive(x_empty.index(stage))
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1
            slot += 1
            if slot == ROWS:
                slot = 0
                slot_phase ^= 1


@gluon.jit
def _fragment(dy_bufs, dy_full, dy_row, HALF: gl.constexpr):
    """A group's channels of a row of dy as the left operand of products."""
    STAGES: gl.constexpr = dy_bufs.shape[0]
    mbarrier.wait(dy_full.index(dy_row % STAGES), dy_row // STAGES & 1)
    row = dy_bufs.index(dy_row % STAGES).reshape([PIXELS, dy_bufs.shape[4]])
    channels = row.slice(HALF * CHANNELS, CHANNELS, dim=1).load(DY_LAYOUT)
    return gl.convert_layout(transposed_dy(channels), FRAGMENT, assert_trivial=True)


@gluon.jit
def _add_row(upper, mid, lower, dy, xt_bufs, xt_full, x_row):
    """Start to add the products of a row of dy with three rows of x."""
    last = x_row + 2
    mbarrier.wait(xt_full.index(last % ROWS), last // ROWS & 1)
    upper = warpgroup_mma(dy, xt_bufs.index(x_row % ROWS).permute([1, 0]), upper, is_async=True)
    mid = warpgroup_mma(dy, xt_bufs.index((x_row + 1) % ROWS).permute([1, 0]), mid, is_async=True)
    lower = warpgroup_mma(dy, xt_bufs.index(last % ROWS).permute([1, 0]), lower, is_async=True)
    return upper, mid, lower


@gluon.jit
def _sums_at(
    partials_ptr, at, offs_k, offs_c, channels, S: gl.constexpr, BANDS: gl.constexpr,
    BY_GROUP: gl.constexpr,
):  # fmt: skip
    """Pointers to the sums of a tap of the first row, their mask, and the step to the next row."""
    row, tap, k = at
    in_c, out_c, in_width, out_width, _ = channels
    if BY_GROUP:
        group = k // out_width
        offs_c -= group * in_width
        offs_tap = (row.to(gl.int64) * out_c + offs_k) * (3 * S) + tap
        ptrs = partials_ptr + gl.expand_dims(offs_tap, 1) * in_width + gl.expand_dims(offs_c, 0)
        inside = gl.expand_dims(offs_k < (group + 1) * out_width, 1)
        return ptrs, inside & gl.expand_dims(offs_c < in_width, 0), S * in_width
    if BANDS:
        # Outputs beyond the map have no group. One comparison and sums of a row's and a column's
        # offset keep pointers and masks out of registers.
        start = gl.where(offs_k < out_c, offs_k // out_width * in_width, 1 << 30)
        own = gl.expand_dims(offs_c, 0) - gl.expand_dims(start, 1)
        offs = gl.expand_dims((offs_k * (3 * S) + tap) * in_width - start, 1)
        ptrs = partials_ptr + row.to(gl.int64) * (out_c * (3 * S) * in_width)
        mask = own.to(gl.uint32, bitcast=True) < in_width.to(gl.uint32)
        return ptrs + (offs + gl.expand_dims(offs_c, 0)), mask, S * in_width
    offs_tap = (row.to(gl.int64) * out_c + offs_k) * (3 * S) + tap
    ptrs = partials_ptr + gl.expand_dims(offs_tap, 1) * in_c + gl.expand_dims(offs_c, 0)
    mask = gl.expand_dims(offs_k < out_c, 1) & gl.expand_dims(offs_c < in_c, 0)
    return ptrs, mask, S * in_c


@gluon.jit
def _release(empty, start, stop):
    for row in range(start, stop):
        mbarrier.arrive(empty.index(row % empty.shape[0]))


@gluon.jit
def _sum(
    partials_ptr, first, dy_bufs, xt_bufs, dy_full, dy_empty, xt_full, xt_empty,
    channels, cut, GROUP: gl.constexpr, S: gl.constexpr, BLOCK: gl.constexpr, BANDS: gl.constexpr,
    BY_GROUP: gl.constexpr,
):  # fmt: skip
    """Sum the products of a group's 64 channels, or of every second row if a block has only 64.

    The next row of dy is loaded while the products of a row run. A row of dy is released only after
    its products have ended.
    """
    EVERY: gl.constexpr = 2 * CHANNELS // BLOCK[2]
    OWN: gl.constexpr = GROUP % EVERY
    HALF: gl.constexpr = GROUP - OWN
    num_samples, out_h, _, unit, _, _ = cut
    k, c, tap, split = _tile_of(channels, S, BLOCK, BANDS, BY_GROUP)
    start, share = _share_of(split, cut, BLOCK)
    offs_k = k + HALF * CHANNELS + gl.arange(0, CHANNELS, gl.SliceLayout(1, PARTIALS))
    offs_c = c + gl.arange(0, CHANNELS, gl.SliceLayout(0, PARTIALS))
    at = (EVERY * split + OWN, tap, k)
    if BANDS:
        # Triton 3.6 would keep pointers from here to the stores and spill 3.6 KB of registers.
        upper = gl.zeros([CHANNELS, CHANNELS], gl.float32, SUMS)
        mid = gl.zeros([CHANNELS, CHANNELS], gl.float32, SUMS)
        lower = gl.zeros([CHANNELS, CHANNELS], gl.float32, SUMS)
        if first == 0:
            ptrs, mask, below = _sums_at(
                partials_ptr, at, offs_k, offs_c, channels, S, BANDS, BY_GROUP
            )
            upper = load_sum(ptrs, mask, SUMS)
            mid = load_sum(ptrs + below, mask, SUMS)
            lower = load_sum(ptrs + 2 * below, mask, SUMS)
    else:
        ptrs, mask, below = _sums_at(partials_ptr, at, offs_k, offs_c, channels, S, BANDS, BY_GROUP)
        upper = load_sum(ptrs, mask & (first == 0), SUMS)
        mid = load_sum(ptrs + below, mask & (first == 0), SUMS)
        lower = load_sum(ptrs + 2 * below, mask & (first == 0), SUMS)
    x_rows = 0  # rows of x in all units before
    dy_rows = 0  # rows of dy in all units before
    kept = 0  # the first row of x that is not released
    for index in range(gl.cdiv(num_samples, unit)):
        stop, first_strip, stop_strip = _strips_of(index, start, share, cut, BLOCK)
        steps = gl.maximum(stop - start, 0)
        own_steps = gl.maximum(steps - OWN + EVERY - 1, 0) // EVERY
        if own_steps > 0:
            dy = _fragment(dy_bufs, dy_full, dy_rows + OWN, HALF)
            for i in range(own_steps - 1):
                step = i * EVERY + OWN
                x_row = x_rows + step + 2 * ((start + step) // out_h - first_strip)
                upper, mid, lower = _add_row(upper, mid, lower, dy, xt_bufs, xt_full, x_row)
                next_dy = _fragment(dy_bufs, dy_full, dy_rows + step + EVERY, HALF)
                upper, mid, lower, dy = warpgroup_mma_wait(0, deps=[upper, mid, lower, dy])
                dy = next_dy
                mbarrier.arrive(dy_empty.index((dy_rows + step) % dy_empty.shape[0]))
                _release(xt_empty, kept, x_row + 1)
                kept = x_row + 1
            step = (own_steps - 1) * EVERY + OWN
            x_row = x_rows + step + 2 * ((start + step) // out_h - first_strip)
            upper, mid, lower = _add_row(upper, mid, lower, dy, xt_bufs, xt_full, x_row)
            upper, mid, lower = warpgroup_mma_wait(0, deps=[upper, mid, lower])
            mbarrier.arrive(dy_empty.index((dy_rows + step) % dy_empty.shape[0]))
        x_rows += steps + 2 * (stop_strip - first_strip)
        dy_rows += steps
        last = x_rows - 1  # perhaps read by the other group alone: wait for it before its release
        mbarrier.wait(xt_full.index(last % ROWS), last // ROWS & 1, pred=kept < x_rows)
        _release(xt_empty, kept, x_rows)
        kept = x_rows + 0
    if BANDS:
        ptrs, mask, below = _sums_at(partials_ptr, at, offs_k, offs_c, channels, S, BANDS, BY_GROUP)
    store_sum(ptrs, upper, mask, PARTIALS)
    store_sum(ptrs + below, mid, mask, PARTIALS)
    store_sum(ptrs + 2 * below, lower, mask, PARTIALS)


@gluon.jit(do_not_specialize=SIZES)
def grad_weight_transposed_kernel(
    x_desc, dy_desc, partials_ptr,
    first, num_samples, out_h, out_w, in_c, out_c, in_width, out_width, last_band,
    unit, splits, range_start, pad_h, pad_w,
    S: gl.constexpr, BANDS: gl.constexpr, BY_GROUP: gl.constexpr,
    X_STAGES: gl.constexpr, DY_STAGES: gl.constexpr,
) -> None:  # fmt: skip
    """Weight gradient of filters of three rows at stride 1. A step is a row of 32 pixels.

    The pixels are of one or of several samples. A block of dy has 128 channels, or 64: then each of
    the two groups has a sum of its own.
    """
    ROW: gl.constexpr = dy_desc.block_type.shape
    BLOCK: gl.constexpr = (ROW[0], ROW[2], ROW[3])
    TRANSPOSED: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    x_bufs = buffers(x_desc, X_STAGES)
    dy_bufs = buffers(dy_desc, DY_STAGES)
    xt_bufs = gl.allocate_shared_memory(gl.float32, [ROWS, CHANNELS, PIXELS], TRANSPOSED)
    x_full = barriers(X_STAGES, 1)
    x_empty = barriers(X_STAGES, 1)
    dy_full = barriers(DY_STAGES, 1)
    dy_empty = barriers(DY_STAGES, BLOCK[2] // CHANNELS)
    xt_full = barriers(ROWS, 1)
    xt_empty = barriers(ROWS, 2)
    channels = (in_c, out_c, in_width, out_width, last_band)
    cut = (num_samples, out_h, out_w, unit, splits, range_start)
    gl.warp_specialize(
        [
            (_sum, (
                partials_ptr, first, dy_bufs, xt_bufs, dy_full, dy_empty, xt_full, xt_empty,
                channels, cut, 0, S, BLOCK, BANDS, BY_GROUP,
            )),
            (_sum, (
                partials_ptr, first, dy_bufs, xt_bufs, dy_full, dy_empty, xt_full, xt_empty,
                channels, cut, 1, S, BLOCK, BANDS, BY_GROUP,
            )),
            (_transpose, (
                x_bufs, xt_bufs, x_full, x_empty, xt_full, xt_empty, channels, cut, S, BLOCK, BANDS,
                BY_GROUP,
            )),
            (_load, (
                x_desc, dy_desc, x_bufs, dy_bufs, x_full, x_empty, dy_full, dy_empty,
                channels, (pad_h, pad_w), cut, S, BLOCK, BANDS, BY_GROUP,
            )),
        ],
        [4, 4, 1],
        [168, 88, 88],
    )  # fmt: skip
