"""Epilogues of the convolution kernels: what is done with a finished sum before it is stored.

Values are rounded where separate ops would round them. Fused and separate ops have the same bits.
"""

import triton
import triton.language as tl

from ..codec.sign_bits import passes
from ..language.rounding import stored
from .batch_stats import inside_box, pixels_inside


@triton.jit
def rectified(x) -> tl.tensor:
    """max(x, 0). NaN stays NaN."""
    return tl.where(x <= 0, 0.0, x)


@triton.jit
def where_positive(mask, x) -> tl.tensor:
    """x where `mask` is above zero or NaN, else 0."""
    return tl.where(mask.to(tl.float32) <= 0, tl.zeros_like(x), x)


@triton.jit
def max_of_taps(first, second, third, fourth) -> tuple[tl.tensor, tl.tensor]:
    """The largest of a window's four values and its tap: the first of equal ones, the last NaN."""
    replaces = (second > first) | (second != second)
    largest = tl.where(replaces, second, first)
    tap = tl.where(replaces, 1, 0)
    replaces = (third > largest) | (third != third)
    largest = tl.where(replaces, third, largest)
    tap = tl.where(replaces, 2, tap)
    replaces = (fourth > largest) | (fourth != fourth)
    return tl.where(replaces, fourth, largest), tl.where(replaces, 3, tap)


@triton.jit
def packed_codes(tap, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """Taps [ROWS, COLUMNS] as argmax codes of 2 bits, packed into uint8 [ROWS, COLUMNS // 4]."""
    places = tl.arange(0, 4)[None, None, :] * 2
    return tl.sum(tap.reshape(ROWS, COLUMNS // 4, 4) << places, axis=2).to(tl.uint8)


@triton.jit
def place_of(n, h, w, k, group, BY_GROUP: tl.constexpr) -> tuple[tl.tensor, ...]:
    """The place of a pixel's channel k in a map, or BY_GROUP in one with an axis of groups."""
    return (n, h, w, k // group, k % group) if BY_GROUP else (n, h, w, k)


@triton.jit
def stop_of(k, out_c, group, BY_GROUP: tl.constexpr) -> tl.tensor:
    """The end of the channels of the map, or BY_GROUP of the group of channel k."""
    return (k // group + 1) * group if BY_GROUP else out_c


@triton.jit
def store_sums(
    acc, bias_ptr, mask, mask_strides, y_desc, codes_ptr, moments_ptr,
    n, h, w, k, num_samples, height, width, out_c, group,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, BITS: tl.constexpr, RELU: tl.constexpr,
    POOL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_K: tl.constexpr, PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """Finish the sums acc [BLOCK_K, pixels] of the box at (n, h, w) and store them.

    They are stored in PARTS, 1, 2 or 4, boxes of y_desc's shape one after the other, which saves
    shared memory. The mask is a descriptor of a map, or with BITS a pointer to words of sign bits,
    whose samples, rows and columns lie `mask_strides` words apart. With POOL the maxima of windows
    2x2 are stored in one box; height and width count only rows and columns in windows.
    `moments_ptr`, if given, gets the moments of each stored box. Where maps have an axis of groups
    of `group` channels, nothing is stored behind the group of channel k.
    """
    BY_GROUP: tl.constexpr = len(y_desc.block_shape) == 5
    if HAS_BIAS:
        offs_k = k + tl.arange(0, BLOCK_K)
        acc += tl.load(bias_ptr + offs_k, mask=offs_k < out_c, other=0.0)[:, None]
    if RELU:
        acc = rectified(acc)
    if POOL:
        rounded = stored(acc, y_desc.dtype, PRECISION).to(tl.float32)
        largest, tap = max_of_windows(rounded, BLOCK_K, BLOCK_N * BLOCK_H, BLOCK_W)
        y = largest.T.to(y_desc.dtype).reshape(y_desc.block_shape)
        y_desc.store(place_of(n, h // 2, w // 2, k, group, BY_GROUP), y)
        store_codes(
            codes_ptr, tap, n, h // 2, w // 2, k, num_samples, height // 2, width // 2,
            out_c, stop_of(k, out_c, group, BY_GROUP), BLOCK_N, BLOCK_H // 2, BLOCK_W // 2, BLOCK_K,
        )  # fmt: skip
    elif PARTS == 1:
        _store_part(
            y_desc, mask, mask_strides, moments_ptr, acc,
            n, h, w, k, num_samples, height, width, out_c, group,
            HAS_MASK, BITS, PRECISION, BLOCK_H, BLOCK_W, 0,
        )  # fmt: skip
    elif PARTS == 2:
        low, high = _halves(acc)
        _store_halves(
            y_desc, mask, mask_strides, moments_ptr, low, high,
            n, h, w, k, num_samples, height, width, out_c, group,
            HAS_MASK, BITS, PRECISION, BLOCK_H, BLOCK_W, 0,
        )  # fmt: skip
    else:
        low, high = _halves(acc)
        first, second = _halves(low)
        third, fourth = _halves(high)
        _store_halves(
            y_desc, mask, mask_strides, moments_ptr, first, second,
            n, h, w, k, num_samples, height, width, out_c, group,
            HAS_MASK, BITS, PRECISION, BLOCK_H, BLOCK_W, 0,
        )  # fmt: skip
        _store_halves(
            y_desc, mask, mask_strides, moments_ptr, third, fourth,
            n, h, w, k, num_samples, height, width, out_c, group,
            HAS_MASK, BITS, PRECISION, BLOCK_H, BLOCK_W, third.shape[1] + fourth.shape[1],
        )  # fmt: skip


@triton.jit
def _halves(acc):
    """The sums [channels, pixels / 2] of the first and of the second half of the pixels."""
    return tl.split(acc.reshape(acc.shape[0], 2, acc.shape[1] // 2).permute(0, 2, 1))


@triton.jit
def _store_halves(
    y_desc, mask, strides, moments_ptr, low, high, n, h, w, k,
    num_samples, height, width, out_c, group,
    HAS_MASK: tl.constexpr, BITS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, START: tl.constexpr,
):  # fmt: skip
    """Store two adjacent parts, the first of them from pixel START on."""
    _store_part(
        y_desc, mask, strides, moments_ptr, low, n, h, w, k,
        num_samples, height, width, out_c, group,
        HAS_MASK, BITS, PRECISION, BLOCK_H, BLOCK_W, START,
    )  # fmt: skip
    _store_part(
        y_desc, mask, strides, moments_ptr, high, n, h, w, k,
        num_samples, height, width, out_c, group,
        HAS_MASK, BITS, PRECISION, BLOCK_H, BLOCK_W, START + low.shape[1],
    )  # fmt: skip


@triton.jit
def _store_part(
    y_desc, mask, strides, moments_ptr, part, n, h, w, k, num_samples, height, width, out_c, group,
    HAS_MASK: tl.constexpr, BITS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, START: tl.constexpr,
):  # fmt: skip
    """Store the part [channels, pixels] that starts with pixel START of the box at (n, h, w)."""
    n += START // (BLOCK_H * BLOCK_W)
    h += START // BLOCK_W % BLOCK_H
    w += START % BLOCK_W
    BY_GROUP: tl.constexpr = len(y_desc.block_shape) == 5
    place = place_of(n, h, w, k, group, BY_GROUP)
    y = part.T.reshape(y_desc.block_shape)
    if HAS_MASK and BITS:
        bits = _bits_of_box(
            mask, strides, n, h, w, k, num_samples, height, width, out_c,
            y_desc.block_shape[0], y_desc.block_shape[1], y_desc.block_shape[2], part.shape[0],
        )  # fmt: skip
        y = tl.where(passes(bits).reshape(y_desc.block_shape), y, 0.0)
    elif HAS_MASK:
        y = where_positive(mask.load(place), y)
    y_desc.store(place, stored(y, y_desc.dtype, PRECISION))
    if moments_ptr is not None:
        _store_moments(
            moments_ptr, stored(part, y_desc.dtype, PRECISION).to(tl.float32),
            n, h, w, k, num_samples, height, width, out_c, stop_of(k, out_c, group, BY_GROUP),
            y_desc.block_shape[0], y_desc.block_shape[1], y_desc.block_shape[2],
        )  # fmt: skip


@triton.jit
def _bits_of_box(
    words_ptr, strides, n, h, w, k, num_samples, height, width, out_c,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The words [pixels, words] of sign bits of the box at (n, h, w), from channel k on."""
    A_WORD: tl.constexpr = words_ptr.dtype.element_ty.primitive_bitwidth
    pixel = tl.arange(0, BLOCK_N * BLOCK_H * BLOCK_W)
    offs = (n + pixel // (BLOCK_H * BLOCK_W)).to(tl.int64) * strides[0]
    offs += (h + pixel // BLOCK_W % BLOCK_H) * strides[1] + (w + pixel % BLOCK_W) * strides[2]
    inside = inside_box(n, h, w, num_samples, height, width, BLOCK_N, BLOCK_H, BLOCK_W)
    words = k // A_WORD + tl.arange(0, BLOCK_K // A_WORD)
    mask = inside[:, None] & (words < out_c // A_WORD)[None, :]
    return tl.load(words_ptr + offs[:, None] + words[None, :], mask=mask, other=0)


@triton.jit
def _store_moments(
    moments_ptr, y, n, h, w, k, num_samples, height, width, out_c, stop,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Store the moments of y [channels, pixels], the box at (n, h, w), up to channel `stop`."""
    PIXELS: tl.constexpr = BLOCK_N * BLOCK_H * BLOCK_W
    count = pixels_inside(n, h, w, num_samples, height, width, BLOCK_N, BLOCK_H, BLOCK_W)
    if count == PIXELS:
        mean = tl.sum(y, 1) / PIXELS
        off = y - mean[:, None]
        squares = tl.sum(off * off, 1)
    else:
        inside = inside_box(n, h, w, num_samples, height, width, BLOCK_N, BLOCK_H, BLOCK_W)[None, :]
        mean = tl.sum(tl.where(inside, y, 0.0), 1) / count.to(tl.float32)
        off = tl.where(inside, y - mean[:, None], 0.0)
        squares = tl.sum(off * off, 1)
    tiles_h, tiles_w = tl.cdiv(height, BLOCK_H), tl.cdiv(width, BLOCK_W)
    cell = (n // BLOCK_N * tiles_h + h // BLOCK_H) * tiles_w + w // BLOCK_W
    offs_k = k + tl.arange(0, y.shape[0])
    mask = (offs_k < stop) & (count > 0)
    ptrs = moments_ptr + cell.to(tl.int64) * 2 * out_c + offs_k
    tl.store(ptrs, mean, mask=mask)
    tl.store(ptrs + out_c, squares, mask=mask)


@triton.jit
def max_of_windows(
    y, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Maxima and taps [BLOCK_K, windows] of the windows 2x2 of y [BLOCK_K, ROWS * COLUMNS]."""
    left, right = tl.split(y.reshape(BLOCK_K, ROWS // 2, 2, COLUMNS // 2, 2))
    first, third = tl.split(left.permute(0, 1, 3, 2))
    second, fourth = tl.split(right.permute(0, 1, 3, 2))
    largest, tap = max_of_taps(first, second, third, fourth)
    WINDOWS: tl.constexpr = ROWS * COLUMNS // 4
    return largest.reshape(BLOCK_K, WINDOWS), tap.reshape(BLOCK_K, WINDOWS)


@triton.jit
def store_codes(
    codes_ptr, tap, n, h, w, k, num_samples, height, width, out_c, stop,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_K: tl.constexpr,
) -> None:  # fmt: skip
    """Store the taps [BLOCK_K, windows] of the box of windows at (n, h, w) as argmax codes.

    Those from channel `stop` on are not stored.
    """
    codes = packed_codes(tap.T, BLOCK_N * BLOCK_H * BLOCK_W, BLOCK_K)
    window = tl.arange(0, BLOCK_N * BLOCK_H * BLOCK_W)[:, None]
    sample = (n + window // (BLOCK_H * BLOCK_W)).to(tl.int64)
    row = h + window // BLOCK_W % BLOCK_H
    column = w + window % BLOCK_W
    offs_k = k // 4 + tl.arange(0, BLOCK_K // 4)[None, :]
    mask = (sample < num_samples) & (row < height) & (column < width) & (offs_k < stop // 4)
    offs = ((sample * height + row) * width + column) * (out_c // 4) + offs_k
    tl.store(codes_ptr + offs, codes, mask=mask)
