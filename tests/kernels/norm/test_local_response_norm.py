"""Local response normalization against its reference, and the reference against torch."""

import pytest
import torch
from torch.nn import functional

from tests.kernels.numerics import assert_repeatable, poisoned_like, randn, rms_error
from tvdnn.kernels.norm import local_response_norm as norm

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3}
PAIRS = [
    (norm.local_response_norm, norm.local_response_norm_grad),
    (norm.local_response_norm_reference, norm.local_response_norm_grad_reference),
]
SETTINGS = [
    {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0},
    {"size": 4, "alpha": 0.5, "beta": 0.75, "k": 1.0},
    {"size": 1, "alpha": 1.0, "beta": 0.5, "k": 1.0},
]
SHAPES = [(2, 3, 5, 96), (1, 3, 3, 7), (1, 1, 1, 1), (1, 1, 2, 1031), (0, 2, 2, 8)]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_follows_torch(
    shape: tuple[int, ...],
    settings: dict[str, float],
    dtype: torch.dtype,
    generator: torch.Generator,
) -> None:
    x, dy = randn(shape, dtype, generator, 3.0), randn(shape, dtype, generator)
    leaf = x.float().permute(0, 3, 1, 2).clone().requires_grad_()
    if x.numel():  # torch refuses an empty map
        expected = functional.local_response_norm(leaf, *settings.values())
        expected.backward(dy.float().permute(0, 3, 1, 2))
    for forward, backward in PAIRS:
        y, dx = poisoned_like(x), poisoned_like(x)
        forward(x, y, **settings)
        backward(x, dy, dx, **settings)
        if leaf.grad is not None:
            wanted = expected.detach().permute(0, 2, 3, 1)
            assert rms_error(y, wanted) <= TOLERANCE[dtype]
            assert rms_error(dx, leaf.grad.permute(0, 2, 3, 1)) <= TOLERANCE[dtype]


@pytest.mark.gpu
def test_repeats_and_large_offsets(generator: torch.Generator) -> None:
    x = randn((4, 27, 27, 256), torch.bfloat16, generator)
    dy, dx = randn(x.shape, torch.bfloat16, generator), poisoned_like(x)
    settings = SETTINGS[0]
    assert_repeatable(lambda: norm.local_response_norm_grad(x, dy, dx, **settings), dx)
    large = torch.ones((1 << 25) + 1, 64, dtype=torch.bfloat16, device=x.device)
    large[-1] = randn((64,), torch.bfloat16, generator, 3.0)
    y, last = poisoned_like(large), poisoned_like(large[-1:])
    norm.local_response_norm(large, y, **settings)
    norm.local_response_norm(large[-1:].clone(), last, **settings)
    assert torch.equal(y[-1:], last)
