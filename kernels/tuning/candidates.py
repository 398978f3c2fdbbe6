"""Configurations worth trying for a launch: such as fit registers and shared memory.

None changes the order of a sum, the pixels of a tile, or what leaves beside the sums.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import torch
from triton import cdiv

from ..conv.tiles import ROWS_PACKED_STAGES, STEP_NBYTES, Tile
from ..language.device import shared_nbytes
from ..language.overrides import Configuration, TileRequest
from ..linear.gemm import MOST_DEPTH, Tiles

MOST: Final = 10  # of a launch
MOST_SUMS: Final = 128  # of a thread, in registers
MOST_PLAIN_SUMS: Final = 64  # where plain FMA takes its operands from registers as well
WARPS: Final = 8  # of the programs that share a multiprocessor: 256 registers a thread
BARRIERS_NBYTES: Final = 1024
Options = Mapping[str, Sequence[int]]


def candidates(asked: TileRequest) -> list[Configuration]:
    """Those that change least first."""
    options, fits = _KERNELS[asked.kernel](asked)
    found = sorted(_changes(asked.tile, options, fits), key=len)
    return found[:MOST]


def _changes(tile: Any, options: Options, fits: Callable[[Any], bool]) -> Iterator[Configuration]:
    before = asdict(tile)
    for values in itertools.product(*options.values()):
        chosen = dict(zip(options, values, strict=True))
        changed = {name: value for name, value in chosen.items() if value != before[name]}
        if changed and fits(replace(tile, **changed)):
            yield changed


Ways = tuple[Options, Callable[[Any], bool]]


def _specialized(asked: TileRequest) -> Ways:
    facts, tile = asked.facts, asked.tile
    itemsize, (_, rows, columns), taps = _itemsize(asked), facts["box"], facts["size"][0]
    left = 4 if facts["pooled"] else tile.parts

    def fits(other: Tile) -> bool:
        weights = other.out_channels * STEP_NBYTES
        if facts["rows"]:
            nbytes = other.num_stages * (rows + taps - 1) * columns * STEP_NBYTES
            nbytes += ROWS_PACKED_STAGES * taps * weights
        else:
            nbytes = other.num_stages * (other.pixels * STEP_NBYTES + weights)
        nbytes += 2 * other.pixels * other.out_channels * itemsize // left
        return nbytes + BARRIERS_NBYTES <= shared_nbytes() and _sums(other) <= MOST_SUMS

    return {"out_channels": _out_channels(asked), "num_stages": _around(tile.num_stages, 2)}, fits


def _box(asked: TileRequest) -> Ways:
    """Windows take registers: they keep their channels."""
    tile, pooled = asked.tile, asked.facts["pooled"]

    def fits(other: Tile) -> bool:
        nbytes = _step_nbytes(asked, other) * other.num_stages * other.residents
        whole = other.num_warps * other.residents == WARPS
        return whole and nbytes <= shared_nbytes() and _sums(other) <= MOST_SUMS

    options = {
        "flatten": (True, False),
        "num_stages": _around(tile.num_stages, 1),
        "out_channels": (tile.out_channels,) if pooled else _out_channels(asked),
        "num_warps": (4, 8),
        "residents": (1, 2),
    }
    return options, fits


def _im2col(asked: TileRequest) -> Ways:
    options = {
        "num_warps": (4, 8),
        "in_channels": (16, 32),
        "out_channels": _out_channels(asked),
    }
    return options, lambda other: _sums(other) <= MOST_SUMS


def _pointer(asked: TileRequest) -> Ways:
    most = MOST_PLAIN_SUMS if _is_exact(asked) else MOST_SUMS

    def fits(other: Tile) -> bool:
        nbytes = _step_nbytes(asked, other) * other.num_stages
        return nbytes <= shared_nbytes() and _sums(other) <= most

    stages = asked.tile.num_stages
    options = {
        "num_stages": _around(stages, 1) if stages > 1 else (1,),
        "num_warps": (4, 8),
        "out_channels": sorted({max(16, asked.tile.out_channels // 2), asked.tile.out_channels}),
    }
    return options, fits


def _grad_weight(asked: TileRequest) -> Ways:
    """The tile sets the splits: what is left are stages and, of wgmma's products, warps."""
    tile, way = asked.tile, asked.facts["way"]
    sums = 3 if way == "taps" else 1

    def fits(other: Tile) -> bool:
        channels = other.out_channels + sums * other.in_channels
        nbytes = other.pixels * channels * _itemsize(asked) * other.num_stages
        each = other.out_channels * sums * other.in_channels // (32 * other.num_warps)
        return nbytes <= shared_nbytes() and each <= MOST_SUMS

    free = asked.facts["dtype"] == torch.bfloat16 and way != "turned"
    warps = (4, 8) if free else (tile.num_warps,)
    return {"num_stages": _around(tile.num_stages, 2), "num_warps": warps}, fits


def _linear(asked: TileRequest) -> Ways:
    tile, facts = asked.tile, asked.facts
    most = tile.rows * tile.columns // (32 * tile.num_warps) if facts["narrow"] else MOST_SUMS
    most = MOST_PLAIN_SUMS if _is_exact(asked) else most

    def fits(other: Tiles) -> bool:
        nbytes = (other.rows + other.columns) * other.depth * _itemsize(asked) * other.num_stages
        each = other.rows * other.columns // (32 * other.num_warps)
        return nbytes <= shared_nbytes() and each <= most

    return _linear_options(asked), fits


def _linear_options(asked: TileRequest) -> Options:
    """Exact sums are cut at a tile's depth; TF32 stored by K keeps to what needs no other copy."""
    tile, facts = asked.tile, asked.facts
    columns = sorted({max(32, tile.columns // 2), tile.columns, min(256, 2 * tile.columns)})
    free = {"num_stages": _around(tile.num_stages, 1), "columns": columns}
    if facts["precision"] == "tf32" and (facts["a_by_k"] or facts["b_by_k"]):
        return free
    free |= {"rows": (64, 128), "num_warps": (4, 8)}
    if _is_exact(asked):
        return free
    most = MOST_DEPTH if facts["shares"] else 2 * MOST_DEPTH
    depths = sorted({tile.depth, max(32, tile.depth // 2), min(most, 2 * tile.depth)})
    return free | {"depth": depths}


def _is_exact(asked: TileRequest) -> bool:
    return asked.facts["dtype"] == torch.float32 and asked.facts["precision"] == "ieee"


def _itemsize(asked: TileRequest) -> int:
    dtype: torch.dtype = asked.facts["dtype"]
    return dtype.itemsize


def _step_nbytes(asked: TileRequest, tile: Tile) -> int:
    return (tile.pixels + tile.out_channels) * tile.in_channels * _itemsize(asked)


def _sums(tile: Tile) -> int:
    """Sums of a thread."""
    return cdiv(tile.pixels * tile.out_channels, 32 * tile.num_warps)


def _out_channels(asked: TileRequest) -> Sequence[int]:
    """Those of a warpgroup's products at least, twice as many where there are more."""
    return (64, 128) if asked.facts["out_channels"] > 64 else (asked.tile.out_channels,)


def _around(count: int, reach: int) -> range:
    return range(max(2, count - reach), count + reach + 1)


_KERNELS: Final[dict[str, Callable[[TileRequest], Ways]]] = {
    "specialized": _specialized,
    "box": _box,
    "joined": _im2col,
    "pointer": _pointer,
    "grad_weight": _grad_weight,
    "linear": _linear,
}
