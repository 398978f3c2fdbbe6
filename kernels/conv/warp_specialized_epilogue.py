"""Epilogues of warp_specialized.py: stores of a tile, of its sums, of codes and of moments."""

from ..language.gluon import fence_async_shared, gl, gluon, load_box, mbarrier, store_box, tma
from .epilogue import max_of_taps, place_of, stop_of


@gluon.jit
def _place_in(desc, place, group):
    """The place in a map, or in one with an axis of groups of `group` channels."""
    n, h, w, k = place
    return place_of(n, h, w, k, group, len(desc.block_type.shape) == 5)


@gluon.jit
def fetch_mask(mask_desc, y_buf, masked, place, group, HAS_MASK: gl.constexpr) -> None:
    """Start the load of the next tile's mask to y_buf, from which that tile will be stored."""
    if HAS_MASK:
        tma.store_wait(0)
        mbarrier.expect(masked, mask_desc.block_type.nbytes)
        load_box(mask_desc, _place_in(mask_desc, place, group), masked, y_buf)


@gluon.jit
def masked_by_bits(acc, words_ptr, places, place, out_c, BLOCK: gl.constexpr) -> gl.tensor:
    """acc [channels, pixels] of the box at `place` where its sign bits are set, else 0.

    `places` are the sides of the maps, and the words from a sample, a row and a column to the next.
    """
    num_samples, height, width, step_n, step_h, step_w = places
    n, h, w, k = place
    A_WORD: gl.constexpr = words_ptr.dtype.element_ty.primitive_bitwidth
    PIXELS: gl.constexpr = acc.shape[1]
    members = acc.reshape([BLOCK[3] // A_WORD, A_WORD, PIXELS])
    AT: gl.constexpr = gl.SliceLayout(1, members.type.layout)
    pixel = gl.arange(0, PIXELS, gl.SliceLayout(0, AT))
    # Offsets within the box would stay the same for all boxes, in registers: 1 KB of them spills.
    sample = n + pixel // (BLOCK[1] * BLOCK[2])
    row = h + pixel // BLOCK[2] % BLOCK[1]
    column = w + pixel % BLOCK[2]
    word = k // A_WORD + gl.arange(0, BLOCK[3] // A_WORD, gl.SliceLayout(1, AT))
    offs = sample.to(gl.int64) * step_n + (row * step_h + column * step_w)
    inside = (sample < num_samples) & (row < height) & (column < width)
    mask = gl.expand_dims(word < out_c // A_WORD, 1) & gl.expand_dims(inside, 0)
    words = gl.load(
        words_ptr + (gl.expand_dims(offs, 0) + gl.expand_dims(word, 1)), mask=mask, other=0
    )
    PLACE: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, members.type.layout))
    bit = gl.expand_dims(gl.expand_dims(gl.arange(0, A_WORD, PLACE), 0), 2)
    kept = 0 - ((gl.expand_dims(words, 1) >> bit) & 1)  # all bits of a value, or none
    bits, kept = gl.broadcast(members.to(gl.int32, bitcast=True), kept)
    # LLVM would round values of a `where` or an `&` first, and triton 3.6's ptxas then moves the
    # rounding ahead of the wait for the products.
    found = gl.inline_asm_elementwise(
        "and.b32 $0, $1, $2;", "=r,r,r", [bits, kept], dtype=gl.int32, is_pure=True, pack=1
    )
    return found.to(gl.float32, bitcast=True).reshape(acc.shape)


@gluon.jit
def store_tile(
    acc, mask_desc, y_desc, sums_ptr, y_buf, masked, mask_phase, place, sides, channels,
    HAS_MASK: gl.constexpr, CELL: gl.constexpr,
) -> None:  # fmt: skip
    """Store acc [channels, pixels] at `place`, masked, and with CELL the sums of its cells.

    `channels` are those of the map, and of a group where maps have an axis of groups.
    """
    y = acc.permute([1, 0]).reshape(y_desc.block_type.shape).to(y_desc.dtype)
    if HAS_MASK:
        mbarrier.wait(masked, mask_phase)
        mask = y_buf.load(y.type.layout)
        y = gl.where(mask.to(gl.float32) <= 0, gl.zeros_like(y), y)
    else:
        tma.store_wait(0)
    y_buf.store(y)
    fence_async_shared()
    store_box(y_desc, _place_in(y_desc, place, channels[1]), y_buf)
    if CELL > 0:
        BY_GROUP: gl.constexpr = len(y.shape) == 5
        stop = stop_of(place[3], channels[0], channels[1], BY_GROUP)
        _store_cell_sums(sums_ptr, y, place, sides, channels[0], stop, CELL)


@gluon.jit
def max_of_windows(y, BLOCK: gl.constexpr) -> tuple[gl.tensor, gl.tensor]:
    """Maxima and taps [channels, windows] of the windows 2x2 of a box y [channels, pixels]."""
    WINDOWS: gl.constexpr = BLOCK[0] * BLOCK[1] * BLOCK[2] // 4
    SHAPE: gl.constexpr = [BLOCK[3], BLOCK[0] * BLOCK[1] // 2, 2, BLOCK[2] // 2, 2]
    left, right = gl.split(y.reshape(SHAPE))
    first, third = gl.split(left.permute([0, 1, 3, 2]))
    second, fourth = gl.split(right.permute([0, 1, 3, 2]))
    largest, tap = max_of_taps(first, second, third, fourth)
    return largest.reshape([BLOCK[3], WINDOWS]), tap.reshape([BLOCK[3], WINDOWS])


@gluon.jit
def store_codes(codes_ptr, tap, n, h, w, k, sides, channels, BLOCK: gl.constexpr) -> None:
    """Store the taps [channels, windows] of the box of windows at (n, h, w) as argmax codes.

    BLOCK is a block of the map, with an axis of groups where that has one.
    """
    num_samples, height, width = sides
    out_c, group = channels
    stop = stop_of(k, out_c, group, len(BLOCK) == 5)
    BLOCK_K: gl.constexpr = tap.shape[0]
    WINDOWS: gl.constexpr = BLOCK[0] * BLOCK[1] * BLOCK[2]
    fours = tap.reshape([BLOCK_K // 4, 4, WINDOWS])
    COLUMN: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, fours.type.layout))
    places = gl.expand_dims(gl.expand_dims(2 * gl.arange(0, 4, COLUMN), 0), 2)
    codes = gl.sum(fours << places, axis=1)  # [channels / 4, windows]
    byte = k // 4 + gl.arange(0, BLOCK_K // 4, gl.SliceLayout(1, codes.type.layout))
    window = gl.arange(0, WINDOWS, gl.SliceLayout(0, codes.type.layout))
    sample = n + window // (BLOCK[1] * BLOCK[2])
    row = h + window // BLOCK[2] % BLOCK[1]
    column = w + window % BLOCK[2]
    offs = ((sample.to(gl.int64) * height + row) * width + column) * (out_c // 4)
    mask_w = (sample < num_samples) & (row < height) & (column < width)
    mask = gl.expand_dims(byte < stop // 4, 1) & gl.expand_dims(mask_w, 0)
    ptrs = codes_ptr + gl.expand_dims(offs, 0) + gl.expand_dims(byte, 1)
    gl.store(ptrs, codes.to(gl.uint8), mask=mask)


@gluon.jit
def _store_cell_sums(sums_ptr, y, place, sides, out_c, stop, CELL: gl.constexpr):
    """Store the sums of the cells of the box y at `place`, in the order of grad_bias.py."""
    n, h, w, k = place
    num_samples, height, width = sides
    ROWS: gl.constexpr = y.shape[1] // CELL
    COLUMNS: gl.constexpr = y.shape[2] // CELL
    CHANNELS: gl.constexpr = y.shape[len(y.shape) - 1]
    sums = _quarters(y.to(gl.float32).reshape([y.shape[0] * y.shape[1], y.shape[2], CHANNELS]))
    if CELL >= 4:
        sums = _quarters(sums)
    if CELL >= 8:
        sums = _quarters(sums)
    sums = sums.reshape([sums.shape[0] * COLUMNS, CHANNELS])
    cell = gl.arange(0, sums.shape[0], gl.SliceLayout(1, sums.type.layout))
    offs_k = k + gl.arange(0, sums.shape[1], gl.SliceLayout(0, sums.type.layout))
    sample = n + cell // (ROWS * COLUMNS)
    row = h // CELL + cell // COLUMNS % ROWS
    column = w // CELL + cell % COLUMNS
    offs = ((sample.to(gl.int64) * height + row) * width + column) * out_c
    mask_n = (sample < num_samples) & (row < height) & (column < width)
    mask = gl.expand_dims(mask_n, 1) & gl.expand_dims(offs_k < stop, 0)
    gl.store(sums_ptr + gl.expand_dims(offs, 1) + gl.expand_dims(offs_k, 0), sums, mask=mask)


@gluon.jit
def store_moments(moments_ptr, y, cell, place, sides, out_c, stop, BLOCK: gl.constexpr) -> None:
    """Store the moments of y [channels, pixels], the box at `place`, up to channel `stop`."""
    n, h, w, k = place
    num_samples, height, width = sides
    PIXELS: gl.constexpr = y.shape[1]
    rows = gl.minimum(height - h, BLOCK[1]) * gl.minimum(width - w, BLOCK[2])
    count = gl.minimum(num_samples - n, BLOCK[0]) * rows
    if count == PIXELS:
        mean = gl.sum(y, 1) / PIXELS
        off = y - gl.expand_dims(mean, 1)
        squares = gl.sum(off * off, 1)
    else:
        pixel = gl.arange(0, PIXELS, gl.SliceLayout(0, y.type.layout))
        inside = n + pixel // (BLOCK[1] * BLOCK[2]) < num_samples
        inside &= h + pixel // BLOCK[2] % BLOCK[1] < height
        inside = gl.expand_dims(inside & (w + pixel % BLOCK[2] < width), 0)
        mean = gl.sum(gl.where(inside, y, 0.0), 1) / count.to(gl.float32)
        off = gl.where(inside, y - gl.expand_dims(mean, 1), 0.0)
        squares = gl.sum(off * off, 1)
    offs_k = k + gl.arange(0, BLOCK[3], gl.SliceLayout(1, y.type.layout))
    ptrs = moments_ptr + cell.to(gl.int64) * 2 * out_c + offs_k
    gl.store(ptrs, mean, mask=offs_k < stop)
    gl.store(ptrs + out_c, squares, mask=offs_k < stop)


@gluon.jit
def _quarters(x):
    """Sums of the quarters 2x2 of x [rows, columns, channels]."""
    ROWS: gl.constexpr = x.shape[0] // 2
    COLUMNS: gl.constexpr = x.shape[1] // 2
    CHANNELS: gl.constexpr = x.shape[2]
    pairs = gl.sum(x.reshape([2 * ROWS, COLUMNS, 2, CHANNELS]), axis=2)
    return gl.sum(pairs.reshape([ROWS, 2, COLUMNS, CHANNELS]), axis=1)
