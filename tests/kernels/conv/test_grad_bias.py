"""Bias gradients of convolutions, and the sums over cells that they add."""

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import as_range, assert_repeatable, poisoned, randn, rms_error
from tvdnn.kernels.conv import grad_bias as conv_grad_bias
from tvdnn.kernels.conv.grad_bias import GradBiasPlan, grad_bias_plan

TOLERANCE = 2e-6
Shape = tuple[int, int, int, int]
SHAPES = {
    "cells of 8": (3, 16, 24, 33),
    "cells of 4": (5, 4, 12, 70),
    "one cell": (1, 8, 8, 64),
    "pixels": (3, 7, 9, 65),
    "one pixel": (2, 1, 1, 1),
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def dy(request: pytest.FixtureRequest, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return randn(request.param, dtype, generator)


def plan_of(dy: Tensor) -> GradBiasPlan:
    return grad_bias_plan((dy.shape[1], dy.shape[2]), dy.shape[3])


def cells_of(maps: Tensor, side: int, *, suffix: str = "") -> Tensor:
    """The sums over the cells of maps; these themselves where a cell is a pixel."""
    if side == 1:
        return maps
    samples, height, width, channels = maps.shape
    shape = (samples, height // side, width // side, channels)
    sums = poisoned(shape, torch.float32, maps.device)
    getattr(conv_grad_bias, "sum_cells" + suffix)(maps, sums)
    return sums


def launch(dy: Tensor, *, suffix: str = "", runs: tuple[int, ...] = ()) -> Tensor:
    """The sums after a launch over each of these numbers of units, and one over the rest."""
    plan, start = plan_of(dy), 0
    sums = poisoned((plan.splits, dy.shape[3]), torch.float32, dy.device)
    kernel = getattr(conv_grad_bias, "conv2d_grad_bias" + suffix)
    for units in (*runs, len(dy)):
        stop = start + units * plan.unit
        rows = cells_of(dy[start:stop], plan.cell, suffix=suffix)
        kernel(rows, sums, first=start == 0, cell=plan.cell)
        start = stop
    return sums


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_sums_all_pixels(suffix: str, dy: Tensor) -> None:
    exact = dy.double().sum((0, 1, 2))
    assert rms_error(launch(dy, suffix=suffix).sum(0), exact) < TOLERANCE


@pytest.mark.parametrize("side", [2, 4, 8])
def test_cells_have_the_bits_of_the_reference(
    side: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    maps = randn((3, 16, 24, 70), dtype, generator)
    sums = cells_of(maps, side)
    assert torch.equal(sums, cells_of(maps, side, suffix="_reference"))
    exact = maps.double().unflatten(1, (-1, side)).unflatten(3, (-1, side)).sum((2, 4))
    assert rms_error(sums, exact) < TOLERANCE


@pytest.mark.parametrize("side", [2, 4])
def test_pooled_gradients_have_the_sums_of_unpooled_ones(
    side: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """A value may lie anywhere in its window of zeros."""
    pooled = randn((3, 8, 16, 33), dtype, generator)
    taps = torch.randint(4, pooled.shape, generator=generator, device=pooled.device)
    windows = torch.zeros(*pooled.shape, 4, dtype=dtype, device=pooled.device)
    windows.scatter_(4, taps[..., None], pooled[..., None])
    unpooled = windows.unflatten(4, (2, 2)).permute(0, 1, 4, 2, 5, 3).flatten(1, 2).flatten(2, 3)
    assert torch.equal(cells_of(unpooled.contiguous(), 2 * side), cells_of(pooled, side))


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_runs_have_the_bits_of_the_whole(
    suffix: str, dy: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv_grad_bias, "SUMMED_PIXELS", 1)
    whole = launch(dy, suffix=suffix)
    for runs in ((1,), (1, 1), (2,)):
        assert torch.equal(launch(dy, suffix=suffix, runs=runs), whole)


@pytest.mark.parametrize("name", ["cells of 4", "pixels"])
def test_ranges_of_wider_maps(name: str, generator: torch.Generator) -> None:
    dy = randn(SHAPES[name], torch.bfloat16, generator)
    assert torch.equal(launch(as_range(dy)), launch(dy))


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_no_samples_leave_sums_as_they_are(suffix: str, generator: torch.Generator) -> None:
    rows, sums = randn((0, 2, 2, 8), torch.float32, generator), torch.ones(3, 8)
    sums = sums.to(rows.device)
    getattr(conv_grad_bias, "conv2d_grad_bias" + suffix)(rows, sums, first=False, cell=4)
    getattr(conv_grad_bias, "sum_cells" + suffix)(rows, rows[:, ::2, ::2])
    assert (sums == 1.0).all()


@pytest.mark.parametrize(
    ("side", "channels", "plan"),
    [
        (224, 64, GradBiasPlan(splits=49, unit=1, cell=8)),
        (56, 256, GradBiasPlan(splits=25, unit=8, cell=8)),
        (28, 512, GradBiasPlan(splits=98, unit=32, cell=4)),
        (14, 512, GradBiasPlan(splits=98, unit=64, cell=1)),
        (27, 256, GradBiasPlan(splits=183, unit=32, cell=1)),
    ],
)
def test_plans(side: int, channels: int, plan: GradBiasPlan) -> None:
    assert grad_bias_plan((side, side), channels) == plan


@pytest.mark.gpu
def test_more_cells_than_a_grid_has_rows(generator: torch.Generator) -> None:
    maps = randn((1025, 64, 64, 8), torch.bfloat16, generator)
    assert torch.equal(cells_of(maps, 8), cells_of(maps, 8, suffix="_reference"))


@pytest.mark.gpu
@pytest.mark.parametrize("side", [112, 30])
def test_repeats_to_the_bit(side: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    dy = randn((16, side, side, 64), dtype, generator)
    sums = launch(dy)

    def again() -> None:
        sums.copy_(launch(dy))

    assert_repeatable(again, sums)
