"""Maps resized to nearest pixels or bilinearly, with gradients that gather.

Each pixel of the gradient is one sum over the output pixels that read it, in their order. A window
of output pixels is searched for them with the arithmetic of the forward pass.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.map_tiles import LOOP_SIZES, launch, row, sides, tile_place
from ..language.rounding import stored, stored_reference

MODES: Final = ("nearest", "bilinear", "corners")  # the last is bilinear with aligned corners
SLACK: Final = 0.01  # rounding error of a position, at most, in pixels
Scales = tuple[float, float]  # (h, w)


@triton.jit
def _source(out, scale, size, MODE: tl.constexpr):
    """The two pixels that each output pixel is interpolated from, and the weight of the second."""
    place = out.to(tl.float32)
    if MODE == "bilinear":
        place = tl.maximum(tl.fma(place + 0.5, scale, -0.5), 0.0)
    else:
        place = place * scale
    first = tl.minimum(place.to(tl.int32), size - 1)
    second = tl.minimum(first + 1, size - 1)
    share = place - first.to(tl.float32)
    return first, second, share * 0.0 if MODE == "nearest" else share


@triton.jit
def _load(x_row, w, c, pitch, mask):
    return tl.load(x_row + (w * pitch + c), mask=mask, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=[*LOOP_SIZES, "first_row"])
def _resize_kernel(
    x_ptr, y_ptr, height, width, out_height, out_width, x_pitch, y_pitch, scale_h, scale_w,
    first_row, channels, tiles_w, tiles_c, MODE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n, out_h, out_w, c = tile_place(tiles_w, tiles_c, out_height, BLOCK_W, BLOCK_C)
    mask = (out_w < out_width) & (c < channels)
    h, next_h, share_h = _source(out_h + first_row, scale_h, height, MODE)
    w, next_w, share_w = _source(out_w, scale_w, width, MODE)
    upper = row(x_ptr, n, h, height, width, x_pitch)
    y = _load(upper, w, c, x_pitch, mask)
    if MODE != "nearest":
        lower = row(x_ptr, n, next_h, height, width, x_pitch)
        right = _load(upper, next_w, c, x_pitch, mask)
        below = _load(lower, w, c, x_pitch, mask)
        across = _load(lower, next_w, c, x_pitch, mask)
        y = (1.0 - share_w) * y + share_w * right
        below = (1.0 - share_w) * below + share_w * across
        y = (1.0 - share_h) * y + share_h * below
    ptrs = row(y_ptr, n, out_h, out_height, out_width, y_pitch) + (out_w * y_pitch + c)
    tl.store(ptrs, stored(y, y_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit
def _weight(out, out_size, at, scale, size, MODE: tl.constexpr):
    """The weight of input pixels `at` in output pixels `out`; 0 outside the output."""
    first, second, share = _source(out, scale, size, MODE)
    weight = tl.where(first == at, 1.0 - share, 0.0) + tl.where(second == at, share, 0.0)
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
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n, h, w, c = tile_place(tiles_w, tiles_c, height, BLOCK_W, BLOCK_C)
    at = h + first_row
    first_h, first_w = _first_out(at, inverse_h, offset_h), _first_out(w, inverse_w, offset_w)
    mask = (w < width) & (c < channels)
    dx = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    for step_h in range(window_h):
        out_h = first_h + step_h
        weight_h = _weight(out_h, out_height, at, scale_h, rows, MODE)
        dy_row = row(dy_ptr, n, out_h, out_height, out_width, y_pitch)
        for step_w in range(window_w):
            out_w = first_w + step_w
            weight = weight_h * _weight(out_w, out_width, w, scale_w, width, MODE)
            dy = _load(dy_row, out_w, c, y_pitch, mask & (weight != 0.0))
            dx = tl.fma(dy, weight + tl.zeros_like(dy), dx)
    ptrs = row(dx_ptr, n, h, height, width, x_pitch) + (w * x_pitch + c)
    tl.store(ptrs, stored(dx, dx_ptr.dtype.element_ty, PRECISION), mask=mask)


@dataclass(frozen=True, slots=True)
class PixelRange:
    """Output pixels that may read input pixel i: `size` pixels from i * inverse + offset on."""

    inverse: float
    offset: float
    size: int


def resize(
    x: Tensor, y: Tensor, *, mode: str, scales: Scales, precision: str = "ieee", first_row: int = 0
) -> None:
    """y [N, OH, OW, C] = x [N, H, W, C] resized by one of MODES. Maps may be channel ranges.

    `scales` are the steps in x of one pixel of y, as in torch: the ratios of the sides, or
    1 / scale_factor, or for "corners" the ratios of the sides less 1. For a tile of rows, y holds
    the output rows of x from `first_row` on.
    """
    samples, out_height, out_width, channels = y.shape
    operands = (x, y, *sides(x, y), *map(float, scales), first_row)
    launch(
        _resize_kernel, operands, samples * out_height, out_width, channels,
        MODE=mode, PRECISION=precision,
    )  # fmt: skip


def resize_grad(
    dy: Tensor, dx: Tensor, *, mode: str, scales: Scales, precision: str = "ieee",
    first_row: int = 0, rows: int | None = None,
) -> None:  # fmt: skip
    """The gradient dx of `resize` from dy.

    For a tile of rows, dx holds the rows from `first_row` on of the `rows` that dy was made from.
    """
    samples, height, width, channels = dx.shape
    rows = height if rows is None else rows
    windows = list(_windows((rows, width), dy, mode, scales))
    found = [[getattr(w, name) for w in windows] for name in ("inverse", "offset", "size")]
    settings = (*map(float, scales), *(value for pair in found for value in pair), first_row, rows)
    operands = (dy, dx, *sides(dx, dy), *settings)
    launch(
        _resize_grad_kernel, operands, samples * height, width, channels,
        MODE=mode, PRECISION=precision,
    )  # fmt: skip


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
    x: Tensor, y: Tensor, *, mode: str, scales: Scales, precision: str = "ieee", first_row: int = 0
) -> None:
    """Computes `resize` in torch."""
    made = (first_row + y.shape[1], y.shape[2])
    by_h, by_w = _matrices(x.shape[1:3], made, mode, scales, x.device)
    by_h = by_h[first_row:]
    exact = torch.einsum("ph,nhwc,qw->npqc", by_h, x.double(), by_w)
    y.copy_(stored_reference(exact.float(), y.dtype, precision))


def resize_grad_reference(
    dy: Tensor, dx: Tensor, *, mode: str, scales: Scales, precision: str = "ieee",
    first_row: int = 0, rows: int | None = None,
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
