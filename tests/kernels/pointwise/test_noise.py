"""Maps of random numbers: the reference's numbers, the same in whatever run, and their moments."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import assert_repeatable, poisoned
from tvdnn.kernels.pointwise.noise import DISTRIBUTIONS, noise, noise_reference

SHAPES = [(1, 1), (3, 5, 7, 11), (2, 4097), (2, 4096), (0, 8)]
MOMENTS = {"normal": (0.0, 1.0), "uniform": (0.5, 1 / 12), "exponential": (1.0, 1.0)}
MOMENTS["bernoulli"] = (0.3, 0.21)
PLACE = {"op_id": 5, "first_sample": 3}


def seed_of(value: int, device: torch.device) -> Tensor:
    return torch.tensor([value], dtype=torch.int64, device=device)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_reference(
    shape: tuple[int, ...],
    distribution: str,
    dtype: torch.dtype,
    precision: str,
    device: torch.device,
) -> None:
    seed = seed_of(-(1 << 40) + 17, device)
    settings = {"distribution": distribution, "p": 0.3, "precision": precision} | PLACE
    y, expected = (poisoned(shape, dtype, device) for _ in range(2))
    noise(y, seed, scale=0.5, shift=2.0, **settings)
    noise_reference(expected, seed, scale=0.5, shift=2.0, **settings)
    if distribution in ("uniform", "bernoulli"):
        assert torch.equal(y, expected)
    else:  # a logarithm near zero, and roundings at halves
        close = 1e-5 if dtype == torch.float32 and precision == "ieee" else 2**-7
        torch.testing.assert_close(y, expected, rtol=close, atol=1e-3)
        assert not y.numel() or (y.double() - expected.double()).square().mean().sqrt() < close


@pytest.mark.parametrize("launch", [noise, noise_reference])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_numbers_do_not_depend_on_the_run(
    distribution: str, launch: Callable[..., None], device: torch.device
) -> None:
    whole, pieces = (poisoned((5, 1237), torch.float32, device) for _ in range(2))
    seed = seed_of(7, device)
    launch(whole, seed, distribution=distribution, op_id=1, first_sample=2)
    launch(pieces[:1], seed, distribution=distribution, op_id=1, first_sample=2)
    launch(pieces[1:], seed, distribution=distribution, op_id=1, first_sample=3)
    assert torch.equal(whole, pieces)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_moments_and_streams(distribution: str, device: torch.device) -> None:
    """Of 100000 numbers: mean and variance within 4 sigma, and no streams alike."""
    found = []
    for op_id, seed in [(0, 1), (1, 1), (0, 2)]:
        y = poisoned((10, 10000), torch.float32, device)
        settings = {"distribution": distribution, "p": 0.3, "op_id": op_id, "first_sample": 0}
        noise_reference(y, seed_of(seed, device), **settings)
        mean, variance = MOMENTS[distribution]
        assert abs(y.mean().item() - mean) < 4 * (variance / 1e5) ** 0.5
        assert abs(y.var().item() - variance) < 4 * (8 * variance**2 / 1e5) ** 0.5
        found.append(y.flatten())
    assert torch.corrcoef(torch.stack(found)).triu(1).abs().max() < 0.02
    neighbors = torch.stack([found[0][:-1], found[0][1:]])
    assert torch.corrcoef(neighbors)[0, 1].abs() < 0.02


def test_numbers_of_a_call_are_independent(device: torch.device) -> None:
    """The four of one Philox call: a pair of normal numbers comes of one radius and one angle."""
    y = poisoned((4, 100000), torch.float32, device)
    noise_reference(y, seed_of(3, device), distribution="normal", op_id=0, first_sample=0)
    four = y.view(-1, 4).t()
    for each in (four, four.square()):
        assert torch.corrcoef(each).triu(1).abs().max() < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_uniform_numbers_stay_below_one(
    precision: str, dtype: torch.dtype, device: torch.device
) -> None:
    y = poisoned((8, 1 << 16), dtype, device)
    settings = {"distribution": "uniform", "precision": precision} | PLACE
    noise_reference(y, seed_of(11, device), **settings)
    assert y.min() >= 0
    assert y.max() < 1


@pytest.mark.parametrize("launch", [noise, noise_reference])
def test_exponential_numbers_are_above_zero(
    launch: Callable[..., None], device: torch.device
) -> None:
    """Also where a word is among the largest: float32 has no number between them and 2**32."""
    y = poisoned((1, 4), torch.float32, device)
    settings = {"distribution": "exponential", "op_id": 7, "first_sample": 3591489}
    launch(y, seed_of(123, device), **settings)
    assert y.min() > 0
    assert y.min() < 1e-7


@pytest.mark.parametrize("launch", [noise, noise_reference])
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_no_ones_or_all(p: float, launch: Callable[..., None], device: torch.device) -> None:
    y = poisoned((3, 1000), torch.float32, device)
    launch(y, seed_of(1, device), distribution="bernoulli", p=p, **PLACE)
    assert torch.equal(y, torch.full_like(y, p))


@pytest.mark.gpu
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_repeats_and_large_offsets(distribution: str, device: torch.device) -> None:
    seed, y = seed_of(9, device), poisoned((3, 4099), torch.bfloat16, device)
    drawn = {"distribution": distribution, "op_id": 3}
    assert_repeatable(lambda: noise(y, seed, first_sample=1, **drawn), y)
    far, expected = torch.empty_like(y, dtype=torch.float32), torch.empty_like(y).float()
    noise(far, seed, first_sample=1 << 30, **drawn)
    noise_reference(expected, seed, first_sample=1 << 30, **drawn)
    torch.testing.assert_close(far, expected, rtol=1e-5, atol=1e-3)
    large = torch.empty(((1 << 31) + 4096) // 4096, 4096, dtype=torch.bfloat16, device=device)
    tail = torch.empty_like(large[-2:])
    noise(large, seed, first_sample=0, **drawn)
    noise(tail, seed, first_sample=len(large) - 2, **drawn)
    assert torch.equal(large[-2:], tail)
