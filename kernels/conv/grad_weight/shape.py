"""The sizes and types of a convolution whose weight gradient is summed."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch

from ...language.channel_ranges import padded_channels
from ..tiles import Filter, Pair

FEW_SAMPLES: Final = 64  # a plan depends on the samples of a batch that has fewer


@dataclass(frozen=True, slots=True)
class GradWeightShape:
    """The sizes and types of a convolution that a plan depends on."""

    in_sides: Pair  # height and width of x
    out_sides: Pair  # height and width of dy
    taps: Filter
    dtype: torch.dtype
    precision: str
    pitches: Pair  # channels from one pixel to the next of x and of dy
    few: int = 0  # samples of the whole batch where these are few, else 0

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
    def facts(self) -> dict[str, Any]:
        """The sizes and types that a configuration is for, without samples unless they are few."""
        facts = {"sides": self.out_sides, "dtype": self.dtype, "precision": self.precision}
        return asdict(self.taps) | facts | ({"few": self.few} if self.few else {})

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


def few_of(batch: int) -> int:
    """`few` for a batch of so many samples, whatever part of it a launch has; 0 for any batch."""
    return batch if batch < FEW_SAMPLES else 0
