"""Windows of rows: the elements of one row of a map that a filter row reads for adjacent outputs.

In NHWC maps the taps of a filter row are adjacent elements. Kernels for few channels sum over the
windows of all filter rows as one axis. A window serves one output pixel or several adjacent ones,
which moves it by more elements from one step to the next. It starts and ends at multiples of its
vector, so that loads of up to 16 bytes never cross the edge of a map: 7x7 filters over 3 channels
at stride 2 load 56 vectors of 8 bytes for two outputs instead of 294 elements.
"""

from dataclasses import dataclass
from math import gcd
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from .tiles import Filter

VECTOR_NBYTES: Final = 16  # of a load of a thread, at most
FAR: tl.constexpr = tl.constexpr(-(1 << 24))  # a row of no map


@dataclass(frozen=True, slots=True)
class RowWindow:
    """The window of a filter row, in elements of the map's dtype."""

    outputs: int  # adjacent output pixels that it serves
    lead: int  # elements ahead of the first tap of the first output
    size: int
    vector: int  # what divides its places in a row, its size and the row

    def constants(self, taps: Filter) -> dict[str, int]:
        """Compile-time arguments of a kernel."""
        sizes = {"R": taps.size[0], "S": taps.size[1], "C": taps.in_channels}
        strides = {"STRIDE_H": taps.stride[0], "STRIDE_W": taps.stride[1]}
        own = {"OUTPUTS": self.outputs, "LEAD": self.lead, "E_ROW": self.size, "V": self.vector}
        return sizes | strides | own | {"VC": gcd(self.vector, taps.in_channels, self.lead)}


def suits_rows(taps: Filter, dtype: torch.dtype, precision: str) -> bool:
    """Whether windows of rows have a layer's taps: no groups, dilation, or exact float32."""
    plain = taps.blocks == 1 and not taps.has_bands and taps.dilation == (1, 1)
    return plain and taps.num_taps > 1 and not (dtype == torch.float32 and precision == "ieee")


def row_window(taps: Filter, in_w: int, outputs: int, dtype: torch.dtype) -> RowWindow:
    """The window for rows of `in_w` pixels and a filter without dilation."""
    channels, (_, stride), (_, pad) = taps.in_channels, taps.stride, taps.padding
    vector = gcd(VECTOR_NBYTES // dtype.itemsize, outputs * stride * channels, in_w * channels)
    lead = -pad * channels % vector
    size = lead + ((outputs - 1) * stride + taps.size[1]) * channels
    return RowWindow(outputs, lead, cdiv(size, vector) * vector, vector)


def geometry_of(x: Tensor, taps: Filter, window: RowWindow) -> tuple[int, ...]:
    """What `place_windows` and `load_windows` take of a map and of the padding."""
    row = x.shape[2] * taps.in_channels // window.vector
    first = -(taps.padding[1] * taps.in_channels + window.lead) // window.vector
    return x.shape[1], x.shape[2], row, taps.padding[0], taps.padding[1], first


@triton.jit
def size_of_sample(geometry, PITCH: tl.constexpr, C: tl.constexpr, V: tl.constexpr) -> tl.tensor:
    """Elements from one sample to the next."""
    in_h, in_w, row_units, _, _, _ = geometry
    return in_h * (row_units * V) if PITCH == C else in_h * (in_w * PITCH)


@triton.jit
def place_windows(
    inside, sample, row, column, geometry, PITCH: tl.constexpr,
    C: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, OUTPUTS: tl.constexpr,
    V: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """First row, place in a row, and offset of the windows of groups of outputs, each [P].

    sample, row and column count groups. Places are in vectors, or in pixels for ranges. Groups that
    are not `inside` get a row of no map.
    """
    in_h, in_w, row_units, pad_h, pad_w, _ = geometry
    in_row = row * STRIDE_H - pad_h
    if PITCH == C:
        place = column * (OUTPUTS * STRIDE_W * C // V)
        offs = ((sample * in_h + in_row) * row_units + place) * V
    else:
        place = column * (OUTPUTS * STRIDE_W) - pad_w
        offs = ((sample * in_h + in_row) * in_w + place) * PITCH
    return tl.where(inside, in_row, FAR), place, offs


@triton.jit
def load_windows(
    x_ptr, in_row, place, offs, offs_e, geometry, PITCH: tl.constexpr,
    C: tl.constexpr, R: tl.constexpr, LEAD: tl.constexpr,
    E_ROW: tl.constexpr, V: tl.constexpr, VC: tl.constexpr, CACHED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Elements offs_e [E] of all filter rows' windows: [P, E], zeros outside the map.

    CACHED is the cache modifier of the loads.
    """
    in_h, in_w, row_units, _, _, first = geometry
    # Triton finds vectors in quotients and remainders of adjacent numbers alone.
    if PITCH == C:
        r = offs_e // V // (E_ROW // V)
        shift = first + offs_e // V % (E_ROW // V)
        offs_e = (r * row_units + shift) * V + offs_e % V
        width = row_units
    else:
        r = offs_e // VC // (E_ROW // VC)
        ahead = offs_e // VC % (E_ROW // VC) + (8 * C - LEAD) // VC
        shift = ahead // (C // VC) - 8  # rounded down
        offs_e = (r * in_w + shift) * PITCH + ahead % (C // VC) * VC + offs_e % VC
        width = in_w
    # Elements behind the last filter row lie in a row of no map.
    r = tl.where(r < R, r, FAR)
    inside_h = (in_row[:, None] + r[None, :]).to(tl.uint32) < in_h.to(tl.uint32)
    inside_w = (place[:, None] + shift[None, :]).to(tl.uint32) < width.to(tl.uint32)
    mask = inside_h & inside_w
    ptrs = x_ptr + (offs[:, None] + offs_e[None, :])
    return tl.load(ptrs, mask, other=0.0, cache_modifier=CACHED)
