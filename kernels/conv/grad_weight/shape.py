"""The sizes and types of a convolution whose weight gradient is summed."""

from dataclasses import dataclass, replace

import torch

from ...language.channel_ranges import padded_channels
from ..tiles import Filter, Pair


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
