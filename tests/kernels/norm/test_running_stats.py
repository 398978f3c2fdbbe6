"""Moments of batches, and the running statistics that they move."""

from functools import partial
from typing import Any

import pytest
import torch

from tests.kernels.norm.batch_norm_launchers import EPS, MOMENTUM, TOLERANCE, launchers
from tests.kernels.numerics import poisoned, poisoned_like, randn, rms_error
from tvdnn.kernels.norm.batch_norm_tiles import batch_norm_plan


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_moments_lie_in_ranges(suffix: str, generator: torch.Generator) -> None:
    """Statistics of channels are those of ranges of them, whose moments were made apart."""
    x = randn((4, 20, 20, 24), torch.float32, generator)
    plan, channels = batch_norm_plan(x.shape), 20
    kernels = launchers(suffix)
    wide = poisoned(plan.partials_shape(4, 24), torch.float32, x.device)
    for part in (slice(0, 16), slice(16, channels)):
        kernels["batch_norm_moments"](x[..., part], wide[..., part], group=plan.group)
    assert wide[..., channels:].isnan().all()
    statistics = poisoned((3, channels), torch.float32, x.device)
    how: dict[str, Any] = {"group": plan.group, "momentum": MOMENTUM, "eps": EPS}
    merge = partial(kernels["batch_norm_statistics"], shape=(4, 20, 20, channels), **how)
    merge(wide[..., :channels], statistics, None, None, None)
    rows = x[..., :channels].flatten(0, 2).double()
    assert rms_error(statistics[0], rows.mean(0)) <= TOLERANCE[torch.float32]
    assert rms_error(statistics[2], rows.var(0)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_running_statistics_without_momentum_are_means(
    suffix: str, generator: torch.Generator
) -> None:
    layer = torch.nn.BatchNorm1d(6, momentum=None).to(generator.device)
    running = torch.zeros(6, device=generator.device), torch.ones(6, device=generator.device)
    count = torch.tensor(0, device=generator.device)
    kernels = launchers(suffix)
    for _ in range(3):
        x = randn((9, 6), torch.float32, generator)
        plan = batch_norm_plan(x.shape)
        partials = poisoned(plan.partials_shape(9, 6), torch.float32, x.device)
        statistics = poisoned((3, 6), torch.float32, x.device)
        kernels["batch_norm_moments"](x, partials, group=plan.group)
        how: dict[str, Any] = {"shape": (9, 6), "group": plan.group, "momentum": None, "eps": EPS}
        kernels["batch_norm_statistics"](partials, statistics, *running, count, **how)
        layer(x)
    torch.testing.assert_close(running[0], layer.running_mean)
    torch.testing.assert_close(running[1], layer.running_var)
    assert count == layer.num_batches_tracked


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_running_statistics_stay_under_the_flag(
    suffix: str, momentum: float | None, generator: torch.Generator
) -> None:
    """The statistics of the batch are found all the same."""
    x, device = randn((9, 6), torch.float32, generator), generator.device
    plan, kernels = batch_norm_plan((9, 6)), launchers(suffix)
    partials = poisoned(plan.partials_shape(9, 6), torch.float32, device)
    kernels["batch_norm_moments"](x, partials, group=plan.group)
    how: dict[str, Any] = {"shape": (9, 6), "group": plan.group, "momentum": momentum, "eps": EPS}
    left = {}
    for flag in (None, 0.0, 1.0):
        given = None if flag is None else torch.full((1,), flag, device=device)
        tracked = torch.zeros(6, device=device), torch.ones(6, device=device)
        count = torch.tensor(0, device=device)
        statistics = poisoned((3, 6), torch.float32, device)
        kernels["batch_norm_statistics"](partials, statistics, *tracked, count, **how, flag=given)
        left[flag] = [statistics, *tracked, count]
    assert all(map(torch.equal, left[None], left[0.0]))
    assert torch.equal(left[1.0][0], left[0.0][0])
    mean, variance, count = left[1.0][1:]
    assert (mean == 0).all()
    assert (variance == 1).all()
    assert count == 0
    assert left[0.0][3] == 1


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_recalled_statistics(suffix: str, generator: torch.Generator) -> None:
    """The gradient by running statistics reads neither x nor sums."""
    x, dy = (randn((4, 3, 3, 5), torch.float32, generator) for _ in range(2))
    mean, variance = (randn((5,), torch.float32, generator).abs() for _ in range(2))
    kernels, statistics = launchers(suffix), poisoned((3, 5), torch.float32, x.device)
    kernels["batch_norm_recall"](mean, variance, statistics, eps=EPS)
    y, dx = poisoned_like(x), poisoned_like(x)
    kernels["batch_norm"](x, statistics, None, None, None, y)
    kernels["grad_input"](None, dy, statistics, None, None, None, None, dx, rows=36)
    scale = (variance.double() + EPS).rsqrt()
    assert rms_error(y, (x.double() - mean) * scale) <= TOLERANCE[torch.float32]
    assert rms_error(dx, dy.double() * scale) <= TOLERANCE[torch.float32]
