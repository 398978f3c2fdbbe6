"""How many row tiles a network is cut into, and the network in row tiles."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ..errors import InputError
from ..graph import DTYPE_NBYTES, Network, Op, Value
from .registry import OPERATORS

LARGE_CHUNKS: Final = 64  # of a map of one sample, above which samples of batches are cut too


def common_tiles(
    plain: Network, fused: Callable[[], Network], dtype: str, chunk_size: int, sections: int | None
) -> int:
    """The row tiles of the unfused network, or fewer if the fused one allows fewer.

    A network has the same tiles, and the same bits, under policies that fuse and that do not.
    One where a map has so many sections, whatever their bytes.
    """
    if sections is not None:
        return 1
    tiles = row_tiles_for(plain, dtype, chunk_size)
    return tiles if tiles == 1 else min(tiles, most_row_tiles(fused())[0])


def row_tiles_for(network: Network, dtype: str, chunk_size: int) -> int:
    """The row tiles of a sample: enough for a tile of the largest map to fit a chunk.

    One where samples are small, or where an op takes whole maps only.
    """
    maps = (value.shape[1:] for value in network.values.values() if len(value.shape) == 4)
    largest = max((height * width * channels for height, width, channels in maps), default=0)
    chunks = -(-largest * DTYPE_NBYTES[dtype] // chunk_size)
    if chunks <= (1 if network.batch == 1 else LARGE_CHUNKS):
        return 1
    return min(1 << (chunks - 1).bit_length(), most_row_tiles(network)[0])


def most_row_tiles(network: Network) -> tuple[int, str]:
    """The largest power of two of tiles that all ops go by, and the name of an op that sets it."""
    return min((_most_row_tiles(network, op), op.name) for op in network.ops)


def split_rows(network: Network, tiles: int) -> Network:
    """The network with a sample for every row tile.

    Raises InputError, naming an op, where there cannot be so many.
    """
    if tiles == 1:
        return network
    most, name = most_row_tiles(network)
    if tiles > most or tiles & (tiles - 1):
        raise InputError(f"maps cannot be cut into {tiles} row tiles: {name} allows {most}")
    values = {name: _cut(value, tiles) for name, value in network.values.items()}
    ops = tuple(replace(op, attrs=_cut_sides(op.attrs, tiles)) for op in network.ops)
    return replace(network, values=values, ops=ops)


def _cut(value: Value, tiles: int) -> Value:
    """The value with its rows as samples. A value without rows, as the loss, stays as it is."""
    if len(value.shape) < 3:
        return value
    samples, height, *others = value.shape
    return replace(value, shape=(samples * tiles, height // tiles, *others))


def _cut_sides(attrs: Mapping[str, Any], tiles: int) -> Mapping[str, Any]:
    """Settings of a row tile. `sides` are those of a map that no value holds."""
    if "sides" not in attrs:
        return attrs
    height, width = attrs["sides"]
    return {**attrs, "sides": (height // tiles, width)}


def _most_row_tiles(network: Network, op: Op) -> int:
    """The largest power of two of row tiles that the op allows."""
    row_tiles = OPERATORS[op.kind].row_tiles
    most = 1 if row_tiles is None else row_tiles(network, op)
    return max(1, most & -most)
