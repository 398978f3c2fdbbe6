"""Which forward passes and data gradients sum windows of rows, and by which tile."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import torch
from triton import cdiv

from ..language.device import capability, shared_nbytes
from .row_windows import RowWindow, row_window, suits_rows
from .tiles import FEW_CHANNELS, TILE_CHANNELS, Box, Filter, block_of, step_channels

OUTPUTS: Final = (1, 2, 4)  # adjacent outputs of a window
MOST_ROWS: Final = 128  # outputs times output channels of a product
ELEMENTS: Final = (64, 32, 16)  # of windows, in a step of a product
MOST_ELEMENTS: Final = 384  # of windows in all filter rows
HELD_NBYTES: Final = 320  # of a tile's windows that a thread holds: of 352 triton 3.6 spills 68
# By the bytes of an element:
WEIGHTS_NBYTES: Final = {2: 72 << 10, 4: 112 << 10}  # of a program, in shared memory
PROGRAMS: Final = {  # groups of a tile, programs on a multiprocessor
    2: ((64, 2), (128, 1), (64, 1)),
    4: ((64, 2), (32, 2), (64, 1)),
}
OTHER_NBYTES: Final = 4 << 10  # of shared memory, for barriers and the system
STEP_COST: Final = 8  # of a step, in elements of windows that are loaded meanwhile
VECTOR_COST: Final = 4  # of the address, mask and load of a vector, likewise
SAMPLE_COST: Final = 1 / 16  # of a sample of a box, in pixels of the box that lie outside the map
# Elements of a filter, at least: im2col.py takes 7% less for 3x3 over 3 channels in float32 (H200).
LEAST_ELEMENTS: Final = {2: 1, 4: 32}


@dataclass(frozen=True, slots=True)
class WindowsTile:
    """The tile of windows.py, and how it is run."""

    window: RowWindow
    groups: int  # of adjacent outputs
    out_channels: int
    elements: int  # of windows, in a step
    num_warps: int
    residents: int  # programs on a multiprocessor

    def box(self, height: int, width: int, *, pooled: bool = False) -> Box:
        """The box of groups for a map of these sides, which has whole windows if `pooled`."""
        return overlapping_box(
            height, cdiv(width, self.window.outputs), self.groups, 2 if pooled else 1
        )

    def pixels(self, box: Box) -> Box:
        """The box of pixels of a box of groups."""
        return box[0], box[1], box[2] * self.window.outputs


def windows_tile(taps: Filter, dtype: torch.dtype, precision: str, in_w: int) -> WindowsTile | None:
    """The tile of least cost for each pixel. None where windows do not suit a layer.

    They suit filters of few channels without groups and dilation, whose weights shared memory
    holds, but no exact products of float32. Loads must be of several elements: of single ones
    threads hold too many pointers, and 11x11 filters over 3 channels @227 spill 1.2 KB of
    registers (triton 3.6, sm_90a, bfloat16).
    """
    few = taps.in_channels < step_channels(dtype) and taps.out_channels <= TILE_CHANNELS
    few &= taps.out_channels >= FEW_CHANNELS
    few &= not taps.reads_bands and suits_rows(taps, dtype, precision)
    few &= taps.num_taps * taps.in_channels >= LEAST_ELEMENTS[dtype.itemsize]
    if not few or (0, 0) < capability() < (9, 0):
        return None
    return _tile_of(taps, dtype, in_w, shared_nbytes())


@functools.cache
def _tile_of(taps: Filter, dtype: torch.dtype, in_w: int, shared: int) -> WindowsTile | None:
    def cost(tile: WindowsTile) -> float:
        rows, elements = _rows(tile), _elements(taps, tile)
        steps = STEP_COST * elements / tile.elements
        vectors = VECTOR_COST * elements / tile.window.vector
        products = elements * (1 + rows / MOST_ROWS) * dtype.itemsize / 2
        return (products + vectors + steps) / tile.window.outputs

    tiles = (
        _resident(taps, tile, dtype.itemsize, shared)
        for tile in _candidates(taps, dtype, in_w)
        if _rows(tile) <= MOST_ROWS and tile.window.vector > 1
    )
    return min((tile for tile in tiles if tile is not None), key=cost, default=None)


def _candidates(taps: Filter, dtype: torch.dtype, in_w: int) -> Iterator[WindowsTile]:
    """Tiles whose products have the 64 rows of a warpgroup, or more."""
    for outputs, elements in itertools.product(OUTPUTS, ELEMENTS):
        channels = block_of(taps.out_channels, TILE_CHANNELS // outputs, TILE_CHANNELS)
        yield WindowsTile(row_window(taps, in_w, outputs, dtype), 64, channels, elements, 4, 2)


def _resident(taps: Filter, tile: WindowsTile, itemsize: int, shared: int) -> WindowsTile | None:
    """The tile with two programs on a multiprocessor, or with one, as shared memory allows."""
    elements, rows = _elements(taps, tile), _rows(tile)
    weights = itemsize * rows * elements
    if weights > WEIGHTS_NBYTES[itemsize] or elements > MOST_ELEMENTS:
        return None
    # Triton has the windows of one step in shared memory at a time. Tiles of bfloat16 were chosen
    # with room for those of all steps.
    staged = elements if itemsize == 2 else tile.elements
    for groups, residents in PROGRAMS[itemsize]:
        warps = 4 if residents == 2 else 8
        held = itemsize * groups * elements / (32 * warps)
        nbytes = weights + itemsize * groups * (staged + rows)
        if held <= HELD_NBYTES and residents * (nbytes + OTHER_NBYTES) <= shared:
            return replace(tile, groups=groups, num_warps=warps, residents=residents)
    return None


def _rows(tile: WindowsTile) -> int:
    return tile.window.outputs * tile.out_channels


def _elements(taps: Filter, tile: WindowsTile) -> int:
    return cdiv(taps.size[0] * tile.window.size, tile.elements) * tile.elements


@functools.cache
def overlapping_box(height: int, width: int, groups: int, least: int = 1) -> Box:
    """The box that overruns a map little and has few samples: windows of one sample overlap."""
    powers = [1 << exponent for exponent in range(groups.bit_length())]
    sides = [each for each in itertools.product(powers, powers) if min(each) >= least]
    boxes = [(groups // prod(each), *each) for each in sides if prod(each) <= groups]

    def cost(box: Box) -> tuple[float, int]:
        samples, rows, columns = box
        covered = cdiv(height, rows) * rows * cdiv(width, columns) * columns
        return covered * (1 + samples * SAMPLE_COST), rows + columns

    return min(boxes, key=cost)
