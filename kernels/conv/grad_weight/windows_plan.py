"""Which layers sum windows of rows, and by which tile.

A tile depends on a layer's sizes alone. `parts` of it are the adjacent outputs that a window
serves, `pixels` the groups of that many outputs in a step.
"""

import functools
import itertools
from math import inf
from typing import Final

import torch
from triton import cdiv

from ..row_windows import RowWindow, row_window
from ..tiles import FEW_CHANNELS, TILE_CHANNELS, Box, Filter, Pair, Tile, block_of
from ..windows_tile import overlapping_box
from .shape import GradWeightShape

OUTPUTS: Final = (1, 2, 4)  # adjacent outputs of a window
MOST_OUTPUT_ROWS: Final = 128  # of a tile
ELEMENTS: Final = (32, 64, 128, 256)  # of windows, in a tile
VECTOR_COST: Final = 4  # of the address, mask and load of a vector: elements stored meanwhile
PRODUCT_COST: Final = 1 / 128  # of a multiply-add, likewise
UNIT_SAMPLES: Final = 32  # samples of a unit, at most
# Sums of a program of padded maps, at most: more places of sums take more registers than there are.
MOST_PADDED: Final = 64 * 128
MOST_SUMMED: Final = 4096  # taps times channels, at most


def suits_windows(layer: GradWeightShape, *, aligned: bool, flat: bool) -> bool:
    """Whether windows are summed: for few channels, in bfloat16, without groups and dilation.

    `aligned`: whether TMA can load both maps. `flat`: whether a tap is an offset in the flat map.
    Layers of 64 outputs or more do well without windows if both hold.
    """
    layer = layer.with_padding
    taps = layer.taps
    plain = taps.blocks == 1 and not taps.has_bands and taps.dilation == (1, 1)
    if not plain or layer.dtype != torch.bfloat16 or taps.num_taps == 1:
        return False
    if taps.num_taps * taps.in_channels > MOST_SUMMED:
        return False
    if row_window(layer.taps, layer.in_sides[1], max(OUTPUTS)).vector == 1:
        return False
    if taps.in_channels < FEW_CHANNELS or not aligned:
        return True
    few = taps.in_channels < TILE_CHANNELS
    return few and (not flat or taps.out_channels < TILE_CHANNELS)


@functools.cache
def windows_tile(layer: GradWeightShape) -> Tile:
    """The tile of grad_weight/row_windows.py of the least cost for each pixel."""
    most = MOST_PADDED if layer.is_padded else inf
    layer = layer.with_padding
    taps = layer.taps

    def cost(choice: tuple[int, int]) -> float:
        outputs, elements = choice
        window = row_window(taps, layer.in_sides[1], outputs)
        rows = _rows_of(taps, outputs)
        tiles = cdiv(taps.size[0] * window.size, elements) * cdiv(outputs * taps.out_channels, rows)
        vectors = VECTOR_COST * elements / window.vector
        products = PRODUCT_COST * elements * max(rows, 64)
        return tiles * (elements + rows + vectors + products) / outputs

    outputs, elements = min(
        (
            each
            for each in itertools.product(OUTPUTS, ELEMENTS)
            if layer.out_sides[1] % each[0] == 0 and _rows_of(taps, each[0]) * each[1] <= most
        ),
        key=cost,
    )
    rows = _rows_of(taps, outputs)
    groups = 64 if elements > 64 else 128
    large = elements * rows > 128 * 64
    return Tile(groups, rows, elements, 8 if large else 4, 3, parts=outputs)


def _rows_of(taps: Filter, outputs: int) -> int:
    return block_of(outputs * taps.out_channels, 16, MOST_OUTPUT_ROWS)


def window_of(layer: GradWeightShape, tile: Tile) -> RowWindow:
    """The window of a step of a tile."""
    layer = layer.with_padding
    return row_window(layer.taps, layer.in_sides[1], tile.parts)


def windows_box(layer: GradWeightShape, tile: Tile) -> Box:
    """The box of groups of outputs of a step."""
    height, width = layer.out_sides
    return overlapping_box(height, width // tile.parts, tile.pixels)


def windows_unit(layer: GradWeightShape, tile: Tile, least: int) -> Pair:
    """Samples of a unit, of at least `least` steps where UNIT_SAMPLES allow, and its steps."""
    samples, rows, columns = windows_box(layer, tile)
    height, width = layer.out_sides
    boxes = cdiv(height, rows) * cdiv(width // tile.parts, columns)
    wanted = block_of(cdiv(least * samples, max(1, boxes)), 1, UNIT_SAMPLES)
    unit = max(samples, wanted)
    return unit, unit // samples * boxes


def windows_programs(layer: GradWeightShape, tile: Tile) -> int:
    """Programs of one split."""
    taps = layer.with_padding.taps
    elements = taps.size[0] * window_of(layer, tile).size
    rows = tile.parts * taps.out_channels
    return cdiv(elements, tile.in_channels) * cdiv(rows, tile.out_channels)
