"""How batch normalization's kernels divide maps: slices of rows, and tiles of rows and channels.

A map is a matrix [rows, C] of pixels. Sums over all rows are first taken over slices. The bounds of
slices follow from the shape of the batch alone. Sums therefore have the same bits wherever launches
cut the batch.
"""

from dataclasses import dataclass
from math import gcd, prod
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from ..language import channel_ranges as ranges
from ..language.channel_blocks import best_block

LEAST_ROWS: Final = 256  # rows of a group, whose sums have at most 1.6% of the bytes of the rows
SLICE_ROWS: Final = 512  # rows of a slice, at least
MOST_SLICES: Final = 2048  # slices of a batch that has fewer samples
TILE_CHANNELS: Final = (64, 128, 32, 16)  # 64 bfloat16 channels are one 128-byte line
SUMMED: Final = 2048  # elements of a tile that is summed
MERGED: Final = {"BLOCK_P": 256, "BLOCK_C": 16, "STAGES": 2, "num_warps": 8}  # slices, channels


@dataclass(frozen=True, slots=True)
class BatchNormPlan:
    """A batch in groups of `group` samples, a power of two. A group has `splits` slices of rows."""

    group: int
    splits: int

    def partials_shape(self, samples: int, channels: int) -> tuple[int, int, int, int]:
        """The shape [groups, splits, 2, C] of two sums for every slice and channel."""
        return triton.cdiv(samples, self.group), self.splits, 2, channels


def batch_norm_plan(shape: tuple[int, ...]) -> BatchNormPlan:
    """The plan for a batch of maps of `shape` [N, ..., C]."""
    samples, pixels = shape[0], prod(shape[1:-1])
    wanted = triton.next_power_of_2(triton.cdiv(LEAST_ROWS, max(1, pixels)))
    most = max(1, MOST_SLICES // max(1, samples))
    splits = max(1, min(pixels // SLICE_ROWS, most))
    return BatchNormPlan(min(wanted, triton.next_power_of_2(max(1, samples))), splits)


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices of a launch."""

    count: int
    rows: int  # of the launch
    group_rows: int
    slice_rows: int
    splits: int  # slices of a group


def slices_of(shape: tuple[int, ...], partials: Tensor, group: int) -> Slices:
    """The slices of maps of `shape` [n, ..., C] whose first sample starts a group."""
    pixels = prod(shape[1:-1])
    groups, splits = partials.shape[:2]
    assert groups == triton.cdiv(shape[0], group)
    group_rows = group * pixels
    slice_rows = triton.cdiv(group_rows, splits)
    return Slices(groups * splits, shape[0] * pixels, group_rows, slice_rows, splits)


def slice_ranges(shape: tuple[int, ...], partials: Tensor, group: int) -> list[tuple[int, int]]:
    """The rows [start, stop) of every slice."""
    cut = slices_of(shape, partials, group)
    found = []
    for index in range(cut.count):
        number, part = divmod(index, cut.splits)
        start = number * cut.group_rows + part * cut.slice_rows
        stop = min(start + cut.slice_rows, (number + 1) * cut.group_rows, cut.rows)
        found.append((start, max(start, stop)))
    return found


def summing(*maps: Tensor | None) -> dict[str, int]:
    """Compile-time arguments and warps of a launch that sums rows of the maps.

    ALIGN divides channels and pitches. Loads of 16 bytes need 8 for bfloat16.
    """
    given = [each for each in maps if each is not None]
    channels = given[0].shape[-1]
    block_c = best_block(channels, TILE_CHANNELS)
    align = gcd(16, channels, *map(pitch_of, given))
    tile = {"ALIGN": align, "BLOCK_R": SUMMED // block_c, "BLOCK_C": block_c}
    return tile | ({"STAGES": 4, "num_warps": 4} if align >= 8 else {"STAGES": 1, "num_warps": 8})


def pitch_of(maps: Tensor | None) -> int:
    """Elements from one row of a map or of a channel range to the next; 0 without a map."""
    return 0 if maps is None else ranges.pitch_of(maps)


@triton.jit
def place_of(pid, channels, ALIGN: tl.constexpr, BLOCK_C: tl.constexpr) -> tl.tuple:
    """A program's slice or tile of rows (int64), its channels [BLOCK_C] and their mask."""
    tiles_c = tl.cdiv(channels, BLOCK_C)
    c = pid % tiles_c * BLOCK_C + tl.arange(0, BLOCK_C)
    return (pid // tiles_c).to(tl.int64), c, c < channels // ALIGN * ALIGN


@triton.jit
def slice_at(part, num_rows, group_rows, slice_rows, splits) -> tl.tuple:
    """First row (int64) and number of rows (int32) of slice `part`."""
    group, number = (part // splits).to(tl.int64), (part % splits).to(tl.int64)
    start = group * group_rows + number * slice_rows
    stop = tl.minimum(start + slice_rows, (group + 1) * group_rows)
    return start, tl.maximum(tl.minimum(stop, num_rows) - start, 0).to(tl.int32)


@triton.jit
def in_tile(count, mask_c, BLOCK_R: tl.constexpr) -> tl.tensor:
    """The mask [BLOCK_R, BLOCK_C] of a tile's first `count` rows and of channels `mask_c`."""
    return (tl.arange(0, BLOCK_R) < count)[:, None] & mask_c[None, :]


@triton.jit
def offsets(start, c, pitch, ALIGN: tl.constexpr, BLOCK_R: tl.constexpr) -> tl.tensor:
    """Offsets [BLOCK_R, BLOCK_C] of channels c of BLOCK_R rows from row `start` (int64) on.

    The division by ALIGN tells the compiler the alignment of rows.
    """
    pitch = pitch // ALIGN * ALIGN
    return start * pitch + (tl.arange(0, BLOCK_R)[:, None] * pitch + c[None, :])


@triton.jit
def words_at(
    start, count, channels, pitch, dtype: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Offsets and mask of the words of sign bits of a program's channels.

    The rows are the first `count` from row `start` (int64) on, `pitch` words apart. Words have the
    type `dtype`.
    """
    BITS: tl.constexpr = dtype.primitive_bitwidth
    WORDS: tl.constexpr = BLOCK_C // BITS
    words = channels // BITS
    rows = tl.arange(0, BLOCK_R)[:, None]
    word = tl.program_id(0) % tl.cdiv(channels, BLOCK_C) * WORDS + tl.arange(0, WORDS)[None, :]
    return start * pitch + (rows * pitch + word), (rows < count) & (word < words)


@triton.jit
def factors_of(statistics_ptr, weight_ptr, bias_ptr, c, mask, channels) -> tl.tuple:
    """Mean, factor and summand by which channels c are normalized, each of c's shape."""
    mean = tl.load(statistics_ptr + c, mask=mask, other=0.0)
    scale = tl.load(statistics_ptr + channels + c, mask=mask, other=0.0)
    shift = tl.zeros_like(scale)
    if weight_ptr is not None:
        scale *= tl.load(weight_ptr + c, mask=mask, other=0.0)
    if bias_ptr is not None:
        shift = tl.load(bias_ptr + c, mask=mask, other=0.0)
    return mean, scale, shift


@triton.jit
def normalizer(statistics_ptr, weight_ptr, bias_ptr, c, mask_c, channels) -> tl.tuple:
    """Mean, factor and summand by which channels c are normalized, [1, BLOCK_C] each."""
    mean, scale, shift = factors_of(statistics_ptr, weight_ptr, bias_ptr, c, mask_c, channels)
    return mean[None, :], scale[None, :], shift[None, :]


@triton.jit
def normalized(x, mean, scale, shift) -> tl.tensor:
    """(x - mean) * scale + shift. The mean is subtracted first: a large mean costs no digits."""
    return tl.fma(x - mean, scale, shift)
