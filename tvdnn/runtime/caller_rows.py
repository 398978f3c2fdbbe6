"""Caller rows: the caller's tensors in the layout and the row tiles of buffers."""

from collections.abc import Iterator

import torch

from ..graph import Value
from ..graph.network import channels_last_axes
from .binding import Place


def channels_first(x: torch.Tensor, value: Value) -> torch.Tensor:
    """A tensor in the layout that torch has for the network's value."""
    stored = x.permute([value.torch_axes.index(axis) for axis in range(x.dim())])
    return stored.permute(channels_last_axes(x.dim()))


def usual_form(value: Value) -> torch.Tensor:
    """A tensor without memory, as callers usually give the network's value: contiguous floats."""
    shape = [value.shape[axis] for axis in value.torch_axes]
    return torch.empty(shape, dtype=torch.float32, device="meta")


def by_sample(
    value: torch.Tensor, held: torch.Tensor, place: Place, tiles: int, rows_axis: int
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """The first sample of the rows of a place, the caller's values of these rows, and the rows.

    All rows of the place at once; row tiles sample by sample.
    """
    if tiles == 1:
        yield place.start, value[place.start : place.stop], held
        return
    height = held.shape[1]
    for sample in range(place.start // tiles, -(-place.stop // tiles)):
        first = max(place.start, sample * tiles)
        last = min(place.stop, (sample + 1) * tiles)
        image = held[first - place.start : last - place.start].view(1, -1, *held.shape[2:])
        start, rows = (first - sample * tiles) * height, (last - first) * height
        yield sample, value[sample : sample + 1].narrow(rows_axis, start, rows), image
