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
    mbarrier,
    reinterpreted,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from ..language.hopper import barriers, buffers, rounded, sum_of_ring
from .bands import tiles_of
from .epilogue import stop_of
from .warp_specialized_epilogue import (
    fetch_mask,
    masked_by_bits,
    max_of_windows,
    store_codes,
    store_moments,
    store_tile,
)
from .warp_specialized_loads import load_tiles, tile_place
from .warp_specialized_remade import sum_of_remade

# None of them makes a load or a store of maps wider: descriptors have strides of their own.
SIZES: Final = (
    "num_samples", "height", "width", "in_c", "out_c", "taps_h", "taps_w", "pad_h", "pad_w",
    "dil_h", "dil_w", "packed_h", "packed_w", "mask_n", "mask_h", "mask_w", "in_width",
    "out_width", "last_band", "sample_pixels", "made_c",
)  # fmt: skip


@gluon.jit
def _add_part(acc, left, right, START: gl.constexpr, LENGTH: gl.constexpr):
    """Start to add the products of LENGTH channels from channel START of a stage on."""
    part = right.slice(START, LENGTH, dim=1).permute([1, 0])
    return warpgroup_mma(left.slice(START, LENGTH, dim=1), part, acc, is_async=True)


@gluon.jit
def _sum_of_group(
    acc, packed_bufs, x_bufs, full, empty, turn, count, taps_w,
    R: gl.constexpr, CHANNELS: gl.constexpr,
):  # fmt: skip
    """`sum_of_ring` over CHANNELS input channels, of which the last step of a tap has the rest.

    A rest of 48 channels takes two products, 32 and 16, as sides are powers of two.
    """
    STAGES: gl.constexpr = packed_bufs.shape[0]
    WIDTH: gl.constexpr = packed_bufs.shape[2]
    BOX: gl.constexpr = [acc.shape[1], WIDTH]
    STEPS: gl.constexpr = (CHANNELS + WIDTH - 1) // WIDTH * R
    REST: gl.constexpr = (CHANNELS - 1) % WIDTH + 1
    HIGH: gl.constexpr = WIDTH // 2 if REST > WIDTH // 2 else REST
    stage = count % STAGES
    phase = count // STAGES & 1
    last = 0
    for s in range(taps_w):
        for step in gl.static_range(STEPS):
            mbarrier.wait(full.index(stage), phase)
            left = packed_bufs.index(stage)
            right = x_bufs.index(stage).reshape(BOX)
            if step < STEPS - R or REST == WIDTH:
                acc = warpgroup_mma(left, right.permute([1, 0]), acc, is_async=True)
                acc = warpgroup_mma_wait(1, deps=[acc])
            elif REST == HIGH:
                acc = _add_part(acc, left, right, 0, REST)
                acc = warpgroup_mma_wait(1, deps=[acc])
            else:
                acc = _add_part(acc, left, right, 0, HIGH)
                acc = _add_part(acc, left, right, HIGH, REST - HIGH)
                acc = warpgroup_mma_wait(2, deps=[acc])
            mbarrier.arrive(empty.index(last), pred=s + step > 0)
            last = stage
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1
    mbarrier.arrive(turn)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(empty.index(last))
    return acc


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
def _sum_of_tile(
    acc, x_bufs, packed_bufs, full, empty, packed_full, packed_empty, turn, count, steps, taps_w,
    made_by, w, width, R: gl.constexpr, BLOCK: gl.constexpr, ROWS: gl.constexpr,
    CHANNELS: gl.constexpr, MAKER: gl.constexpr, FUNCTION: gl.constexpr,
):  # fmt: skip
    """acc + the sums of the tile at column w of maps of `width` columns."""
    if ROWS > 1:
        acc = _sum_rows(
            acc, x_bufs, packed_bufs, full, empty, packed_full, packed_empty, turn,
            count, steps, ROWS, BLOCK,
        )  # fmt: skip
    elif MAKER != "":
        acc = sum_of_remade(
            acc, packed_bufs, x_bufs, full, empty, turn, count, steps, made_by[1:], w, width,
            made_by[0], MAKER, FUNCTION,
        )  # fmt: skip
    elif CHANNELS > 0:
        acc = _sum_of_group(acc, packed_bufs, x_bufs, full, empty, turn, count, taps_w, R, CHANNELS)
    else:
        acc = sum_of_ring(acc, packed_bufs, x_bufs, full, empty, turn, count, steps)
    return acc


@gluon.jit
def _store_halves(
    acc, mask, y_desc, sums_ptr, y_buf, masked, mask_phase, place, sides, channels,
    LOADS_MASK: gl.constexpr, CELL: gl.constexpr,
):  # fmt: skip
    """`store_tile` of the upper and the lower half of a tile, each by a mask of its own."""
    HEIGHT: gl.constexpr = y_desc.block_type.shape[1]
    n, h, w, k = place
    upper, lower = gl.split(acc.reshape([acc.shape[0], 2, acc.shape[1] // 2]).permute([0, 2, 1]))
    store_tile(
        upper, mask, y_desc, sums_ptr, y_buf, masked, mask_phase,
        place, sides, channels, LOADS_MASK, CELL,
    )  # fmt: skip
    place = [n, h + HEIGHT, w, k]
    fetch_mask(mask, y_buf, masked, place, channels[1], LOADS_MASK)
    store_tile(
        lower, mask, y_desc, sums_ptr, y_buf, masked, mask_phase ^ 1,
        place, sides, channels, LOADS_MASK, CELL,
    )  # fmt: skip


@gluon.jit
def _compute(
    bias_ptr, mask, y_desc, codes_ptr, sums_ptr, moments_ptr, x_bufs, packed_bufs, y_buf,
    full, empty, packed_full, packed_empty, masked, turns, tiles, sides, mask_places, channels,
    steps, taps_w, made_by, R: gl.constexpr, TURN: gl.constexpr, BLOCK: gl.constexpr,
    HAS_BIAS: gl.constexpr, LOADS_MASK: gl.constexpr, BITS: gl.constexpr, RELU: gl.constexpr,
    POOL: gl.constexpr, ROUND: gl.constexpr,
    CELL: gl.constexpr, MOMENTS: gl.constexpr, ROWS: gl.constexpr, CHANNELS: gl.constexpr,
    MAKER: gl.constexpr, FUNCTION: gl.constexpr,
):  # fmt: skip
    """Compute and store every second tile from tile TURN on."""
    BY_GROUP: gl.constexpr = CHANNELS > 0
    PIXELS: gl.constexpr = BLOCK[0] * BLOCK[1] * BLOCK[2]
    BLOCK_K: gl.constexpr = BLOCK[3]
    STORED: gl.constexpr = y_desc.block_type.shape
    DEPTH: gl.constexpr = 256 // x_bufs.dtype.primitive_bitwidth
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PIXELS, DEPTH])
    out_c, group = channels
    num_tiles, _, _, tiles_k = tiles
    count = TURN * steps
    mask_phase = 0
    turn_phase = 1 - TURN
    first = gl.program_id(0) + TURN * gl.num_programs(0)
    for tile in range(first, num_tiles, 2 * gl.num_programs(0)):
        n, h, w, k = tile_place(tile, tiles, group, BLOCK, BY_GROUP)
        fetch_mask(mask, y_buf, masked, [n, h, w, k], group, LOADS_MASK)
        acc = gl.zeros([BLOCK_K, PIXELS], gl.float32, SUMS)
        mbarrier.wait(turns.index(TURN), turn_phase)
        turn_phase ^= 1
        acc = _sum_of_tile(
            acc, x_bufs, packed_bufs, full, empty, packed_full, packed_empty, turns.index(1 - TURN),
            count, steps, taps_w, made_by, w, sides[2], R, BLOCK, ROWS, CHANNELS, MAKER, FUNCTION,
        )  # fmt: skip
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
            store_codes(codes_ptr, tap, n, h, w, k, sides, channels, STORED)
        place = [n, h, w, k]
        if STORED[1] * 2 == BLOCK[1] and not POOL:
            _store_halves(
                acc, mask, y_desc, sums_ptr, y_buf, masked, mask_phase,
                place, sides, channels, LOADS_MASK, CELL,
            )  # fmt: skip
        else:
            store_tile(
                acc, mask, y_desc, sums_ptr, y_buf, masked, mask_phase,
                place, sides, channels, LOADS_MASK, CELL,
            )  # fmt: skip
            mask_phase ^= 1
        if MOMENTS:
            y = acc.to(y_desc.dtype).to(gl.float32)
            stop = stop_of(k, out_c, group, BY_GROUP)
            store_moments(moments_ptr, y, tile // tiles_k, place, sides, out_c, stop, BLOCK)
    tma.store_wait(0)


@gluon.jit
def _rows(x_desc, COUNT: gl.constexpr):
    """Shared memory for COUNT consecutive rows of pixels."""
    shape: gl.constexpr = [COUNT, x_desc.block_type.shape[2], x_desc.block_type.shape[3]]
    layout: gl.constexpr = gl.NVMMASharedLayout(128, x_desc.dtype.primitive_bitwidth, 2)
    return gl.allocate_shared_memory(x_desc.dtype, shape, layout)


@gluon.jit(do_not_specialize=SIZES)
def conv_specialized_kernel(
    x_desc, second_desc, packed_desc, bias_ptr, mask, y_desc, codes_ptr, sums_ptr, moments_ptr,
    num_samples, height, width, in_c, out_c, taps_h, taps_w, pad_h, pad_w, dil_h, dil_w,
    packed_h, packed_w, mask_n, mask_h, mask_w, in_width, out_width, last_band,
    source, coefficient, sample_pixels, made_c, MAKER: gl.constexpr, FUNCTION: gl.constexpr,
    R: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_MASK: gl.constexpr,
    BITS: gl.constexpr, RELU: gl.constexpr, POOL: gl.constexpr, ROUND: gl.constexpr,
    CELL: gl.constexpr, MOMENTS: gl.constexpr, ROWS: gl.constexpr, BANDS: gl.constexpr,
    CHANNELS: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_H: gl.constexpr, BLOCK_W: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, PACKED_STAGES: gl.constexpr,
) -> None:  # fmt: skip
    """A tile of outputs is a box of pixels, and each tap reads the same box shifted.

    At stride 2 a tap reads one of the four maps of even or odd rows and columns: x_desc has the
    even columns, second_desc the odd ones. The taps of a row of weights lie packed_h and packed_w
    elements apart. With BANDS a tile of output channels reads
    a band of in_c input channels (bands.py), else the first in_c. With CHANNELS, if not 0, a tile
    lies in one group, and only these channels of its band are summed; R is then taps_h, else 0:
    filters of all sizes share a kernel, which takes a second to compile. With POOL the maxima of
    windows 2x2 are stored; height and width then count only rows and columns in windows, and boxes
    have at least 8 columns, so that no two threads share a window. CELL, if not 0, is the side of
    cells of the stored map whose sums are stored. With MOMENTS the moments of each box are stored.
    With a MAKER x is made again, as in tma.py.
    """
    BLOCK: gl.constexpr = [BLOCK_N, BLOCK_H, BLOCK_W, BLOCK_K]
    BY_GROUP: gl.constexpr = CHANNELS > 0
    SIDE: gl.constexpr = CELL if CELL > 0 else 2 if POOL else 1  # of a cell or of a window
    sides = (num_samples, height // SIDE, width // SIDE)
    tiles_h = gl.cdiv(height, BLOCK[1])
    tiles_w = gl.cdiv(width, BLOCK[2])
    tiles_k = tiles_of(out_c, out_width, BLOCK[3], BY_GROUP)
    num_tiles = gl.cdiv(num_samples, BLOCK[0]) * tiles_h * tiles_w * tiles_k
    tiles = (num_tiles, tiles_h, tiles_w, tiles_k)
    steps_c = gl.cdiv(in_c, packed_desc.block_type.shape[1])
    steps = taps_h * taps_w * steps_c // ROWS
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
    channels = (out_c, out_width)
    made_by = (made_c, source, coefficient, sample_pixels)
    mask_places = (num_samples, height, width, mask_n, mask_h, mask_w)
    packed_bufs = buffers(packed_desc, PACKED_STAGES * ROWS)
    y_bufs = buffers(y_desc, 2)
    gl.warp_specialize(
        [
            (_compute, (
                bias_ptr, mask, y_desc, codes_ptr, sums_ptr, moments_ptr, x_bufs, packed_bufs,
                y_bufs.index(0), full, empty, packed_full, packed_empty, masked.index(0), turns,
                tiles, sides, mask_places, channels, steps, taps_w, made_by, R, 0, BLOCK,
                HAS_BIAS, LOADS_MASK, BITS, RELU, POOL, ROUND, CELL, MOMENTS, ROWS, CHANNELS,
                MAKER, FUNCTION,
            )),
            (_compute, (
                bias_ptr, mask, y_desc, codes_ptr, sums_ptr, moments_ptr, x_bufs, packed_bufs,
                y_bufs.index(1), full, empty, packed_full, packed_empty, masked.index(1), turns,
                tiles, sides, mask_places, channels, steps, taps_w, made_by, R, 1, BLOCK,
                HAS_BIAS, LOADS_MASK, BITS, RELU, POOL, ROUND, CELL, MOMENTS, ROWS, CHANNELS,
                MAKER, FUNCTION,
            )),
            (load_tiles, (
                x_desc, second_desc, packed_desc, x_bufs, packed_bufs,
                full, empty, packed_full, packed_empty, tiles, steps_c,
                (taps_h, taps_w), (pad_h, pad_w, dil_h, dil_w, packed_h, packed_w),
                (in_width, out_width, last_band), BLOCK, ROWS, BANDS, BY_GROUP,
            )),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
