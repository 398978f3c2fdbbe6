"""Copies of maps with a computed index along each axis: pads, slices, rolls, flips and repeats.

An `Axis` says which element of the source each element of the result copies. The gradient gathers:
each of its elements is one sum, in the order of the result's elements.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.map_tiles import LOOP_SIZES, launch, row, tile_place
from ..language.rounding import stored, stored_reference

MODES: Final = ("constant", "reflect", "replicate", "circular")


@dataclass(frozen=True, slots=True)
class Axis:
    """Element i of the result copies element `start + step * i` of the source."""

    start: int = 0
    step: int = 1
    mode: str = "constant"  # of MODES: what stands for elements outside the source, as in F.pad

    def is_identity(self, size: int, out_size: int) -> bool:
        """Whether a result of `out_size` elements equals a source of `size` elements."""
        return (self.start, self.step, size) == (0, 1, out_size)

    def bounds(self, out_size: int) -> tuple[int, int]:
        """The least and the largest index into the source, which may lie outside it."""
        last = self.start + self.step * (out_size - 1)
        return min(self.start, last), max(self.start, last)


Axes = Sequence[Axis]


@triton.jit
def _source(i, start, step, size, MODE: tl.constexpr):
    """The source element that element i of the result copies, and whether it exists."""
    at = start + i * step
    inside = at == at
    if MODE == "constant":
        inside = (at >= 0) & (at < size)
    elif MODE == "replicate":
        at = tl.minimum(tl.maximum(at, 0), size - 1)
    elif MODE == "reflect":
        at = tl.where(at < 0, -at, at)
        at = tl.where(at >= size, 2 * (size - 1) - at, at)
    else:
        at = (at % size + size) % size
    return at, inside


@triton.jit
def _result(at, tap, first, start, step, size, out_size, MODE: tl.constexpr):
    """The element of the result that is the `tap`-th copy of source element `at`, if there is one.

    `first` is the first index outside the source that stands for one of its elements.
    """
    place = at
    there = at == at
    if MODE == "replicate":
        place = at + (tap + first)
        there = (place == at) | ((at == 0) & (place < 0)) | ((at == size - 1) & (place >= size))
    elif MODE == "reflect":
        place = tl.where(tap == 0, at, tl.where(tap == 1, -at, 2 * (size - 1) - at))
        there = (tap == 0) | ((tap == 1) & (at > 0)) | ((tap == 2) & (at < size - 1))
    elif MODE == "circular":
        place = at + (tap + first) * size
    i = (place - start) // step
    return i, there & (start + i * step == place) & (i >= 0) & (i < out_size)


SIZES: Final = [
    *LOOP_SIZES,
    *(f"{name}_{axis}" for name in ("start", "step", "first", "taps") for axis in "hwc"),
]


@triton.jit(do_not_specialize=SIZES[:-6])
def _remap_kernel(
    x_ptr, y_ptr, height, width, depth, out_height, out_width, start_h, start_w, start_c,
    step_h, step_w, step_c, fill, channels, tiles_w, tiles_c,
    MODE_H: tl.constexpr, MODE_W: tl.constexpr, MODE_C: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n, out_h, out_w, out_c = tile_place(tiles_w, tiles_c, out_height, BLOCK_W, BLOCK_C)
    h, inside_h = _source(out_h, start_h, step_h, height, MODE_H)
    w, inside_w = _source(out_w, start_w, step_w, width, MODE_W)
    c, inside_c = _source(out_c, start_c, step_c, depth, MODE_C)
    mask = (out_w < out_width) & (out_c < channels)
    inside = mask & inside_w & inside_c & inside_h
    ptrs = row(x_ptr, n, h, height, width, depth) + (w.to(tl.int64) * depth + c)
    x = tl.load(ptrs, mask=inside, other=0.0).to(tl.float32)
    y = tl.where(inside, x, fill)
    ptrs = row(y_ptr, n, out_h, out_height, out_width, channels)
    ptrs += out_w.to(tl.int64) * channels + out_c
    tl.store(ptrs, stored(y, y_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def _remap_grad_kernel(
    dy_ptr, dx_ptr, height, width, out_height, out_width, depth, start_h, start_w, start_c,
    step_h, step_w, step_c, first_h, first_w, first_c, taps_h, taps_w, taps_c,
    channels, tiles_w, tiles_c,
    MODE_H: tl.constexpr, MODE_W: tl.constexpr, MODE_C: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n, h, w, c = tile_place(tiles_w, tiles_c, height, BLOCK_W, BLOCK_C)
    mask = (w < width) & (c < channels)
    dx = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    for tap_h in range(taps_h):
        out_h, there_h = _result(h, tap_h, first_h, start_h, step_h, height, out_height, MODE_H)
        dy_row = row(dy_ptr, n, out_h, out_height, out_width, depth)
        for tap_w in range(taps_w):
            out_w, there_w = _result(w, tap_w, first_w, start_w, step_w, width, out_width, MODE_W)
            ptrs = dy_row + out_w.to(tl.int64) * depth
            for tap_c in range(taps_c):
                out_c, there = _result(c, tap_c, first_c, start_c, step_c, channels, depth, MODE_C)
                there = mask & there & there_w & there_h
                dx += tl.load(ptrs + out_c, mask=there, other=0.0).to(tl.float32)
    ptrs = row(dx_ptr, n, h, height, width, channels) + (w.to(tl.int64) * channels + c)
    tl.store(ptrs, stored(dx, dx_ptr.dtype.element_ty, PRECISION), mask=mask)


def remap(x: Tensor, y: Tensor, *, axes: Axes, fill: float = 0.0, precision: str = "ieee") -> None:
    """y [N, A, B, C] = the elements of x [N, D, E, F] that the three `axes` select. Contiguous.

    `fill` stands for elements outside x along an axis of mode "constant". Reflections must reach
    less than a side of x beyond it.
    """
    samples, out_height, out_width, channels = y.shape
    if y.numel() == 0:
        return
    operands = (x, y, *x.shape[1:], out_height, out_width, *_places(axes), float(fill))
    rows = samples * out_height
    launch(_remap_kernel, operands, rows, out_width, channels, **_modes(axes), PRECISION=precision)


def remap_grad(dy: Tensor, dx: Tensor, *, axes: Axes, precision: str = "ieee") -> None:
    """The gradient dx [N, D, E, F] of x in `remap`, from dy [N, A, B, C]. Contiguous."""
    samples, height, width, channels = dx.shape
    if dx.numel() == 0:
        return
    sides = zip(axes, dx.shape[1:], dy.shape[1:], strict=True)
    firsts, taps = zip(*(_taps(*side) for side in sides), strict=True)
    operands = (dy, dx, height, width, *dy.shape[1:], *_places(axes), *firsts, *taps)
    rows = samples * height
    launch(_remap_grad_kernel, operands, rows, width, channels, **_modes(axes), PRECISION=precision)


def _places(axes: Axes) -> tuple[int, ...]:
    return (*(axis.start for axis in axes), *(axis.step for axis in axes))


def _modes(axes: Axes) -> dict[str, str]:
    return {f"MODE_{name}": axis.mode for name, axis in zip("HWC", axes, strict=True)}


def _taps(axis: Axis, size: int, out_size: int) -> tuple[int, int]:
    """`first` of `_result`, in elements or in sources, and the copies of one source element."""
    least, most = axis.bounds(out_size)
    if axis.mode == "replicate":
        first = min(0, least)
        return first, max(0, most - size + 1) - first + 1
    if axis.mode == "circular":
        return least // size, most // size - least // size + 1
    return 0, 3 if axis.mode == "reflect" else 1


def remap_reference(
    x: Tensor, y: Tensor, *, axes: Axes, fill: float = 0.0, precision: str = "ieee"
) -> None:
    """Computes `remap` in torch."""
    values, outside = x, torch.zeros((), dtype=torch.bool, device=x.device)
    for dim, axis in enumerate(axes, 1):
        at, inside = _source_reference(axis, x.shape[dim], y.shape[dim], x.device)
        values = values.index_select(dim, at)
        outside = outside | ~_along(inside, dim)
    y.copy_(stored_reference(values.masked_fill(outside, fill), y.dtype, precision))


def remap_grad_reference(dy: Tensor, dx: Tensor, *, axes: Axes, precision: str = "ieee") -> None:
    """Computes `remap_grad` in float64."""
    total = dy.double()
    for dim, axis in enumerate(axes, 1):
        if not axis.is_identity(dx.shape[dim], dy.shape[dim]):
            total = _sum_of_copies(total, axis, dx.shape[dim], dim)
    dx.copy_(stored_reference(total.float(), dx.dtype, precision))


def _source_reference(
    axis: Axis, size: int, out_size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """`_source` of all elements of the result. An element without a source gets a valid index."""
    at = axis.start + axis.step * torch.arange(out_size, device=device)
    inside = (at >= 0) & (at < size)
    if axis.mode == "reflect":
        at = at.abs()
        at = torch.where(at >= size, 2 * (size - 1) - at, at)
    elif axis.mode == "circular":
        at = at % size
    return at.clamp(0, max(size - 1, 0)), inside | (axis.mode != "constant")


def _sum_of_copies(dy: Tensor, axis: Axis, size: int, dim: int) -> Tensor:
    """For each source element the sum of the elements of dy along `dim` that copy it."""
    at = torch.arange(size, device=dy.device)
    total = dy.new_zeros(*dy.shape[:dim], size, *dy.shape[dim + 1 :])
    for place, there in _copies(axis, at, size, dy.shape[dim]):
        i = torch.div(place - axis.start, axis.step, rounding_mode="floor")
        there = there & (axis.start + i * axis.step == place) & (i >= 0) & (i < dy.shape[dim])
        copies = dy.index_select(dim, i.clamp(0, dy.shape[dim] - 1))
        total += torch.where(_along(there, dim), copies, 0.0)
    return total


def _copies(
    axis: Axis, at: Tensor, size: int, out_size: int
) -> Iterator[tuple[Tensor, Tensor]]:  # fmt: skip
    """For each tap the indices that may stand for source elements `at`, and whether they do."""
    first, taps = _taps(axis, size, out_size)
    for tap in range(taps):
        if axis.mode == "replicate":
            place = at + (tap + first)
            below, above = (at == 0) & (place < 0), (at == size - 1) & (place >= size)
            yield place, (place == at) | below | above
        elif axis.mode == "reflect":
            place = (at, -at, 2 * (size - 1) - at)[tap]
            yield place, (place != at) | (tap == 0)
        else:
            yield at + (tap + first) * size * (axis.mode == "circular"), at == at


def _along(values: Tensor, dim: int) -> Tensor:
    """A vector along dimension `dim` of four."""
    return values.view([-1 if each == dim else 1 for each in range(4)])
