"""Moments of the maps that convolutions store, and their merge, against the maps."""

import pytest
import torch
from torch import Tensor

from tests.kernels.conv.conv_layers import Layer, Shape, make, side
from tests.kernels.numerics import poisoned, poisoned_like, randn, rms_error
from tvdnn.kernels.conv import batch_stats as conv_moments
from tvdnn.kernels.conv import conv2d as conv
from tvdnn.kernels.conv import tiles as conv_tiles
from tvdnn.kernels.conv.batch_stats import MomentCells, moment_cells

TOLERANCE = 1e-6
ONE = {"size": (1, 1), "padding": (0, 0)}
SHAPES = {
    "first layer": Shape((3, 9, 20), (3, 24), stride=(2, 2), precision="tf32"),
    "box": Shape((3, 16, 8), (32, 32), precision="tf32"),
    "box, specialized": Shape((3, 8, 8), (64, 72), precision="tf32"),
    "few pixels, specialized": Shape((19, 3, 3), (64, 40), precision="tf32"),
    "flat, specialized": Shape((5, 8, 12), (64, 136), **ONE, precision="tf32"),
    "few pixels": Shape((9, 3, 3), (32, 40), precision="tf32"),
    "flat": Shape((5, 8, 12), (32, 72), **ONE, precision="tf32"),
    "one by one, stride 2": Shape((5, 11, 8), (32, 40), stride=(2, 2), **ONE, precision="tf32"),
    "groups": Shape((3, 6, 6), (128, 128), groups=32, precision="tf32"),
    "groups, stride 2": Shape((3, 12, 8), (104, 104), stride=(2, 2), groups=13, precision="tf32"),
    "stride 2": Shape((3, 12, 40), (64, 32), stride=(2, 2), precision="tf32"),
    "stride 2, eights": Shape((3, 12, 24), (48, 48), stride=(2, 2), groups=6, precision="tf32"),
    "stride 2, twenty-fours": Shape(
        (5, 14, 12), (72, 72), stride=(2, 2), groups=3, precision="tf32"
    ),
    "stride 2, few channels": Shape((3, 12, 22), (48, 96), stride=(2, 2), precision="tf32"),
    "no whole step": Shape((5, 6, 14), (24, 16), precision="tf32"),
    "no whole step, specialized": Shape((5, 6, 14), (120, 40), **ONE, precision="tf32"),
}
WITHOUT = {
    "exact": Shape((2, 6, 6), (64, 64)),
    "odd channels in groups": Shape((2, 6, 6), (34, 34), groups=17, precision="tf32"),
    "odd channels": Shape((2, 6, 6), (26, 64), precision="tf32"),
    "few outputs": Shape((2, 6, 6), (64, 8), precision="tf32"),
    "stride 2": SHAPES["stride 2"],  # in float32
    "stride 3": Shape((2, 6, 6), (64, 64), stride=(3, 3), precision="tf32"),
}


def cells_of(shape: Shape, dtype: torch.dtype) -> MomentCells | None:
    height, width = shape.x[1:]
    outputs = side(height, 0, shape), side(width, 1, shape)
    filter_shape = (shape.channels[1], shape.channels[0] // shape.groups, *shape.size)
    return moment_cells((height, width), outputs, filter_shape, **shape.settings, dtype=dtype)


def room(layer: Layer, cells: MomentCells) -> Tensor:
    shape = cells.shape(len(layer.dy), layer.dy.shape[3])
    return poisoned(shape, torch.float32, layer.dy.device)


def close(ours: Tensor, theirs: Tensor) -> None:
    """Each cell has a mean and squares. Nothing beyond the last cell is written."""
    assert torch.equal(ours.isnan(), theirs.isnan())
    for kind in range(2):
        found, wanted = (each[:, :, kind].nan_to_num() for each in (ours, theirs))
        assert rms_error(found, wanted) <= TOLERANCE, kind


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.bfloat16) for name in SHAPES),
        *((name, torch.float32) for name in ("first layer", "box, specialized", "flat")),
    ],
)
def test_convolutions_leave_the_moments_of_what_they_store(
    name: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    layer, settings = make(SHAPES[name], dtype, generator), SHAPES[name].settings
    packed, cells = layer.packed(dtype), cells_of(SHAPES[name], dtype)
    assert cells is not None
    for launch in (conv.conv2d, conv.conv2d_reference):
        y, alone, moments = poisoned_like(layer.dy), poisoned_like(layer.dy), room(layer, cells)
        launch(layer.x, packed, layer.bias, alone, **settings)
        launch(layer.x, packed, layer.bias, y, **settings, moments=moments, cells=cells)
        assert torch.equal(y, alone)
        wanted = poisoned_like(moments)
        conv_moments.cell_moments_reference(y, wanted, cells=cells)
        close(moments, wanted)


@pytest.mark.parametrize("name", ["box", "flat"])
def test_kernels_that_leave_none_are_followed_by_one_that_does(
    name: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv_tiles, "capability", lambda: (8, 0))
    test_convolutions_leave_the_moments_of_what_they_store(name, torch.bfloat16, generator)


@pytest.mark.parametrize("name", WITHOUT)
def test_kernels_of_other_shapes_have_no_cells(name: str) -> None:
    assert cells_of(WITHOUT[name], torch.float32) is None


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("name", ["few pixels", "flat", "first layer"])
def test_cuts_between_cells_do_not_show(name: str, suffix: str, generator: torch.Generator) -> None:
    """Merged moments are those of whole groups."""
    layer = make(SHAPES[name], torch.bfloat16, generator)
    cells, samples = cells_of(SHAPES[name], torch.bfloat16), len(layer.dy)
    assert cells is not None
    if name != "first layer":
        samples = 2 * cells.group + 3
    maps = randn((samples, *layer.dy.shape[1:]), torch.bfloat16, generator, 2.0) + 3
    find, merge = (getattr(conv_moments, each + suffix) for each in ("cell_moments", "merge_cells"))
    shape = cells.shape(samples, maps.shape[3])
    whole, parts = (poisoned(shape, torch.float32, maps.device) for _ in range(2))
    find(maps, whole, cells=cells)
    for start in range(0, samples, cells.group):
        group = start // cells.group
        find(maps[start : start + cells.group], parts[group : group + 1], cells=cells)
    assert torch.equal(whole.nan_to_num(), parts.nan_to_num())
    wide = poisoned((shape[0], 1, 2, maps.shape[3] + 3), torch.float32, maps.device)
    merged = wide[..., 2:-1]
    merge(whole, merged, samples=samples, cells=cells)
    for group, part in enumerate(maps.double().split(cells.group)):
        rows = part.flatten(0, 2)
        assert rms_error(merged[group, 0, 0], rows.mean(0)) <= TOLERANCE
        assert rms_error(merged[group, 0, 1], rows.var(0, correction=0) * len(rows)) <= TOLERANCE
