"""Moments of cells of maps, and their merge."""

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from bench.cases.case import BY_TYPE, At, KernelCase
from bench.cases.conv.conv2d import SMALL_MOMENTS, moments_of
from bench.cases.conv.layers import Layer, measured
from bench.cases.launch import Call, Launch, Peer, launching
from bench.cases.operands import BF16, Operands, Shape
from tvdnn.kernels.conv.batch_stats import MomentCells, cell_moments, merge_cells
from tvdnn.kernels.norm.batch_norm import batch_norm_moments, batch_norm_statistics
from tvdnn.kernels.norm.batch_norm_tiles import batch_norm_plan

EPS: Final = 1e-5


def _cells(size: Shape) -> MomentCells:
    """Runs of pixels."""
    return MomentCells((size[1], size[2]), (1, 1, 128), flat=True)


def _moments(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    maps, cells = o.randn(*size, dtype=dtype), _cells(size)
    moments = moments_of(o, cells, size[0], size[3])
    return launching(cell_moments, maps, moments, cells=cells)


def _merge(o: Operands, size: Shape) -> Launch:
    cells = _cells(size)
    moments = o.randn(*cells.shape(size[0], size[3])).abs_()
    partials = o.out(len(moments), 1, 2, size[3])
    return launching(merge_cells, moments, partials, samples=size[0], cells=cells)


def _statistics(o: Operands, size: Shape, layer: Layer, dtype: torch.dtype = BF16) -> Launch:
    """Statistics from moments that the epilogue left, beside statistics from the map itself."""
    shape = (size[0], layer.out_side, layer.out_side, layer.out_channels)
    y, cells, channels = o.randn(*shape, dtype=dtype), layer.cells(dtype), layer.out_channels
    assert cells is not None
    moments = moments_of(o, cells, size[0], channels)
    merged, found = o.out(len(moments), 1, 2, channels), o.out(3, channels)
    slices = batch_norm_plan(shape)
    partials, theirs = o.out(*slices.partials_shape(size[0], channels)), o.out(3, channels)
    settings: dict[str, Any] = {"shape": shape, "momentum": 0.1, "eps": EPS}
    none = (None, None, None)
    calls = (
        Call(merge_cells, (moments, merged), {"samples": size[0], "cells": cells}),
        Call(batch_norm_statistics, (merged, found, *none), {**settings, "group": cells.group}),
    )

    def run() -> Tensor:
        batch_norm_moments(y, partials, group=slices.group)
        batch_norm_statistics(partials, theirs, *none, **settings, group=slices.group)
        return theirs

    peer = Peer(lambda: found, run, partial(_exact, y))
    return Launch(calls, peer, (Call(cell_moments, (y, moments), {"cells": cells}),), (merged,))


def _exact(y: Tensor) -> Tensor:
    """Statistics channel by channel."""
    parts = ((wide.mean(), wide.var(correction=0)) for wide in map(Tensor.double, y.split(1, 3)))
    mean, variance = map(torch.stack, zip(*parts, strict=True))
    rows = y.numel() // y.shape[3]
    return torch.stack((mean, (variance + EPS).rsqrt(), variance * (rows / (rows - 1))))


CASES = (
    KernelCase(cell_moments, _moments, BY_TYPE, [At((64, 56, 56, 256))]),
    KernelCase(
        merge_cells,
        _merge,
        compiled=[At((64, 56, 56, 256))],
        measured=measured(
            "merge_cells",
            "resnet50",
            "own, apart",
            of="moments",
            moments=True,
            small=SMALL_MOMENTS,
            make=_statistics,
        ),
    ),
)
