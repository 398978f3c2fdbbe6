"""How steps of one pixel of many samples are filled: by parts of samples, or by shorter steps.

Filters of one tap may take each of `cut` parts of a sample as a sample, if the parts are equal.
Pixels that are left over could be steps of the last part alone, by descriptors with an axis of
parts. But these reshape the operands, of which Triton then holds the first in registers while its
products run: sums that changed from run to run on 3.6 (see tma.py). Shorter steps are exact.
"""

from dataclasses import replace
from typing import Final

from triton import cdiv

from ..tiles import Tile
from .shape import GradWeightShape

CUTS: Final = (4, 2)  # equal parts of a sample for any batch, of at least so many pixels
LEAST_PART: Final = 49
FEW_CUTS: Final = (1, 2, 4)  # parts for a batch of few samples, of at least so many pixels
FEW_LEAST_PART: Final = 12
SHORT_STEPS: Final = (32, 16)  # samples of a step, for a batch of few: products sum at least 16
MOST_STAGES: Final = 8


def filled_steps(layer: GradWeightShape, tile: Tile, *, cuts: bool) -> tuple[Tile, int]:
    """The tile, and the parts of a sample that count as samples, 1 unless the kernel `cuts`.

    A batch of few samples has the steps that waste least: as long as they may be. Of 32 samples a
    step of 64 would else be half empty: 768->3072 @14 takes 115 us, whose products take 47 us (32
    samples, H100, 2026-11).
    """
    pixels = layer.out_pixels
    usual = _usual_cut(pixels) if cuts and layer.is_pointwise else 1
    if layer.few == 0:
        return tile, usual
    fits = (cut for cut in FEW_CUTS if pixels % cut == 0 and pixels // cut >= FEW_LEAST_PART)
    parts = (usual, *fits) if cuts and layer.is_pointwise else (1,)
    steps = (tile.pixels, *(step for step in SHORT_STEPS if step < tile.pixels))

    def summed(choice: tuple[int, int]) -> int:
        step, cut = choice
        return cdiv(layer.few * cut, step) * step * (pixels // cut)

    step, cut = min(((step, cut) for step in steps for cut in parts), key=summed)
    return _of_step(tile, step), cut


def _usual_cut(pixels: int) -> int:
    fit = (cut for cut in CUTS if pixels % cut == 0 and pixels // cut >= LEAST_PART)
    return next(fit, 1)


def _of_step(tile: Tile, step: int) -> Tile:
    """The tile with steps of so many samples, and as many bytes in flight where that may be."""
    stages = min(tile.num_stages * tile.pixels // step, MOST_STAGES)
    return replace(tile, pixels=step, num_stages=max(stages, tile.num_stages))
