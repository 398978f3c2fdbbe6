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

SIZES: Final = (
    "first", "num_samples", "out_h", "out_w", "unit", "splits", "range_start", "pad_h", "pad_w",
)  # fmt: skip

PIXELS: Final = gl.constexpr(32)  # pixels of a row: 128 bytes of a channel
CHANNELS: Final = gl.constexpr(64)  # channels of x, and of dy for a group of warps
ROWS: Final = gl.constexpr(8)  # rows of x in the ring, of which three are read at a time
SUMS: Final = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 8]))
FRAGMENT: Final = gl.constexpr(gl.DotOperandLayout(0, SUMS.value, 1))
# [pixels, channels], such that `_transposed_dy` gives a FRAGMENT. Loads have no bank conflicts.
DY_LAYOUT: Final = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 8], [1, 0], [8, 0], [16, 0]],
        lane_bases=[[2, 0], [4, 0], [0, 1], [0, 2], [0, 4]],
        warp_bases=[[0, 16], [0, 32]],
        block_bases=[],
        shape=[32, 64],
    )
)
# [pixels, channels]. Threads load four channels at a time and store four pixels. `_transposed_x`
# orders channels such that no two of eight lanes conflict in a bank.
X_LAYOUT: Final = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [2, 0], [4, 0]],
        lane_bases=[[0, 4], [0, 8], [0, 16], [1, 0], [8, 0]],
        warp_bases=[[16, 0], [0, 32]],
        block_bases=[],
        shape=[32, 64],
    )
)
# [output channels, input channels]: SUMS with another order of registers.
PARTIALS: Final = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [0, 32], [8, 0]],
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 64],
    )
)


@gluon.jit
def _transposed_dy(row):
    """dy [channels, pixels]. Each eight pixels have the order 0 2 4 6 1 3 5 7."""
    return row.reshape([4, 4, 2, 64]).permute([3, 0, 2, 1]).reshape([64, 32])


@gluon.jit
def _transposed_x(row):
    """x [channels, pixels], with the order of pixels of `_transposed_dy`.

    Each 32 channels have the order 0 4 ... 28, 1 5 ... 29, 2 6 ... 30, 3 7 ... 31.
    """
    parts = row.reshape([4, 4, 2, 2, 8, 4]).permute([3, 5, 4, 0, 2, 1])
    return parts.reshape([64, 32])


@gluon.jit
def _load_sum(ptrs, mask):
    """The running sum of earlier launches, with columns in the order of `_transposed_x`."""
    acc = gl.load(ptrs, mask=mask, other=0.0)
    acc = acc.reshape([64, 2, 8, 4]).permute([0, 1, 3, 2]).reshape([64, 64])
    return gl.convert_layout(acc, SUMS)


@gluon.jit
def _store_sum(ptrs, acc, mask):
    """Store a running sum, with columns in the order of channels."""
    acc = acc.reshape([64, 2, 4, 8]).permute([0, 1, 3, 2]).reshape([64, 64])
    gl.store(ptrs, gl.convert_layout(acc, PARTIALS), mask=mask)


# The steps of a unit are the rows of one strip of maps after another. A strip is as wide as a step.
# The steps of a split in one strip need two more rows of x than of dy.


@gluon.jit
def _tile_of(channels, S: gl.constexpr, BLOCK: gl.constexpr):
    """First output channel, first input channel, tap column, split in the range of a program.

    BLOCK are the samples, columns and output channels of a step.
    """
    tiles_c, tiles_k = gl.cdiv(channels[0], CHANNELS), gl.cdiv(channels[1], BLOCK[2])
    pid = gl.program_id(0)
    c = pid // S % tiles_c * CHANNELS
    k = pid // (S * tiles_c) % tiles_k * BLOCK[2]
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
    S: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Fill the rings of loaded rows of x and dy."""
    X_STAGES: gl.constexpr = x_bufs.shape[0]
    DY_STAGES: gl.constexpr = dy_bufs.shape[0]
    num_samples, out_h, out_w, unit, _, _ = cut
    pad_h, pad_w = padding
    k, c, tap, split = _tile_of(channels, S, BLOCK)
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
    S: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Transpose rows of x, one after the other.

    A row is released after its transpose has been stored. At an earlier barrier loads from shared
    memory may still be in flight, and the next row would overwrite it (H200, 2026-11-21).
    """
    STAGES: gl.constexpr = x_bufs.shape[0]
    num_samples, _, _, unit, _, _ = cut
    _, _, _, split = _tile_of(channels, S, BLOCK)
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
            xt_bufs.index(slot).store(_transposed_x(x))
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
    return gl.convert_layout(_transposed_dy(channels), FRAGMENT, assert_trivial=True)


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
def _release(empty, start, stop):
    for row in range(start, stop):
        mbarrier.arrive(empty.index(row % empty.shape[0]))


@gluon.jit
def _sum(
    partials_ptr, first, dy_bufs, xt_bufs, dy_full, dy_empty, xt_full, xt_empty,
    channels, cut, GROUP: gl.constexpr, S: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Sum the products of a group's 64 channels, or of every second row if a block has only 64.

    The next row of dy is loaded while the products of a row run. A row of dy is released only after
    its products have ended.
    """
    EVERY: gl.constexpr = 2 * CHANNELS // BLOCK[2]
    OWN: gl.constexpr = GROUP % EVERY
    HALF: gl.constexpr = GROUP - OWN
    in_c, out_c = channels
    num_samples, out_h, _, unit, _, _ = cut
    k, c, tap, split = _tile_of(channels, S, BLOCK)
    start, share = _share_of(split, cut, BLOCK)
    offs_k = k + HALF * CHANNELS + gl.arange(0, CHANNELS, gl.SliceLayout(1, PARTIALS))
    offs_c = c + gl.arange(0, CHANNELS, gl.SliceLayout(0, PARTIALS))
    offs_tap = ((EVERY * split + OWN).to(gl.int64) * out_c + offs_k) * (3 * S) + tap
    ptrs = partials_ptr + gl.expand_dims(offs_tap, 1) * in_c + gl.expand_dims(offs_c, 0)
    mask = gl.expand_dims(offs_k < out_c, 1) & gl.expand_dims(offs_c < in_c, 0)
    below = S * in_c
    upper = _load_sum(ptrs, mask & (first == 0))
    mid = _load_sum(ptrs + below, mask & (first == 0))
    lower = _load_sum(ptrs + 2 * below, mask & (first == 0))
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
    _store_sum(ptrs, upper, mask)
    _store_sum(ptrs + below, mid, mask)
    _store_sum(ptrs + 2 * below, lower, mask)


@gluon.jit(do_not_specialize=SIZES)
def grad_weight_transposed_kernel(
    x_desc, dy_desc, partials_ptr,
    first, num_samples, out_h, out_w, in_c, out_c, unit, splits, range_start, pad_h, pad_w,
    S: gl.constexpr, X_STAGES: gl.constexpr, DY_STAGES: gl.constexpr,
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
    channels = (in_c, out_c)
    cut = (num_samples, out_h, out_w, unit, splits, range_start)
    gl.warp_specialize(
        [
            (_sum, (
                partials_ptr, first, dy_bufs, xt_bufs, dy_full, dy_empty, xt_full, xt_empty,
                channels, cut, 0, S, BLOCK,
            )),
            (_sum, (
                partials_ptr, first, dy_bufs, xt_bufs, dy_full, dy_empty, xt_full, xt_empty,
                channels, cut, 1, S, BLOCK,
            )),
            (_transpose, (
                x_bufs, xt_bufs, x_full, x_empty, xt_full, xt_empty, channels, cut, S, BLOCK,
            )),
            (_load, (
                x_desc, dy_desc, x_bufs, dy_bufs, x_full, x_empty, dy_full, dy_empty,
                channels, (pad_h, pad_w), cut, S, BLOCK,
            )),
        ],
        [4, 4, 1],
        [168, 88, 88],
    )  # fmt: skip
