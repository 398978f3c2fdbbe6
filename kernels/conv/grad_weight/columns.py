"""Weight gradients in TF32 on Hopper by products of 256 x 128: columns of x are transposed once.

A column is a channel of x at one tap. TF32 products need adjacent pixels, over which the sum runs;
in maps channels are adjacent. Four warps load columns from global memory, at any stride, and store
them transposed. Two groups of four warps load dy to registers, which transposes it, and sum.

A step is 32 pixels. Its products of 256 x 128 take 1,024 clocks of the tensor cores. Shared memory
is busy for 1,280: 512 with what products read, 256 with dy by TMA, 256 with dy to registers, 128
with x to registers, 128 with what is transposed. By mma.sync the products of 128 x 256 take 1,700
clocks at least (computed for an H200, 2026-11).

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
from .columns_layouts import (
    COLUMNS,
    DY_LAYOUT,
    FRAGMENT,
    OUTPUTS,
    PARTIALS,
    PIXELS,
    QUAD,
    QUADS,
    SUMS,
    X_LAYOUT,
)
from .transposed_layouts import load_sum, store_sum, transposed_dy, transposed_x

SIZES: Final = (
    "first", "num_samples", "in_h", "in_w", "out_h", "out_w", "in_quads", "out_c", "x_pitch",
    "unit", "splits", "range_start", "pad_h", "pad_w", "dil_h", "dil_w",
)  # fmt: skip


@gluon.jit
def _tile_of(sizes, TAPS: gl.constexpr, BLOCK_K: gl.constexpr):
    """First output channel, first column, split in the range of a program.

    `sizes` are quads of four input channels, and output channels.
    """
    in_quads, out_c = sizes
    tiles_e = gl.cdiv(TAPS * in_quads, QUADS)
    tiles_k = gl.cdiv(out_c, BLOCK_K)
    pid = gl.program_id(0)
    e = pid % tiles_e * COLUMNS
    k = pid // tiles_e % tiles_k * BLOCK_K
    return k, e, pid // (tiles_e * tiles_k)


@gluon.jit
def _steps_of(split, cut):
    """Whole units; steps of a unit; a split's first step, its steps of a unit and of the rest.

    Behind whole units there is a rest of fewer samples. A whole unit has whole steps if there are
    several. `cut` are samples, pixels of a sample, samples of a unit, splits, the first split.
    """
    num_samples, pixels, unit, splits, range_start = cut
    units = num_samples // unit
    steps = gl.cdiv(unit * pixels, PIXELS)
    share = gl.cdiv(steps, splits)
    start = (range_start + split) * share
    rest = gl.cdiv(num_samples % unit * pixels, PIXELS)
    own = gl.maximum(gl.minimum(share, steps - start), 0)
    return units, steps, start, own, gl.maximum(gl.minimum(share, rest - start), 0)


@gluon.jit
def _step_behind(unit, step, own):
    """The unit and the step of a split in it behind these."""
    step += 1
    if step == own:
        step = 0
        unit += 1
    return unit, step


@gluon.jit
def _pixel_of(unit, step, steps, start):
    """The first pixel of a step of a split."""
    return (unit * steps + start + step) * PIXELS


@gluon.jit
def _columns_at(x_ptr, pixel, end, quad, shifts, sides, x_pitch, FLAT: gl.constexpr,
                STRIDE_H: gl.constexpr, STRIDE_W: gl.constexpr):  # fmt: skip
    """Columns [PIXELS, QUADS, 4] of pixels from `pixel` on, zeros from `end` on.

    `quad` [QUADS] are quads of channels, -1 behind the last column, `shifts` where
    their taps start.
    """
    in_h, in_w, out_h, out_w = sides
    ACROSS: gl.constexpr = gl.SliceLayout(2, X_LAYOUT)
    p = pixel + gl.arange(0, PIXELS, gl.SliceLayout(1, ACROSS))
    inside = gl.expand_dims(p < end, 1) & gl.expand_dims(quad >= 0, 0)
    if FLAT:
        place = gl.expand_dims(p, 1).to(gl.int64)
    else:
        row = p // out_w
        n = row // out_h
        y = (row - n * out_h) * STRIDE_H
        x = (p - row * out_w) * STRIDE_W
        h = gl.expand_dims(y, 1) + gl.expand_dims(shifts[0], 0)
        w = gl.expand_dims(x, 1) + gl.expand_dims(shifts[1], 0)
        inside &= (h >= 0) & (h < in_h) & (w >= 0) & (w < in_w)
        place = ((gl.expand_dims(n * in_h, 1) + h) * in_w + w).to(gl.int64)
    offs = (place * x_pitch + gl.expand_dims(quad, 0)) * QUAD
    within = gl.arange(0, QUAD, gl.SliceLayout(0, gl.SliceLayout(0, X_LAYOUT)))
    offs = gl.expand_dims(offs, 2) + gl.expand_dims(gl.expand_dims(within, 0), 0)
    return gl.load(x_ptr + offs, mask=gl.expand_dims(inside, 2), other=0.0)


@gluon.jit
def _put(x, i, dy_desc, at, dy_bufs, xt_bufs, full, empty):
    """Put columns and the block of dy `at` a place in the ring, as step i of a program."""
    STAGES: gl.constexpr = xt_bufs.shape[0]
    stage = i % STAGES
    mbarrier.wait(empty.index(stage), (i // STAGES & 1) ^ 1)
    bar = full.index(stage)
    mbarrier.expect(bar, dy_desc.block_type.nbytes)
    load_box(dy_desc, at, bar, dy_bufs.index(stage))
    xt_bufs.index(stage).store(transposed_x(x, COLUMNS))
    fence_async_shared()
    mbarrier.arrive(bar)


@gluon.jit
def _transpose(
    x_ptr, dy_desc, dy_bufs, xt_bufs, full, empty, x_pitch, sizes, sides, geometry, cut,
    R: gl.constexpr, S: gl.constexpr, FLAT: gl.constexpr,
    STRIDE_H: gl.constexpr, STRIDE_W: gl.constexpr,
):  # fmt: skip
    """Fill the ring: dy by TMA, and columns of x, loaded two steps ahead.

    Two steps are a round of the loop: one would move registers, and wait for what they load.
    """
    k, e, split = _tile_of(sizes, R * S, dy_bufs.shape[2])
    units, steps, start, own, rest = _steps_of(split, cut)
    total = units * own + rest
    each = own
    if units == 0:
        each = rest
    end = cut[0] * cut[1]
    pad_h, pad_w, dil_h, dil_w = geometry
    in_quads, _ = sizes
    quad = e // QUAD + gl.arange(0, QUADS, gl.SliceLayout(0, gl.SliceLayout(2, X_LAYOUT)))
    tap = quad // in_quads
    shifts = (tap // S * dil_h - pad_h, tap % S * dil_w - pad_w)
    quad = gl.where(tap < R * S, quad - tap * in_quads, -1)
    even = gl.zeros([PIXELS, QUADS, QUAD], gl.float32, X_LAYOUT)
    odd = gl.zeros([PIXELS, QUADS, QUAD], gl.float32, X_LAYOUT)
    unit = 0
    step = 0
    next_unit = 0
    next_step = 0
    for i in range(0, total + 2, 2):
        if i >= 2:
            pixel = _pixel_of(unit, step, steps, start)
            _put(even, i - 2, dy_desc, [pixel, k], dy_bufs, xt_bufs, full, empty)
            unit, step = _step_behind(unit, step, each)
        pixel = _pixel_of(next_unit, next_step, steps, start)
        even = _columns_at(
            x_ptr, pixel, gl.where(i < total, end, 0), quad, shifts, sides, x_pitch, FLAT,
            STRIDE_H, STRIDE_W,
        )  # fmt: skip
        next_unit, next_step = _step_behind(next_unit, next_step, each)
        if (i >= 2) & (i - 1 < total):
            pixel = _pixel_of(unit, step, steps, start)
            _put(odd, i - 1, dy_desc, [pixel, k], dy_bufs, xt_bufs, full, empty)
            unit, step = _step_behind(unit, step, each)
        pixel = _pixel_of(next_unit, next_step, steps, start)
        odd = _columns_at(
            x_ptr, pixel, gl.where(i + 1 < total, end, 0), quad, shifts, sides, x_pitch, FLAT,
            STRIDE_H, STRIDE_W,
        )  # fmt: skip
        next_unit, next_step = _step_behind(next_unit, next_step, each)


@gluon.jit
def _sums_at(partials_ptr, row, k, e, sizes, TAPS: gl.constexpr):
    """Pointers to the sums of a group in row `row`, and their mask."""
    in_quads, out_c = sizes
    quads = TAPS * in_quads
    offs_k = k + gl.arange(0, OUTPUTS, gl.SliceLayout(1, PARTIALS))
    offs_e = e + gl.arange(0, COLUMNS, gl.SliceLayout(0, PARTIALS))
    offs = gl.expand_dims(offs_k * quads * QUAD, 1) + gl.expand_dims(offs_e, 0)
    mask = gl.expand_dims(offs_k < out_c, 1) & gl.expand_dims(offs_e < quads * QUAD, 0)
    return partials_ptr + row.to(gl.int64) * out_c * quads * QUAD + offs, mask


@gluon.jit
def _fragment(dy_bufs, full, step, HALF: gl.constexpr):
    """A group's channels of a step of dy as the left operand of products."""
    STAGES: gl.constexpr = dy_bufs.shape[0]
    stage = step % STAGES
    mbarrier.wait(full.index(stage), step // STAGES & 1)
    rows = dy_bufs.index(stage).slice(HALF * OUTPUTS, OUTPUTS, dim=1).load(DY_LAYOUT)
    return gl.convert_layout(transposed_dy(rows), FRAGMENT, assert_trivial=True)


@gluon.jit
def _sum(
    partials_ptr, first, dy_bufs, xt_bufs, full, empty, sizes, cut,
    GROUP: gl.constexpr, TAPS: gl.constexpr,
):  # fmt: skip
    """Sum the products of a group's 128 channels.

    Steps are counted within a unit: no sum depends on the units of a launch.
    """
    STAGES: gl.constexpr = xt_bufs.shape[0]
    k, e, split = _tile_of(sizes, TAPS, dy_bufs.shape[2])
    units, _, _, own, rest = _steps_of(split, cut)
    # Pointers that were kept from here to the stores would take 32 registers.
    acc = gl.zeros([OUTPUTS, COLUMNS], gl.float32, SUMS)
    if first == 0:
        ptrs, mask = _sums_at(partials_ptr, split, k + GROUP * OUTPUTS, e, sizes, TAPS)
        acc = load_sum(ptrs, mask, SUMS)
    before = 0
    for unit in range(units + 1):
        count = gl.where(unit < units, own, rest)
        for i in range(count):
            stage = (before + i) % STAGES
            dy = _fragment(dy_bufs, full, before + i, GROUP)
            xt = xt_bufs.index(stage).permute([1, 0])
            acc = warpgroup_mma(dy, xt, acc, is_async=True)
            acc, dy = warpgroup_mma_wait(0, deps=[acc, dy])
            mbarrier.arrive(empty.index(stage))
        before += count
    ptrs, mask = _sums_at(partials_ptr, split, k + GROUP * OUTPUTS, e, sizes, TAPS)
    store_sum(ptrs, acc, mask, PARTIALS)


@gluon.jit(do_not_specialize=SIZES)
def grad_weight_columns_kernel(
    x_ptr, dy_desc, partials_ptr,
    first, num_samples, in_h, in_w, out_h, out_w, in_quads, out_c, x_pitch,
    unit, splits, range_start, pad_h, pad_w, dil_h, dil_w,
    R: gl.constexpr, S: gl.constexpr, STRIDE_H: gl.constexpr, STRIDE_W: gl.constexpr,
    FLAT: gl.constexpr, STAGES: gl.constexpr,
) -> None:  # fmt: skip
    """Weight gradient of filters without groups; FLAT of pointwise ones at stride 1.

    `in_quads` and `x_pitch` are in units of four channels. Each of two groups of warps sums half of
    the channels of a block of dy.
    """
    TRANSPOSED: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    dy_bufs = buffers(dy_desc, STAGES)
    xt_bufs = gl.allocate_shared_memory(gl.float32, [STAGES, COLUMNS, PIXELS], TRANSPOSED)
    full = barriers(STAGES, 2)
    empty = barriers(STAGES, 2)
    sizes = (in_quads, out_c)
    sides = (in_h, in_w, out_h, out_w)
    geometry = (pad_h, pad_w, dil_h, dil_w)
    cut = (num_samples, out_h * out_w, unit, splits, range_start)
    gl.warp_specialize(
        [
            (_sum, (
                partials_ptr, first, dy_bufs, xt_bufs, full, empty, sizes, cut, 0, R * S,
            )),
            (_sum, (
                partials_ptr, first, dy_bufs, xt_bufs, full, empty, sizes, cut, 1, R * S,
            )),
            (_transpose, (
                x_ptr, dy_desc, dy_bufs, xt_bufs, full, empty, x_pitch, sizes, sides, geometry, cut,
                R, S, FLAT, STRIDE_H, STRIDE_W,
            )),
        ],
        [4, 4],
        [200, 104],
    )  # fmt: skip
