"""The sizes and types of a convolution whose weight gradient is summed."""

from dataclasses import dataclass, replace
from typing import Final

import torch

from ...language.channel_ranges import padded_channels
from ..tiles import Filter, Pair

CUTS: Final = (4, 2)  # parts of a sample, of at least so many pixels
LEAST_PART: Final = 49


@dataclass(frozen=True, slots=True)
class GradWeightShape:
    """The sizes and types of a convolution that a plan depends on."""

    in_sides: Pair  # height and width of x
    out_sides: Pair  # height and width of dy
    taps: Filter
    dtype: torch.dtype
    precision: str
    pitches: Pair  # channels from one pixel to the next of x and of dy

    @property
    def out_pixels(self) -> int:
        """Pixels of dy."""
        return self.out_sides[0] * self.out_sides[1]

    @property
    def is_pointwise(self) -> bool:
        """Whether each pixel of dy meets the same pixel of x alone."""
        taps = self.taps
        return taps.size == (1, 1) == taps.stride and taps.padding == (0, 0)

    @property
    def parts(self) -> int:
        """Parts of a sample that can count as samples, where steps are a pixel of many samples.

        Of 32 samples a step of 64 would else be half empty: 768->3072 @14 takes 115 us, whose
        products take 47 us (32 samples, H100, 2026-11).
        """
        pixels = self.out_pixels if self.is_pointwise else 0
        fit = (cut for cut in CUTS if pixels % cut == 0 and pixels // cut >= LEAST_PART)
        return next(fit, 1)

    @property
    def is_padded(self) -> bool:
        """Whether maps are padded to whole 16 bytes, one of them at least."""
        itemsize = self.dtype.itemsize
        whole = tuple(padded_channels(each, itemsize) for each in self.taps.channels)
        return self.taps.channels != self.pitches == whole

    @property
    def with_padding(self) -> "GradWeightShape":
        """The convolution of the padded maps. What their last channels hold has no meaning."""
        if not self.is_padded:
            return self
        in_channels, out_channels = self.pitches
        sizes = {"in_channels": in_channels, "out_channels": out_channels}
        taps = replace(self.taps, **sizes, widths=self.pitches, channels=self.pitches)
        return replace(self, taps=taps)
