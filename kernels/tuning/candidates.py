"""Configurations that tuning tries for a launch: those that fit registers and shared memory.

None changes the order of a sum or the pixels of a tile. Results keep their bits.
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

MOST: Final = 10  # configurations of a launch
MOST_SUMS: Final = 128  # sums of a thread, in registers
MOST_PLAIN_SUMS: Final = 64  # sums of a thread whose FMA operands are in registers too
WARPS: Final = 8  # warps of all programs on a multiprocessor: 256 registers a thread
BARRIERS_NBYTES: Final = 1024  # bytes of shared memory for barriers, at most
Options = Mapping[str, Sequence[int]]  # values to try for each field of a tile


def candidates(request: TileRequest) -> list[Configuration]:
    """At most MOST configurations for a launch. Those that change fewest fields come first."""
    options, fits = _KERNELS[request.kernel](request)
    found = sorted(_changes(request.tile, options, fits), key=len)
    return found[:MOST]


def _changes(tile: Any, options: Options, fits: Callable[[Any], bool]) -> Iterator[Configuration]:
    before = asdict(tile)
    for values in itertools.product(*options.values()):
        chosen = dict(zip(options, values, strict=True))
        changed = {name: value for name, value in chosen.items() if value != before[name]}
        if changed and fits(replace(tile, **changed)):
            yield changed


Space = tuple[Options, Callable[[Any], bool]]  # the options, and whether a tile fits


def _specialized(request: TileRequest) -> Space:
    facts, tile = request.facts, request.tile
    itemsize, (_, rows, columns), taps = _itemsize(request), facts["box"], facts["size"][0]
    left = 4 if facts["pooled"] else tile.parts

    def fits(candidate: Tile) -> bool:
        weights = candidate.out_channels * STEP_NBYTES
        if facts["rows"]:
            nbytes = candidate.num_stages * (rows + taps - 1) * columns * STEP_NBYTES
            nbytes += ROWS_PACKED_STAGES * taps * weights
        else:
            nbytes = candidate.num_stages * (candidate.pixels * STEP_NBYTES + weights)
        nbytes += 2 * candidate.pixels * candidate.out_channels * itemsize // left
        return nbytes + BARRIERS_NBYTES <= shared_nbytes() and _sums(candidate) <= MOST_SUMS

    return {"out_channels": _out_channels(request), "num_stages": _near(tile.num_stages, 2)}, fits


def _box(request: TileRequest) -> Space:
    """Tiles of pooling windows keep their channels, because windows take registers."""
    tile, pooled = request.tile, request.facts["pooled"]

    def fits(candidate: Tile) -> bool:
        nbytes = _step_nbytes(request, candidate) * candidate.num_stages * candidate.residents
        whole = candidate.num_warps * candidate.residents == WARPS
        return whole and nbytes <= shared_nbytes() and _sums(candidate) <= MOST_SUMS

    options = {
        "flatten": (True, False),
        "num_stages": _near(tile.num_stages, 1),
        "out_channels": (tile.out_channels,) if pooled else _out_channels(request),
        "num_warps": (4, 8),
        "residents": (1, 2),
    }
    return options, fits


def _im2col(request: TileRequest) -> Space:
    options = {
        "num_warps": (4, 8),
        "in_channels": (16, 32),
        "out_channels": _out_channels(request),
    }
    return options, lambda candidate: _sums(candidate) <= MOST_SUMS


def _pointer(request: TileRequest) -> Space:
    most = MOST_PLAIN_SUMS if _is_exact(request) else MOST_SUMS

    def fits(candidate: Tile) -> bool:
        nbytes = _step_nbytes(request, candidate) * candidate.num_stages
        return nbytes <= shared_nbytes() and _sums(candidate) <= most

    stages = request.tile.num_stages
    options = {
        "num_stages": _near(stages, 1) if stages > 1 else (1,),
        "num_warps": (4, 8),
        "out_channels": sorted(
            {max(16, request.tile.out_channels // 2), request.tile.out_channels}
        ),
    }
    return options, fits


def _grad_weight(request: TileRequest) -> Space:
    """Only stages, and warps of bfloat16 products. The other fields decide the splits of a sum.

    Of columns.py no candidate fits: 8 warps hold its sums, and its tile says 4.
    """
    tile, kernel = request.tile, request.facts["kernel"]
    sums = 3 if kernel == "taps" else 1

    def fits(candidate: Tile) -> bool:
        channels = candidate.out_channels + sums * candidate.in_channels
        nbytes = candidate.pixels * channels * _itemsize(request) * candidate.num_stages
        each = candidate.out_channels * sums * candidate.in_channels // (32 * candidate.num_warps)
        return nbytes <= shared_nbytes() and each <= MOST_SUMS

    free = request.facts["dtype"] == torch.bfloat16 and kernel != "transposed"
    warps = (4, 8) if free else (tile.num_warps,)
    return {"num_stages": _near(tile.num_stages, 2), "num_warps": warps}, fits


def _linear(request: TileRequest) -> Space:
    tile, facts = request.tile, request.facts
    most = tile.rows * tile.columns // (32 * tile.num_warps) if facts["narrow"] else MOST_SUMS
    most = MOST_PLAIN_SUMS if _is_exact(request) else most

    def fits(candidate: Tiles) -> bool:
        values = (candidate.rows + candidate.columns) * candidate.depth
        nbytes = values * _itemsize(request) * candidate.num_stages
        each = candidate.rows * candidate.columns // (32 * candidate.num_warps)
        return nbytes <= shared_nbytes() and each <= most

    return _linear_options(request), fits


def _linear_options(request: TileRequest) -> Options:
    """Exact sums keep their depth, which cuts them. TF32 operands by K keep rows and warps."""
    tile, facts = request.tile, request.facts
    columns = sorted({max(32, tile.columns // 2), tile.columns, min(256, 2 * tile.columns)})
    free = {"num_stages": _near(tile.num_stages, 1), "columns": columns}
    if facts["precision"] == "tf32" and (facts["a_by_k"] or facts["b_by_k"]):
        return free
    free |= {"rows": (64, 128), "num_warps": (4, 8)}
    if _is_exact(request):
        return free
    most = MOST_DEPTH if facts["shares"] else 2 * MOST_DEPTH
    depths = sorted({tile.depth, max(32, tile.depth // 2), min(most, 2 * tile.depth)})
    return free | {"depth": depths}


def _is_exact(request: TileRequest) -> bool:
    return request.facts["dtype"] == torch.float32 and request.facts["precision"] == "ieee"


def _itemsize(request: TileRequest) -> int:
    dtype: torch.dtype = request.facts["dtype"]
    return dtype.itemsize


def _step_nbytes(request: TileRequest, tile: Tile) -> int:
    return (tile.pixels + tile.out_channels) * tile.in_channels * _itemsize(request)


def _sums(tile: Tile) -> int:
    """Sums that a thread holds."""
    return cdiv(tile.pixels * tile.out_channels, 32 * tile.num_warps)


def _out_channels(request: TileRequest) -> Sequence[int]:
    """The 64 channels of a warpgroup's products, and twice as many where the layer has more."""
    return (64, 128) if request.facts["out_channels"] > 64 else (request.tile.out_channels,)


def _near(count: int, reach: int) -> range:
    return range(max(2, count - reach), count + reach + 1)


_KERNELS: Final[dict[str, Callable[[TileRequest], Space]]] = {
    "specialized": _specialized,
    "box": _box,
    "im2col": _im2col,
    "pointer": _pointer,
    "grad_weight": _grad_weight,
    "linear": _linear,
}
