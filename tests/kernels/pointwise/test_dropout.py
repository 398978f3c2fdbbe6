"""Dropout: the reference's mask bit for bit, the same in whatever run, and its statistics."""

from collections.abc import Callable

import pytest
import torch

from tests.kernels.numerics import assert_repeatable, poisoned_like, randn
from tvdnn.kernels.pointwise.dropout import dropout, dropout_reference

SHAPES = [(1, 1), (3, 5, 7, 11), (2, 4097), (2, 4096), (0, 8)]
DTYPES = [torch.float32, torch.bfloat16]


def seed_of(value: int, device: torch.device) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int64, device=device)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_reference(
    shape: tuple[int, ...], dtype: torch.dtype, p: float, generator: torch.Generator
) -> None:
    x = randn(shape, dtype, generator)
    seed = seed_of(-(1 << 40) + 17, x.device)
    y, expected = poisoned_like(x), poisoned_like(x)
    dropout(x, y, seed, p=p, op_id=5, first_sample=3)
    dropout_reference(x, expected, seed, p=p, op_id=5, first_sample=3)
    assert torch.equal(y, expected)
    if p in (0.0, 1.0):
        assert torch.equal(y, x * (1 - p))
    dropout(x, x, seed, p=p, op_id=5, first_sample=3)
    assert torch.equal(x, expected)


@pytest.mark.parametrize("launch", [dropout, dropout_reference])
def test_mask_does_not_depend_on_the_run(
    launch: Callable[..., None], generator: torch.Generator
) -> None:
    x = randn((5, 1237), torch.float32, generator)
    seed = seed_of(7, x.device)
    whole, pieces = poisoned_like(x), poisoned_like(x)
    launch(x, whole, seed, p=0.5, op_id=1, first_sample=2)
    launch(x[:1], pieces[:1], seed, p=0.5, op_id=1, first_sample=2)
    launch(x[1:], pieces[1:], seed, p=0.5, op_id=1, first_sample=3)
    assert torch.equal(whole, pieces)


def test_share_kept_scale_and_streams(device: torch.device) -> None:
    x = torch.ones(10, 10000, device=device)
    masks = []
    for op_id, seed in [(0, 1), (1, 1), (0, 2)]:
        y = poisoned_like(x)
        dropout_reference(x, y, seed_of(seed, device), p=0.25, op_id=op_id, first_sample=0)
        assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
        assert abs((y == 0).float().mean().item() - 0.25) < 0.006  # 4 sigma of 100000 draws
        masks.append(y == 0)
    for other in masks[1:]:
        assert abs((masks[0] == other).float().mean().item() - 0.625) < 0.007


@pytest.mark.gpu
def test_repeats_and_large_offsets(generator: torch.Generator) -> None:
    x = randn((3, 4099), torch.bfloat16, generator)
    seed, y, expected = seed_of(9, x.device), poisoned_like(x), poisoned_like(x)
    assert_repeatable(lambda: dropout(x, y, seed, p=0.5, op_id=3, first_sample=1), y)
    dropout(x, y, seed, p=0.5, op_id=3, first_sample=1 << 30)
    dropout_reference(x, expected, seed, p=0.5, op_id=3, first_sample=1 << 30)
    assert torch.equal(y, expected)
    large = torch.ones((1 << 31) + 4096, dtype=torch.bfloat16, device=x.device).view(-1, 4096)
    tail = large[-2:].clone()
    dropout(large, large, seed, p=0.5, op_id=3, first_sample=0)
    dropout(tail, tail, seed, p=0.5, op_id=3, first_sample=large.shape[0] - 2)
    assert torch.equal(large[-2:], tail)
