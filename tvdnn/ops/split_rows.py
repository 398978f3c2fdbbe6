"""Which networks are cut into row tiles, into how many, and the network so cut."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ..errors import InputError
from ..graph import DTYPE_NBYTES, Network, Op, Value
from .registry import OPERATORS

LARGE_CHUNKS: Final = 64  # of a map of one sample, above which samples of batches are cut too


def row_tiles_for(network: Network, dtype: str, chunk_size: int) -> int:
    """Into how many bands samples are cut: so many that those of the largest map fit a chunk.

    One where samples are small, or where an op does not go by bands.
    """
    maps = (value.shape[1:] for value in network.values.values() if len(value.shape) == 4)
    largest = max((height * width * channels for height, width, channels in maps), default=0)
    chunks = -(-largest * DTYPE_NBYTES[dtype] // chunk_size)
    if chunks <= (1 if network.batch == 1 else LARGE_CHUNKS):
        return 1
    return min(1 << (chunks - 1).bit_length(), most_row_tiles(network)[0])


def most_row_tiles(network: Network) -> tuple[int, str]:
    """The largest power of two of bands that all ops go by, and the name of an op that sets it."""
    return min((_most_row_tiles(network, op), op.name) for op in network.ops)


def split_rows(network: Network, bands: int) -> Network:
    """The network with a sample for every band.

    Raises InputError, naming an op, where there cannot be so many.
    """
    if bands == 1:
        return network
    most, name = most_row_tiles(network)
    if bands > most or bands & (bands - 1):
        raise InputError(f"maps cannot be cut into {bands} bands of rows: {name} allows {most}")
    values = {name: _cut(value, bands) for name, value in network.values.items()}
    ops = tuple(replace(op, attrs=_cut_sides(op.attrs, bands)) for op in network.ops)
    return replace(network, values=values, ops=ops)


def _cut(value: Value, bands: int) -> Value:
    """The value with its rows as samples; what has none, as the loss, as it is."""
    if len(value.shape) < 3:
        return value
    samples, height, *others = value.shape
    return replace(value, shape=(samples * bands, height // bands, *others))


def _cut_sides(attrs: Mapping[str, Any], bands: int) -> Mapping[str, Any]:
    """Settings of a band: the sides of a map that no value holds are of the network's."""
    if "sides" not in attrs:
        return attrs
    height, width = attrs["sides"]
    return {**attrs, "sides": (height // bands, width)}


def _most_row_tiles(network: Network, op: Op) -> int:
    """The largest power of two of bands that the op goes by; 1 where it does by none."""
    row_tiles = OPERATORS[op.kind].row_tiles
    most = 1 if row_tiles is None else row_tiles(network, op)
    return max(1, most & -most)
