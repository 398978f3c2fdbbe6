"""Plans of transposed.py: which layers it suits, its tile, its steps, and the samples of a unit."""

from typing import Final

import torch
from triton import cdiv

from ..tiles import Pair, Tile, block_of
from .shape import GradWeightShape

STEP_PIXELS: Final = 32


def suits_transposing(layer: GradWeightShape) -> bool:
    """Whether transposed.py suits a layer: TF32, filters of three rows, stride and dilation 1."""
    taps = layer.taps
    dense = taps.size[0] == 3 and taps.stride == taps.dilation == (1, 1)
    return layer.dtype == torch.float32 and dense


def transposed_tile(layer: GradWeightShape) -> Tile:
    """The tile, which has two sums where a block has 64 output channels."""
    block_k = block_of(layer.taps.out_channels, 64, 128)
    return Tile(STEP_PIXELS, block_k, 64, 4, 6, parts=128 // block_k)


def transposed_row(width: int) -> Pair:
    """Samples and columns of a step of transposed.py that overruns rows of `width` pixels least."""
    columns = [STEP_PIXELS >> shift for shift in range(STEP_PIXELS.bit_length())]
    least = min(columns, key=lambda step: cdiv(width, step) * step)
    return STEP_PIXELS // least, least


def transposed_unit(layer: GradWeightShape, least: int, most: int) -> tuple[int, int]:
    """Samples and steps of a unit, of at least `least` steps where up to `most` samples have them.

    A step has pixels of as many samples as `transposed_row` says.
    """
    height, width = layer.out_sides
    samples, columns = transposed_row(width)
    steps = height * cdiv(width, columns)  # steps of `samples` samples
    amount = max(1, cdiv(steps, samples))
    unit = max(samples, block_of(cdiv(least, amount), 1, most))
    return unit, unit // samples * steps
