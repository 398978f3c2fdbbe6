"""The sizes and types of a convolution whose weight gradient is summed."""

from dataclasses import dataclass

import torch

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
