"""Ranges of channels: maps [N, H, W, C] whose pixels lie at one pitch, in a wider map."""

from torch import Tensor


def pitch_of(maps: Tensor) -> int:
    """Elements from one pixel to the next: the channels of the wider map, or the map's own.

    The stride of an axis of one element means nothing, and torch gives it any number where a map of
    one pixel is viewed. The innermost axis of more elements tells the pitch.
    """
    pixels = 1
    for size, stride in zip(reversed(maps.shape[:-1]), reversed(maps.stride()[:-1]), strict=True):
        if size > 1:
            return stride // pixels
        pixels *= size
    return maps.shape[-1]


def is_range(maps: Tensor) -> bool:
    """Whether a map is contiguous or a range of one that is, and none of its pixels are skipped."""
    _, height, width, _ = maps.shape
    pitch = pitch_of(maps)
    pitches = (height * width * pitch, width * pitch, pitch, 1)
    sides = zip(maps.shape, maps.stride(), pitches, strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in sides)


def flat_rows(maps: Tensor) -> Tensor:
    """Each row of pixels as one axis [N, H, X], with what lies between their channels."""
    samples, height, width, channels = maps.shape
    pitch = pitch_of(maps)
    row = width * pitch
    return maps.as_strided((samples, height, row - pitch + channels), (height * row, row, 1))


def flat_samples(maps: Tensor) -> Tensor:
    """Each sample as one axis [N, X], with what lies between its pixels' channels."""
    samples, height, width, channels = maps.shape
    pitch = pitch_of(maps)
    row = height * width * pitch
    return maps.as_strided((samples, row - pitch + channels), (row, 1))


def halves_of(maps: Tensor) -> Tensor:
    """Pairs of rows and of columns as axes of their own: [N, H/2, 2, W/2, pitch + C]."""
    samples, height, width, channels = maps.shape
    pitch = pitch_of(maps)
    row = width * pitch
    sides = (samples, height // 2, 2, width // 2, pitch + channels)
    return maps.as_strided(sides, (height * row, 2 * row, row, 2 * pitch, 1))
