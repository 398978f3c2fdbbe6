"""Which layers sum windows of rows, and by which tile.

A tile depends on a layer's sizes alone. `parts` of it are the adjacent outputs that a window
serves, `pixels` the groups of that many outputs in a step.
"""

import functools
import itertools
from typing import Final

import torch
from triton import cdiv

from ..row_windows import RowWindow, row_window, suits_rows
from ..tiles import FEW_CHANNELS, TILE_CHANNELS, Box, Pair, Tile, block_of
from ..windows_tile import overlapping_box
from .shape import GradWeightShape

OUTPUTS: Final = (1, 2, 4)  # adjacent outputs of a window
# By the bytes of an element. Products of float32 are those of single warps: those of warpgroups
# cannot transpose it. Triton 3.9 loads single values to 64 rows by 32 elements of float32.
LEAST_OUTPUT_ROWS: Final = {2: 64, 4: 16}  # of a product
MOST_OUTPUT_ROWS: Final = {2: 128, 4: 64}  # of a tile
ELEMENTS: Final = {2: (32, 64, 128, 256), 4: (64, 128)}  # of windows, in a tile
MOST_SUMS: Final = {2: 128 * 256, 4: 64 * 128}  # of a program
# By which windows of float32 win over transposed.py, of channels of x: 32 -> 32 @112 takes 337 us
# instead of 462, 48 -> 48 @56 228 instead of 135 (128 samples, H200, 2026-11-28).
MOST_FLAT: Final = 32
ROW_COST: Final = {2: 1, 4: 2}  # of an output that is loaded, in elements stored meanwhile
VECTOR_COST: Final = 4  # of the address, mask and load of a vector, likewise
PRODUCT_COST: Final = {2: 1 / 128, 4: 1 / 32}  # of a multiply-add, likewise
FLOAT32_GROUPS: Final = 32  # of adjacent outputs, in a step
UNIT_SAMPLES: Final = 32  # samples of a unit, at most
# Sums of a program of padded maps, at most: more places of sums take more registers than there are.
MOST_PADDED: Final = 64 * 128
MOST_SUMMED: Final = 4096  # taps times channels, at most


def suits_windows(layer: GradWeightShape, *, aligned: bool, flat: bool) -> bool:
    """Whether windows are summed: for few channels, without groups and dilation, not exactly.

    `aligned`: whether TMA can load both maps. `flat`: whether a tap is an offset in the flat map.
    Layers of 64 outputs or more do well without windows if both hold.
    """
    layer = layer.with_padding
    taps = layer.taps
    if not suits_rows(taps, layer.dtype, layer.precision):
        return False
    if taps.num_taps * taps.in_channels > MOST_SUMMED:
        return False
    if row_window(taps, layer.in_sides[1], max(OUTPUTS), layer.dtype).vector == 1:
        return False
    if taps.in_channels < FEW_CHANNELS or not aligned:
        return True
    few = taps.in_channels < TILE_CHANNELS
    if flat and layer.dtype == torch.float32 and taps.in_channels > MOST_FLAT:
        return False
    return few and (not flat or taps.out_channels < TILE_CHANNELS)


@functools.cache
def windows_tile(layer: GradWeightShape) -> Tile:
    """The tile of grad_weight/row_windows.py of the least cost for each pixel."""
    itemsize = layer.dtype.itemsize
    most = min(MOST_SUMS[itemsize], MOST_PADDED) if layer.is_padded else MOST_SUMS[itemsize]
    layer = layer.with_padding
    taps = layer.taps

    def cost(choice: tuple[int, int]) -> float:
        outputs, elements = choice
        window = row_window(taps, layer.in_sides[1], outputs, layer.dtype)
        rows = _rows_of(layer, outputs)
        tiles = cdiv(taps.size[0] * window.size, elements) * cdiv(outputs * taps.out_channels, rows)
        vectors = VECTOR_COST * elements / window.vector
        products = PRODUCT_COST[itemsize] * elements * max(rows, LEAST_OUTPUT_ROWS[itemsize])
        loaded = elements + ROW_COST[itemsize] * rows
        return tiles * (loaded + vectors + products) / outputs

    outputs, elements = min(
        (
            each
            for each in itertools.product(OUTPUTS, ELEMENTS[itemsize])
            if layer.out_sides[1] % each[0] == 0 and _rows_of(layer, each[0]) * each[1] <= most
        ),
        key=cost,
    )
    rows = _rows_of(layer, outputs)
    if itemsize == 4:
        return Tile(FLOAT32_GROUPS, rows, elements, 2, 3, parts=outputs)
    groups = 64 if elements > 64 else 128
    large = elements * rows > 128 * 64
    return Tile(groups, rows, elements, 8 if large else 4, 3, parts=outputs)


def _rows_of(layer: GradWeightShape, outputs: int) -> int:
    most = MOST_OUTPUT_ROWS[layer.dtype.itemsize]
    return block_of(outputs * layer.taps.out_channels, 16, most)


def window_of(layer: GradWeightShape, tile: Tile) -> RowWindow:
    """The window of a step of a tile."""
    layer = layer.with_padding
    return row_window(layer.taps, layer.in_sides[1], tile.parts, layer.dtype)


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
