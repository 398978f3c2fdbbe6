"""Plans of columns.py: which layers it suits, its tile, and the samples of a unit."""

from math import gcd
from typing import Final

import torch
from triton import cdiv

from ..tiles import Tile
from .shape import GradWeightShape

STEP_PIXELS: Final = 32
TILE_COLUMNS: Final = 128  # channels of x at taps
TILE_OUTPUTS: Final = (128, 256)  # output channels of a tile
STAGES: Final = {128: 6, 256: 4}  # by output channels of a tile: as many as shared memory holds
QUAD: Final = 4  # channels of x that a thread loads together
LEAST_OUTPUTS: Final = 65  # output channels: fewer fill no half of a tile
LEAST_COLUMNS: Final = 128
TURNS: Final = True  # whether the groups of warps start their products one after the other


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


def columns_tile(layer: GradWeightShape) -> Tile:
    """The tile, which has two sums where a block has 128 output channels."""
    narrow, wide = TILE_OUTPUTS
    outputs = narrow if layer.taps.out_channels <= narrow else wide
    return Tile(STEP_PIXELS, outputs, TILE_COLUMNS, 4, STAGES[outputs], parts=wide // outputs)


def columns_programs(layer: GradWeightShape, tile: Tile) -> int:
    """Programs of one split."""
    tiles = cdiv(layer.taps.out_channels, tile.out_channels)
    return cdiv(num_columns(layer), tile.in_channels) * tiles


def columns_unit(layer: GradWeightShape, least: int, most: int) -> tuple[int, int]:
    """Samples and steps of a unit, of at least `least` steps where up to `most` samples have them.

    Several units have whole steps each. A batch of few samples is one unit.
    """
    pixels = max(1, layer.out_pixels)
    whole = STEP_PIXELS // gcd(pixels, STEP_PIXELS)
    unit = whole
    while unit < most and unit * pixels < least * STEP_PIXELS:
        unit *= 2
    unit = layer.few or unit
    return unit, cdiv(unit * pixels, STEP_PIXELS)
