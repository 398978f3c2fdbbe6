"""Maps resized to nearest pixels or bilinearly, with gradients that gather.

Each pixel of the gradient is one sum over the output rows that read it, of sums along these rows,
in their order. A window of output pixels is searched for them with the arithmetic of the forward
pass.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, gcd
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from ..language.channel_ranges import word_of
from ..language.map_tiles import LOOP_SIZES, TILE, launch, row, sides, tile_place
from ..language.rounding import stored, stored_reference
from ..pool.global_avg import sum_pixels

MODES: Final = ("nearest", "bilinear", "corners")  # the last is bilinear with aligned corners
SLACK: Final = 0.01  # rounding error of a position, at most, in pixels
OUT_ROWS: Final = 8  # rows of y that one program computes, of large maps
ROWS: Final = 4  # rows of dx that one program computes, of large maps
PROGRAMS: Final = 1024  # programs that compute large maps, at least
UNROLL: Final = 4  # loads of a gradient's window that are in flight together, at most
Scales = tuple[float, float]  # (h, w)


@triton.jit
def _place(out, scale, MODE: tl.constexpr):
    """Where output pixels lie among the input's."""
    place = out.to(tl.float32)
    if MODE == "bilinear":
        place = tl.maximum(tl.fma(place + 0.5, scale, -0.5), 0.0)
    else:
        place = place * scale
    return place


@triton.jit
def _source(out, scale, size, MODE: tl.constexpr):
    """The two pixels that each output pixel is interpolated from, and the weight of the second."""
    place = _place(out, scale, MODE)
    first = tl.minimum(place.to(tl.int32), size - 1)
    second = tl.minimum(first + 1, size - 1)
    share = place - first.to(tl.float32)
    return first, second, share * 0.0 if MODE == "nearest" else share


@triton.jit
def _between(x, y, share):
    """(1 - share) x + share y. `share` is one number, or one for each pixel of a tile."""
    return tl.fma(y, share + tl.zeros_like(y), (1.0 - share) * x)


@triton.jit
def _load(x_row, w, c, pitch, mask):
    return tl.load(x_row + (w * pitch + c), mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _source_row(x_ptr, h, w, next_w, share_w, c, width, pitch, mask, MODE: tl.constexpr):
    """Row h of a sample, resized along the row."""
    x_row = x_ptr + h.to(tl.int64) * (width * pitch)
    resized = _load(x_row, w, c, pitch, mask)
    if MODE != "nearest":
        resized = _between(resized, _load(x_row, next_w, c, pitch, mask), share_w)
    return resized


@triton.jit
def _store(
    ptrs, values, inside, c, channels,
    PRECISION: tl.constexpr, STORED: tl.constexpr, FILLED: tl.constexpr,
):  # fmt: skip
    """Store the channels of pixels inside the map, and with FILLED zeros up to whole STORED."""
    if FILLED:
        values = tl.where(c < channels, values, 0.0)
    mask = inside & (c < tl.cdiv(channels, STORED) * STORED)
    tl.store(ptrs, stored(values, ptrs.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=[*LOOP_SIZES, "first_row"])
def _resize_kernel(
    x_ptr, y_ptr, height, width, out_height, out_width, x_pitch, y_pitch, scale_h, scale_w,
    first_row, channels, tiles_w, tiles_c, MODE: tl.constexpr, PRECISION: tl.constexpr,
    WORD: tl.constexpr, OUT_WORD: tl.constexpr, STORED: tl.constexpr, FILLED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A program computes ROWS rows of y. WORD and OUT_WORD divide the pitches of x and of y."""
    n, block, out_w, c = tile_place(tiles_w, tiles_c, tl.cdiv(out_height, ROWS), BLOCK_W, BLOCK_C)
    x_pitch, y_pitch = x_pitch // WORD * WORD, y_pitch // OUT_WORD * OUT_WORD
    mask = (out_w < out_width) & (c < tl.cdiv(channels, WORD) * WORD)
    w, next_w, share_w = _source(out_w, scale_w, width, MODE)
    x_ptr += n * height * width * x_pitch
    y_ptr += n * out_height * out_width * y_pitch
    above = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    below, last_h, last_next = above, -1, -1
    for step in range(tl.minimum(out_height - block * ROWS, ROWS)):
        out_h = block * ROWS + step
        h, next_h, share_h = _source(out_h + first_row, scale_h, height, MODE)
        if h != last_h:  # else the row lies between the same rows of x as the one before it
            if h == last_next:
                above = below
            else:
                above = _source_row(x_ptr, h, w, next_w, share_w, c, width, x_pitch, mask, MODE)
            if MODE != "nearest":
                below = _source_row(
                    x_ptr, next_h, w, next_w, share_w, c, width, x_pitch, mask, MODE
                )
                last_next = next_h
            last_h = h
        y = above if MODE == "nearest" else _between(above, below, share_h)
        ptrs = y_ptr + out_h.to(tl.int64) * (out_width * y_pitch) + (out_w * y_pitch + c)
        _store(ptrs, y, out_w < out_width, c, channels, PRECISION, STORED, FILLED)


@triton.jit
def _weight(out, out_size, at, scale, size, MODE: tl.constexpr):
    """The weight of input pixels `at` in output pixels `out`; 0 outside the output."""
    place = _place(out, scale, MODE)
    if MODE == "nearest":
        weight = tl.where(tl.minimum(place.to(tl.int32), size - 1) == at, 1.0, 0.0)
    else:
        apart = tl.minimum(place, (size - 1).to(tl.float32)) - at.to(tl.float32)
        weight = tl.maximum(1.0 - tl.abs(apart), 0.0)
    return tl.where((out >= 0) & (out < out_size), weight, 0.0)


@triton.jit
def _first_out(at, inverse, offset):
    """The first output pixel that may read input pixels `at`."""
    return tl.floor(tl.fma(at.to(tl.float32), inverse, offset)).to(tl.int32)


@triton.jit(do_not_specialize=[*LOOP_SIZES, "window_h", "window_w", "first_row", "rows"])
def _resize_grad_kernel(
    dy_ptr, dx_ptr, height, width, out_height, out_width, x_pitch, y_pitch, scale_h, scale_w,
    inverse_h, inverse_w, offset_h, offset_w, window_h, window_w, first_row, rows,
    channels, tiles_w, tiles_c, MODE: tl.constexpr, PRECISION: tl.constexpr,
    WORD: tl.constexpr, OUT_WORD: tl.constexpr, STORED: tl.constexpr, FILLED: tl.constexpr,
    ROWS: tl.constexpr, UNROLL: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A program computes ROWS rows of dx, and sums along each row of dy in their windows once.

    WORD and OUT_WORD divide the pitches of dx and of dy.
    """
    n, block, w, c = tile_place(tiles_w, tiles_c, tl.cdiv(height, ROWS), BLOCK_W, BLOCK_C)
    x_pitch, y_pitch = x_pitch // WORD * WORD, y_pitch // OUT_WORD * OUT_WORD
    h = block * ROWS
    at = h + first_row
    first_h, first_w = _first_out(at, inverse_h, offset_h), _first_out(w, inverse_w, offset_w)
    mask = (w < width) & (c < tl.cdiv(channels, OUT_WORD) * OUT_WORD)
    sums = ()
    for _ in tl.static_range(ROWS):
        sums += (tl.zeros((BLOCK_W, BLOCK_C), tl.float32),)
    start_h = tl.maximum(first_h, 0)
    for step_h in range(tl.minimum(first_h + window_h, out_height) - start_h):
        out_h = start_h + step_h
        dy_row = row(dy_ptr, n, out_h, out_height, out_width, y_pitch)
        along = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
        for step_w in tl.range(0, window_w, loop_unroll_factor=UNROLL):
            out_w = first_w + step_w
            weight = _weight(out_w, out_width, w, scale_w, width, MODE)
            dy = _load(dy_row, out_w, c, y_pitch, mask & (weight != 0.0))
            along = tl.fma(dy, weight + tl.zeros_like(dy), along)
        added = ()
        for t in tl.static_range(ROWS):
            weight = _weight(out_h, out_height, at + t, scale_h, rows, MODE)
            total = tl.fma(along, weight + tl.zeros_like(along), sums[t])
            added += (tl.where(weight != 0.0, total, sums[t]),)
        sums = added
    for t in tl.static_range(ROWS):
        ptrs = row(dx_ptr, n, h + t, height, width, x_pitch) + (w * x_pitch + c)
        inside = (w < width) & (h + t < height)
        _store(ptrs, sums[t], inside, c, channels, PRECISION, STORED, FILLED)


@dataclass(frozen=True, slots=True)
class PixelRange:
    """Output pixels that may read input pixel i: `size` pixels from i * inverse + offset on."""

    inverse: float
    offset: float
    size: int


def resize(
    x: Tensor, y: Tensor, *, mode: str, scales: Scales, precision: str = "ieee",
    first_row: int = 0, padded: bool = False,
) -> None:  # fmt: skip
    """y [N, OH, OW, C] = x [N, H, W, C] resized by one of MODES. Maps may be channel ranges.

    `scales` are the steps in x of one pixel of y, as in torch: the ratios of the sides, or
    1 / scale_factor, or for "corners" the ratios of the sides less 1. For a tile of rows, y holds
    the output rows of x from `first_row` on. Of a `padded` y, what follows the last channel belongs
    to nobody up to a multiple of 16 bytes, and may get zeros.
    """
    samples, out_height, out_width, channels = y.shape
    operands = (x, y, *sides(x, y), *map(float, scales), first_row)
    count = OUT_ROWS if y.numel() >= OUT_ROWS * PROGRAMS * TILE[0] else 1
    launch(
        _resize_kernel, operands, samples * cdiv(out_height, count), out_width, channels,
        MODE=mode, PRECISION=precision, WORD=word_of(x), OUT_WORD=word_of(y),
        **_stored_words(y, padded=padded), ROWS=count,
    )  # fmt: skip


def resize_grad(
    dy: Tensor, dx: Tensor, *, mode: str, scales: Scales, precision: str = "ieee",
    first_row: int = 0, rows: int | None = None, padded: bool = False,
) -> None:  # fmt: skip
    """The gradient dx of `resize` from dy. `padded` is said of dx.

    For a tile of rows, dx holds the rows from `first_row` on of the `rows` that dy was made from.
    """
    samples, height, width, channels = dx.shape
    rows = height if rows is None else rows
    if (rows, width) == (1, 1):
        sum_pixels(dy, dx, 1, precision)
        return
    window_h, window_w = _windows((rows, width), dy, mode, scales)
    overlaps = window_h.size > window_h.inverse + 1
    count = ROWS if overlaps and dx.numel() >= ROWS * PROGRAMS * TILE[0] else 1
    reach = window_h.size + ceil((count - 1) * window_h.inverse)
    steps = (window_h.inverse, window_w.inverse, window_h.offset, window_w.offset)
    settings = (*map(float, scales), *steps, reach, window_w.size, first_row, rows)
    operands = (dy, dx, *sides(dx, dy), *settings)
    launch(
        _resize_grad_kernel, operands, samples * cdiv(height, count), width, channels,
        MODE=mode, PRECISION=precision, WORD=word_of(dx), OUT_WORD=word_of(dy),
        **_stored_words(dx, padded=padded), ROWS=count,
        UNROLL=UNROLL if window_w.size >= UNROLL else 2,
    )  # fmt: skip


def _stored_words(maps: Tensor, *, padded: bool) -> dict[str, int]:
    """Channels that are stored together, those of a load unless others lie among them."""
    word, channels = word_of(maps), maps.shape[-1]
    stored = word if padded else gcd(word, channels)
    return {"STORED": stored, "FILLED": channels % stored > 0}


def _windows(sides: tuple[int, int], y: Tensor, mode: str, scales: Scales) -> Iterator[PixelRange]:
    for size, out_size, scale in zip(sides, y.shape[1:3], scales, strict=True):
        yield _window(size, out_size, mode, scale)


def _window(size: int, out_size: int, mode: str, scale: float) -> PixelRange:
    if scale == 0:  # all output pixels read the first pixel
        return PixelRange(0.0, 0.0, out_size)
    times = out_size // size
    if mode != "corners" and times * size == out_size and scale * times == 1:
        doubled = mode == "bilinear"
        reach = 2 * times - times % 2 if doubled else times
        return PixelRange(float(times), float(-(times // 2) if doubled else 0), reach)
    inverse = 1 / scale
    if mode == "nearest":
        return PixelRange(inverse, -SLACK, int(inverse + 2 * SLACK) + 2)
    begin = -inverse if mode == "corners" else -0.5 * inverse - 0.5
    return PixelRange(inverse, begin + 1 - SLACK, int(2 * inverse + 2 * SLACK) + 1)


def resize_reference(
    x: Tensor, y: Tensor, *, mode: str, scales: Scales, precision: str = "ieee",
    first_row: int = 0, padded: bool = False,
) -> None:  # fmt: skip
    """Computes `resize` in torch."""
    made = (first_row + y.shape[1], y.shape[2])
    by_h, by_w = _matrices(x.shape[1:3], made, mode, scales, x.device)
    by_h = by_h[first_row:]
    exact = torch.einsum("ph,nhwc,qw->npqc", by_h, x.double(), by_w)
    y.copy_(stored_reference(exact.float(), y.dtype, precision))


def resize_grad_reference(
    dy: Tensor, dx: Tensor, *, mode: str, scales: Scales, precision: str = "ieee",
    first_row: int = 0, rows: int | None = None, padded: bool = False,
) -> None:  # fmt: skip
    """Computes `resize_grad` in torch."""
    made_of = (dx.shape[1] if rows is None else rows, dx.shape[2])
    by_h, by_w = _matrices(made_of, dy.shape[1:3], mode, scales, dx.device)
    by_h = by_h[:, first_row : first_row + dx.shape[1]]
    exact = torch.einsum("ph,npqc,qw->nhwc", by_h, dy.double(), by_w)
    dx.copy_(stored_reference(exact.float(), dx.dtype, precision))


def _matrices(
    sides: Sequence[int], made: Sequence[int], mode: str, scales: Scales, device: torch.device
) -> list[Tensor]:
    """For both sides the weights of input pixels in output pixels: float64 [out size, size]."""
    found = []
    for size, out_size, scale in zip(sides, made, scales, strict=True):
        out = torch.arange(out_size, device=device, dtype=torch.float32)
        factor = torch.full((), scale, dtype=torch.float32, device=device)
        place = ((out + 0.5) * factor - 0.5).clamp(min=0) if mode == "bilinear" else out * factor
        first = place.long().clamp(max=size - 1)
        share = (place - first) * (mode != "nearest")
        at = torch.arange(size, device=device)
        weights = (first[:, None] == at) * (1 - share.double())[:, None]
        second = (first + 1).clamp(max=size - 1)
        found.append(weights + (second[:, None] == at) * share.double()[:, None])
    return found
