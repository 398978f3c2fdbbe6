"""The kernel of tma.py for Hopper with specialised warps.

One warp loads. Two groups of four warps take tiles alternately: one group stores its tile and loads
the mask of its next one while the products of the other run. The bits are those of tma.py. The
kernel is written in Gluon, which the interpreter does not run.

Every variable that a loop changes starts from a number. On triton 3.6 a loop loses a variable that
started as another variable, and the kernel hangs.
"""

from typing import Final

from ..language.gluon import (
    gl,
    gluon,
    load_box,
    mbarrier,
    reinterpreted,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from ..language.hopper import barriers, buffers, rounded, sum_of_ring
from .bands import band_start
from .warp_specialized_epilogue import (
    fetch_mask,
    masked_by_bits,
    max_of_windows,
    store_codes,
    store_moments,
    store_tile,
)

SIZES: Final = (
    "num_samples", "height", "width", "pitch", "pad_h", "pad_w", "dil_h", "dil_w",
    "in_width", "out_width", "last_band",
)  # fmt: skip


@gluon.jit
def _place_of(tile, tiles_h, tiles_w, tiles_k, block):
    """Sample, row, column and channel at which a tile starts. `block` has the sides of a tile."""
    box = tile // tiles_k
    n = box // (tiles_w * tiles_h) * block[0]
    h = box // tiles_w % tiles_h * block[1]
    return n, h, box % tiles_w * block[2], tile % tiles_k * block[3]


@gluon.jit
def _band_of(k, bands, BANDS: gl.constexpr):
    """The first input channel that the tile of output channels from k on reads."""
    in_width, out_width, last_band = bands
    return band_start(k, in_width, out_width, last_band) if BANDS else 0


@gluon.jit
def _load_boxes(
    x_desc, packed_desc, x_bufs, packed_bufs, full, empty, tiles, pitch, steps_c, offsets,
    bands, R: gl.constexpr, S: gl.constexpr, BLOCK: gl.constexpr, BANDS: gl.constexpr,
):  # fmt: skip
    """Fill the ring of stages, one step of one tile after the other.

    At stride 2 x has 5 axes [samples, rows / 2, 2, columns / 2, pitch + channels].
    """
    STAGES: gl.constexpr = x_bufs.shape[0]
    AXES: gl.constexpr = len(x_desc.block_type.shape)
    BLOCK_C: gl.constexpr = x_desc.block_type.shape[AXES - 1]
    num_tiles, tiles_h, tiles_w, tiles_k = tiles
    pad_h, pad_w, dil_h, dil_w, packed_h, packed_w = offsets
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        n, h, w, k = _place_of(tile, tiles_h, tiles_w, tiles_k, BLOCK)
        band = _band_of(k, bands, BANDS)
        for step in range(R * S * steps_c):
            r = step % R
            s = step // R // steps_c
            c = step // R % steps_c * BLOCK_C
            mbarrier.wait(empty.index(stage), phase)
            bar = full.index(stage)
            mbarrier.expect(bar, x_desc.block_type.nbytes + packed_desc.block_type.nbytes)
            row = r * dil_h - pad_h
            column = s * dil_w - pad_w
            if AXES == 5:
                channel = (column & 1) * pitch + band + c
                place = [n, h + (row >> 1), row & 1, w + (column >> 1), channel]
            else:
                place = [n, h + row, w + column, band + c]
            load_box(x_desc, place, bar, x_bufs.index(stage))
            place = [k, r * packed_h + s * packed_w + c]
            load_box(packed_desc, place, bar, packed_bufs.index(stage))
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@gluon.jit
def _load_rows(
    x_desc, edge_desc, packed_desc, x_rows, packed_bufs, full, empty, packed_full, packed_empty,
    tiles, steps_c, offsets, bands, R: gl.constexpr, S: gl.constexpr, BLOCK: gl.constexpr,
    BANDS: gl.constexpr,
):  # fmt: skip
    """`_load_boxes` with stages of the rows that the R taps of a column read, and of R weights."""
    BLOCK_C: gl.constexpr = x_rows.shape[2]
    HEIGHT: gl.constexpr = BLOCK[1] + R - 1
    BOX: gl.constexpr = x_desc.block_type.shape
    EDGE: gl.constexpr = edge_desc.block_type.shape
    num_tiles, tiles_h, tiles_w, tiles_k = tiles
    pad_h, pad_w, _, dil_w, packed_h, packed_w = offsets
    count = 0
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        n, h, w, k = _place_of(tile, tiles_h, tiles_w, tiles_k, BLOCK)
        band = _band_of(k, bands, BANDS)
        for step in range(S * steps_c):
            column = w - pad_w + step // steps_c * dil_w
            c = step % steps_c * BLOCK_C
            stage = count % full.shape[0]
            mbarrier.wait(empty.index(stage), count // full.shape[0] & 1 ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, x_desc.block_type.nbytes + edge_desc.block_type.nbytes)
            rows = reinterpreted(x_rows.index(stage * HEIGHT), x_desc.dtype, BOX, x_desc.layout)
            load_box(x_desc, [n, h - pad_h, column, band + c], bar, rows)
            rows = x_rows.index(stage * HEIGHT + BLOCK[1])
            rows = reinterpreted(rows, x_desc.dtype, EDGE, edge_desc.layout)
            row = h - pad_h + BLOCK[1]
            load_box(edge_desc, [n, row, column, band + c], bar, rows)

            stage = count % packed_full.shape[0]
            mbarrier.wait(packed_empty.index(stage), count // packed_full.shape[0] & 1 ^ 1)
            bar = packed_full.index(stage)
            mbarrier.expect(bar, R * packed_desc.block_type.nbytes)
            for r in gl.static_range(R):
                place = [k, r * packed_h + step // steps_c * packed_w + c]
                buf = packed_bufs.index(stage * R + r)
                load_box(packed_desc, place, bar, buf)
            count += 1


@gluon.jit
def _load(
    x_desc, edge_desc, packed_desc, x_bufs, packed_bufs, full, empty, packed_full, packed_empty,
    tiles, pitch, steps_c, offsets, bands, R: gl.constexpr, S: gl.constexpr, BLOCK: gl.constexpr,
    ROWS: gl.constexpr, BANDS: gl.constexpr,
):  # fmt: skip
    if ROWS > 1:
        _load_rows(
            x_desc, edge_desc, packed_desc, x_bufs, packed_bufs, full, empty, packed_full,
            packed_empty, tiles, steps_c, offsets, bands, R, S, BLOCK, BANDS,
        )  # fmt: skip
    else:
        _load_boxes(
            x_desc, packed_desc, x_bufs, packed_bufs, full, empty, tiles, pitch, steps_c, offsets,
            bands, R, S, BLOCK, BANDS,
        )  # fmt: skip


@gluon.jit
def _sum_rows(
    acc, x_rows, packed_bufs, full, empty, packed_full, packed_empty, turn, count, steps,
    R: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """`sum_of_ring` of the stages that `_load_rows` fills."""
    BOX: gl.constexpr = [BLOCK[1] * BLOCK[2], x_rows.shape[2]]
    HEIGHT: gl.constexpr = BLOCK[1] + R - 1
    for step in range(count, count + steps):
        stage = step % full.shape[0]
        packed_stage = step % packed_full.shape[0]
        mbarrier.wait(full.index(stage), step // full.shape[0] & 1)
        mbarrier.wait(packed_full.index(packed_stage), step // packed_full.shape[0] & 1)
        for r in gl.static_range(R):
            box = x_rows.index(stage * HEIGHT + r)
            box = reinterpreted(box, x_rows.dtype, BOX, x_rows.layout).permute([1, 0])
            acc = warpgroup_mma(packed_bufs.index(packed_stage * R + r), box, acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])
            if r == 0:
                last = gl.maximum(step - 1, 0)
                mbarrier.arrive(empty.index(last % full.shape[0]), pred=step > count)
                last = last % packed_full.shape[0]
                mbarrier.arrive(packed_empty.index(last), pred=step > count)
    mbarrier.arrive(turn)
    acc = warpgroup_mma_wait(0, deps=[acc])
    last = count + steps - 1
    mbarrier.arrive(empty.index(last % full.shape[0]))
    mbarrier.arrive(packed_empty.index(last % packed_full.shape[0]))
    return acc


@gluon.jit
def _compute(
    bias_ptr, mask, y_desc, codes_ptr, sums_ptr, moments_ptr, x_bufs, packed_bufs, y_buf,
    full, empty, packed_full, packed_empty, masked, turns, tiles, sides, mask_places, out_c, steps,
    TURN: gl.constexpr, BLOCK: gl.constexpr, HAS_BIAS: gl.constexpr, LOADS_MASK: gl.constexpr,
    BITS: gl.constexpr, RELU: gl.constexpr, POOL: gl.constexpr, ROUND: gl.constexpr,
    CELL: gl.constexpr, MOMENTS: gl.constexpr, ROWS: gl.constexpr,
):  # fmt: skip
    """Compute and store every second tile from tile TURN on."""
    PIXELS: gl.constexpr = BLOCK[0] * BLOCK[1] * BLOCK[2]
    BLOCK_K: gl.constexpr = BLOCK[3]
    STORED: gl.constexpr = y_desc.block_type.shape
    DEPTH: gl.constexpr = 256 // x_bufs.dtype.primitive_bitwidth
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PIXELS, DEPTH])
    num_tiles, tiles_h, tiles_w, tiles_k = tiles
    count = TURN * steps
    mask_phase = 0
    turn_phase = 1 - TURN
    first = gl.program_id(0) + TURN * gl.num_programs(0)
    for tile in range(first, num_tiles, 2 * gl.num_programs(0)):
        n, h, w, k = _place_of(tile, tiles_h, tiles_w, tiles_k, BLOCK)
        fetch_mask(mask, y_buf, masked, [n, h, w, k], LOADS_MASK)
        acc = gl.zeros([BLOCK_K, PIXELS], gl.float32, SUMS)
        mbarrier.wait(turns.index(TURN), turn_phase)
        turn_phase ^= 1
        other = turns.index(1 - TURN)
        if ROWS > 1:
            acc = _sum_rows(
                acc, x_bufs, packed_bufs, full, empty, packed_full, packed_empty, other,
                count, steps, ROWS, BLOCK,
            )  # fmt: skip
        else:
            acc = sum_of_ring(acc, packed_bufs, x_bufs, full, empty, other, count, steps)
        count += 2 * steps
        if HAS_BIAS:
            offs_k = k + gl.arange(0, BLOCK_K, gl.SliceLayout(1, SUMS))
            bias = gl.load(bias_ptr + offs_k, mask=offs_k < out_c, other=0.0)
            acc += gl.expand_dims(bias, 1)
        if RELU:
            acc = gl.where(acc <= 0, 0.0, acc)
        if ROUND:
            acc = rounded(acc)
        if BITS:
            acc = masked_by_bits(acc, mask, mask_places, [n, h, w, k], out_c, BLOCK)
        if POOL:
            acc, tap = max_of_windows(acc.to(y_desc.dtype).to(gl.float32), BLOCK)
            h = h // 2
            w = w // 2
            store_codes(codes_ptr, tap, n, h, w, k, sides, out_c, STORED)
        if STORED[1] * 2 == BLOCK[1] and not POOL:
            upper, lower = gl.split(acc.reshape([BLOCK_K, 2, PIXELS // 2]).permute([0, 2, 1]))
            place = [n, h, w, k]
            store_tile(
                upper, mask, y_desc, sums_ptr, y_buf, masked, mask_phase,
                place, sides, out_c, LOADS_MASK, CELL,
            )  # fmt: skip
            place = [n, h + STORED[1], w, k]
            fetch_mask(mask, y_buf, masked, place, LOADS_MASK)
            store_tile(
                lower, mask, y_desc, sums_ptr, y_buf, masked, mask_phase ^ 1,
                place, sides, out_c, LOADS_MASK, CELL,
            )  # fmt: skip
        else:
            place = [n, h, w, k]
            store_tile(
                acc, mask, y_desc, sums_ptr, y_buf, masked, mask_phase,
                place, sides, out_c, LOADS_MASK, CELL,
            )  # fmt: skip
            mask_phase ^= 1
        if MOMENTS:
            y = acc.to(y_desc.dtype).to(gl.float32)
            store_moments(moments_ptr, y, tile // tiles_k, [n, h, w, k], sides, out_c, BLOCK)
    tma.store_wait(0)


@gluon.jit
def _rows(x_desc, COUNT: gl.constexpr):
    """Shared memory for COUNT consecutive rows of pixels."""
    shape: gl.constexpr = [COUNT, x_desc.block_type.shape[2], x_desc.block_type.shape[3]]
    layout: gl.constexpr = gl.NVMMASharedLayout(128, x_desc.dtype.primitive_bitwidth, 2)
    return gl.allocate_shared_memory(x_desc.dtype, shape, layout)


@gluon.jit(do_not_specialize=SIZES)
def conv_specialized_kernel(
    x_desc, edge_desc, packed_desc, bias_ptr, mask, y_desc, codes_ptr, sums_ptr, moments_ptr,
    num_samples, height, width, in_c, out_c, pitch, pad_h, pad_w, dil_h, dil_w, packed_h, packed_w,
    mask_n, mask_h, mask_w, in_width, out_width, last_band,
    R: gl.constexpr, S: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_MASK: gl.constexpr,
    BITS: gl.constexpr, RELU: gl.constexpr, POOL: gl.constexpr, ROUND: gl.constexpr,
    CELL: gl.constexpr, MOMENTS: gl.constexpr, ROWS: gl.constexpr, BANDS: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_H: gl.constexpr, BLOCK_W: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, PACKED_STAGES: gl.constexpr,
) -> None:  # fmt: skip
    """A tile of outputs is a box of pixels, and each tap reads the same box shifted.

    At stride 2 a tap reads one of the four maps of even or odd rows and columns. The taps of a row
    of weights lie packed_h and packed_w elements apart. With BANDS a tile of output channels reads
    a band of in_c input channels (bands.py), else the first in_c. With POOL the maxima of windows
    2x2 are stored; height and width then count only rows and columns in windows, and boxes have at
    least 8 columns, so that no two threads share a window. CELL, if not 0, is the side of cells of
    the stored map whose sums are stored. With MOMENTS the moments of each box are stored.
    """
    BLOCK: gl.constexpr = [BLOCK_N, BLOCK_H, BLOCK_W, BLOCK_K]
    SIDE: gl.constexpr = CELL if CELL > 0 else 2 if POOL else 1  # of a cell or of a window
    sides = (num_samples, height // SIDE, width // SIDE)
    tiles_h = gl.cdiv(height, BLOCK[1])
    tiles_w = gl.cdiv(width, BLOCK[2])
    tiles_k = gl.cdiv(out_c, BLOCK[3])
    num_tiles = gl.cdiv(num_samples, BLOCK[0]) * tiles_h * tiles_w * tiles_k
    tiles = (num_tiles, tiles_h, tiles_w, tiles_k)
    steps_c = gl.cdiv(in_c, packed_desc.block_type.shape[1])
    steps = R * S * steps_c // ROWS
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 1)
    turns = barriers(2, 1)
    # Barriers that a variant never waits for are not allocated: their memory would overlap.
    if ROWS > 1:
        x_bufs = _rows(x_desc, STAGES * (BLOCK_H + ROWS - 1))
        packed_full = barriers(PACKED_STAGES, 1)
        packed_empty = barriers(PACKED_STAGES, 1)
    else:
        x_bufs = buffers(x_desc, STAGES)
        packed_full = full
        packed_empty = empty
    LOADS_MASK: gl.constexpr = HAS_MASK and not BITS
    masked = barriers(2, 1) if LOADS_MASK else turns
    mask_places = (num_samples, height, width, mask_n, mask_h, mask_w)
    packed_bufs = buffers(packed_desc, PACKED_STAGES * ROWS)
    y_bufs = buffers(y_desc, 2)
    gl.warp_specialize(
        [
            (_compute, (
                bias_ptr, mask, y_desc, codes_ptr, sums_ptr, moments_ptr, x_bufs, packed_bufs,
                y_bufs.index(0), full, empty, packed_full, packed_empty, masked.index(0), turns,
                tiles, sides, mask_places, out_c, steps,
                0, BLOCK, HAS_BIAS, LOADS_MASK, BITS, RELU, POOL, ROUND, CELL, MOMENTS, ROWS,
            )),
            (_compute, (
                bias_ptr, mask, y_desc, codes_ptr, sums_ptr, moments_ptr, x_bufs, packed_bufs,
                y_bufs.index(1), full, empty, packed_full, packed_empty, masked.index(1), turns,
                tiles, sides, mask_places, out_c, steps,
                1, BLOCK, HAS_BIAS, LOADS_MASK, BITS, RELU, POOL, ROUND, CELL, MOMENTS, ROWS,
            )),
            (_load, (
                x_desc, edge_desc, packed_desc, x_bufs, packed_bufs,
                full, empty, packed_full, packed_empty, tiles, pitch, steps_c,
                (pad_h, pad_w, dil_h, dil_w, packed_h, packed_w),
                (in_width, out_width, last_band), R, S, BLOCK, ROWS, BANDS,
            )),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
