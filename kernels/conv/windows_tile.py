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
from .row_windows import RowWindow, row_window
from .tiles import FEW_CHANNELS, TILE_CHANNELS, Box, Filter, block_of

OUTPUTS: Final = (1, 2, 4)  # adjacent outputs of a window
MOST_ROWS: Final = 128  # outputs times output channels of a product
ELEMENTS: Final = (64, 32, 16)  # of windows, in a step of a product
WEIGHTS_NBYTES: Final = 72 << 10  # of a program, in shared memory
FEW_ELEMENTS: Final = 320  # that a thread of four warps holds: of 352 triton 3.6 spills 68 bytes
PROGRAMS: Final = ((64, 2), (128, 1), (64, 1))  # groups of a tile, programs on a multiprocessor
MOST_ELEMENTS: Final = 384  # of windows in all filter rows; a thread holds those of a tile
OTHER_NBYTES: Final = 4 << 10  # of shared memory, for barriers and the system
STEP_COST: Final = 8  # of a step, in elements of windows that are loaded meanwhile
VECTOR_COST: Final = 4  # of the address, mask and load of a vector, likewise
SAMPLE_COST: Final = 1 / 16  # of a sample of a box, in pixels of the box that lie outside the map


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


def windows_tile(taps: Filter, dtype: torch.dtype, in_w: int) -> WindowsTile | None:
    """The tile of least cost for each pixel. None where windows do not suit a layer.

    They suit filters of few channels in bfloat16, without groups and dilation, whose weights
    shared memory holds. Loads must be of several elements: of single ones threads hold too many
    pointers, and 11x11 filters over 3 channels @227 spill 1.2 KB of registers (triton 3.6, sm_90a).
    """
    few = taps.in_channels < TILE_CHANNELS and taps.out_channels <= TILE_CHANNELS
    few &= taps.out_channels >= FEW_CHANNELS
    plain = taps.blocks == 1 and not taps.reads_bands and taps.dilation == (1, 1)
    if not (few and plain) or dtype != torch.bfloat16 or taps.num_taps == 1:
        return None
    return None if (0, 0) < capability() < (9, 0) else _tile_of(taps, in_w, shared_nbytes())


@functools.cache
def _tile_of(taps: Filter, in_w: int, shared: int) -> WindowsTile | None:
    def cost(tile: WindowsTile) -> float:
        rows, elements = _rows(tile), _elements(taps, tile)
        steps = STEP_COST * elements / tile.elements
        vectors = VECTOR_COST * elements / tile.window.vector
        return (elements * (1 + rows / MOST_ROWS) + vectors + steps) / tile.window.outputs

    tiles = (
        _resident(taps, tile, shared)
        for tile in _candidates(taps, in_w)
        if _rows(tile) <= MOST_ROWS and tile.window.vector > 1
    )
    return min((tile for tile in tiles if tile is not None), key=cost, default=None)


def _candidates(taps: Filter, in_w: int) -> Iterator[WindowsTile]:
    """Tiles whose products have the 64 rows of a warpgroup, or more."""
    for outputs, elements in itertools.product(OUTPUTS, ELEMENTS):
        channels = block_of(taps.out_channels, TILE_CHANNELS // outputs, TILE_CHANNELS)
        yield WindowsTile(row_window(taps, in_w, outputs), 64, channels, elements, 4, 2)


def _resident(taps: Filter, tile: WindowsTile, shared: int) -> WindowsTile | None:
    """The tile with two programs on a multiprocessor, or with one, as shared memory allows."""
    elements, rows = _elements(taps, tile), _rows(tile)
    if 2 * rows * elements > WEIGHTS_NBYTES or elements > MOST_ELEMENTS:
        return None
    for groups, residents in PROGRAMS if elements <= FEW_ELEMENTS else PROGRAMS[2:]:
        nbytes = 2 * (rows * elements + groups * elements + groups * rows)
        if residents * (nbytes + OTHER_NBYTES) <= shared:
            warps = 4 if residents == 2 else 8
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
