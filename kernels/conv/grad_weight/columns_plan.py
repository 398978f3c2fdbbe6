"""Plans of columns.py: which layers it suits, and the samples of a unit."""

from math import gcd
from typing import Final

import torch
from triton import cdiv

from ..tiles import Tile
from .shape import GradWeightShape

STEP_PIXELS: Final = 32
TILE_COLUMNS: Final = 128  # channels of x at taps
TILE_OUTPUTS: Final = 256  # output channels of a tile
# The tile of all layers, with as many stages as shared memory holds.
COLUMNS_TILE: Final = Tile(STEP_PIXELS, TILE_OUTPUTS, TILE_COLUMNS, 4, 4)
QUAD: Final = 4  # channels of x that a thread loads together
# Output channels, and columns, at least: a tile of 128 outputs with two sums takes 1 to 30% longer
# than flat.py and per_sample.py, which are as fast as a whole tile for 64 columns (H200, 2026-11).
LEAST_OUTPUTS: Final = 160
LEAST_COLUMNS: Final = 128


def suits_columns(layer: GradWeightShape) -> bool:
    """Whether columns.py suits a layer: TF32, without groups, with as many channels as a tile."""
    taps = layer.taps
    if layer.dtype != torch.float32 or layer.precision == "ieee" or taps.has_bands:
        return False
    if any(each % QUAD for each in (*taps.channels, *layer.pitches)):
        return False
    wide = num_columns(layer) >= LEAST_COLUMNS and taps.out_channels >= LEAST_OUTPUTS
    return wide and taps.in_channels == taps.channels[0]


def num_columns(layer: GradWeightShape) -> int:
    """Columns of x: its channels at each tap."""
    return layer.taps.num_taps * layer.taps.in_channels


def columns_programs(layer: GradWeightShape) -> int:
    """Programs of one split."""
    tiles = cdiv(layer.taps.out_channels, TILE_OUTPUTS)
    return cdiv(num_columns(layer), TILE_COLUMNS) * tiles


def columns_unit(layer: GradWeightShape, least: int, most: int) -> tuple[int, int]:
    """Samples and steps of a unit, of at least `least` steps where up to `most` samples have them.

    Several units have whole steps each. A batch of fewer samples is one unit.
    """
    pixels = max(1, layer.out_pixels)
    whole = STEP_PIXELS // gcd(pixels, STEP_PIXELS)
    unit = whole
    while unit < most and unit * pixels < least * STEP_PIXELS:
        unit *= 2
    unit = min(unit, layer.few or unit)
    return unit, cdiv(unit * pixels, STEP_PIXELS)
