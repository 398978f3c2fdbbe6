"""Averages of whole maps and their gradients, against torch and in parts of the batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import as_range, poisoned_like, randn, rms_error
from tvdnn.kernels.pool import avg

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 3e-3}
SHAPES = [(3, 33, 35, 24), (2, 5, 7, 122), (3, 40, 40, 16), (1, 1, 1, 3), (2, 12, 11, 72)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_averages_are_those_of_torch(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> None:
    x, dy = randn(shape, dtype, generator), randn((shape[0], 1, 1, shape[3]), dtype, generator)
    y, dx = poisoned_like(dy), poisoned_like(x)
    avg.adaptive_avg_pool2d(x, y)
    avg.adaptive_avg_pool2d_grad(dy, dx)
    assert rms_error(y, x.double().mean((1, 2), keepdim=True)) <= TOLERANCE[dtype]
    assert rms_error(dx, (dy.double() / (shape[1] * shape[2])).expand(shape)) <= TOLERANCE[dtype]


@pytest.mark.parametrize("shape", SHAPES)
def test_samples_alone_and_ranges_have_the_bits_of_the_batch(
    shape: tuple[int, ...], generator: torch.Generator
) -> None:
    x = randn(shape, torch.bfloat16, generator)
    dy = randn((shape[0], 1, 1, shape[3]), torch.bfloat16, generator)
    calls: list[tuple[Callable[..., None], Tensor, Tensor]] = [
        (avg.adaptive_avg_pool2d, x, dy),
        (avg.adaptive_avg_pool2d_grad, dy, x),
    ]
    for launch, source, like in calls:
        expected, parts = poisoned_like(like), poisoned_like(like)
        launch(source, expected)
        for sample, part in zip(source.split(1), parts.split(1), strict=True):
            launch(sample, part)
        assert torch.equal(parts, expected)
        out = as_range(poisoned_like(like), before=3)
        launch(as_range(source, before=5), out)
        assert torch.equal(out, expected)
