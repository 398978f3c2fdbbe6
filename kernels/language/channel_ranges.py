"""Channel ranges: maps [N, H, W, C] that are some of the channels of a wider contiguous map.

The pitch of a range is the number of elements from one pixel to the next.
"""

from math import gcd
from typing import Final

from torch import Tensor
from triton import cdiv

ALIGNMENT: Final = 16  # bytes, of which TMA moves whole multiples


def pitch_of(maps: Tensor) -> int:
    """Elements from one pixel to the next: the channels of the wider map, or of the map itself.

    The innermost axis of more than one element gives the pitch. The stride of an axis of one
    element may be any number, for example in a view of a map of one pixel.
    """
    pixels = 1
    for size, stride in zip(reversed(maps.shape[:-1]), reversed(maps.stride()[:-1]), strict=True):
        if size > 1:
            return stride // pixels
        pixels *= size
    return maps.shape[-1]


def is_aligned(sides: tuple[int, int], channels: int, pitch: int, itemsize: int) -> bool:
    """Whether every pixel of maps of these sides (h, w) starts at a multiple of 16 bytes.

    Only channels tell so of maps of one pixel: the pitch of a single sample is not known.
    """
    return (pitch if sides != (1, 1) else channels) * itemsize % ALIGNMENT == 0


def word_of(maps: Tensor) -> int:
    """Elements of the longest load, at most 16 bytes, whose whole multiples start each pixel.

    Such loads may go past the last channel. They end within the pixel's pitch.
    """
    return gcd(ALIGNMENT // maps.element_size(), pitch_of(maps), maps.storage_offset())


def padded_channels(channels: int, itemsize: int) -> int:
    """Channels of a map whose pixels are padded to whole 16 bytes."""
    unit = ALIGNMENT // itemsize
    return cdiv(channels, unit) * unit


def with_channels(maps: Tensor, channels: int) -> Tensor:
    """View of a range as one of so many channels, no more than the pitch."""
    return maps.as_strided((*maps.shape[:3], channels), maps.stride())


def is_range(maps: Tensor) -> bool:
    """Whether a map is contiguous or a channel range of a contiguous map, with all its pixels."""
    _, height, width, _ = maps.shape
    pitch = pitch_of(maps)
    pitches = (height * width * pitch, width * pitch, pitch, 1)
    sides = zip(maps.shape, maps.stride(), pitches, strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in sides)


def flat_rows(maps: Tensor) -> Tensor:
    """View of a range as [N, H, X]: a row's pixels, and the elements between them, on one axis."""
    samples, height, width, channels = maps.shape
    pitch = pitch_of(maps)
    row = width * pitch
    return maps.as_strided((samples, height, row - pitch + channels), (height * row, row, 1))


def flat_samples(maps: Tensor, cut: int = 1) -> Tensor:
    """View of a range as [N * cut, X]: the pixels of a part of a sample on one axis.

    X counts the elements between pixels too. Parts are of equal sizes.
    """
    samples, height, width, channels = maps.shape
    pitch = pitch_of(maps)
    row = height * width // cut * pitch
    return maps.as_strided((samples * cut, row - pitch + channels), (row, 1))


def split_even_odd(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Views of a range as [N, H/2, 2, W/2, C]: its even and its odd columns, rows apart likewise.

    H and W are even. Both views start at multiples of 16 bytes where all pixels do.
    """
    samples, height, width, channels = maps.shape
    pitch = pitch_of(maps)
    row = width * pitch
    sides = (samples, height // 2, 2, width // 2, channels)
    strides = (height * row, 2 * row, row, 2 * pitch, 1)
    start = maps.storage_offset()
    return maps.as_strided(sides, strides, start), maps.as_strided(sides, strides, start + pitch)


def merged_pixels(maps: Tensor, count: int) -> Tensor | None:
    """View [N, H, W / count, count * C]: adjacent pixels as one. None for a part of wider maps."""
    samples, height, width, channels = maps.shape
    if count == 1:
        return maps
    if not maps.is_contiguous():
        return None
    return maps.view(samples, height, width // count, count * channels)
