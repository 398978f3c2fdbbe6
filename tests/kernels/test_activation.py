"""ReLU against its reference, and the reference against autograd."""

import math

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import assert_repeatable, poisoned_like, randn
from tvdnn.kernels.activation import relu, relu_grad, relu_grad_reference, relu_reference

SHAPES = [(1,), (3, 5, 7, 11), (4097,), (2, 4, 8, 64), (0, 4, 4, 8)]
DTYPES = [torch.float32, torch.bfloat16]


def same_bits(actual: Tensor, expected: Tensor) -> bool:
    return torch.equal(actual.nan_to_num(7e7), expected.nan_to_num(7e7))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_forward_equals_reference(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> None:
    x = randn(shape, dtype, generator)
    y, expected = poisoned_like(x), poisoned_like(x)
    relu(x, y)
    relu_reference(x, expected)
    assert torch.equal(y, expected)
    relu(x, x)
    assert torch.equal(x, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_equals_reference(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> None:
    y, dy = randn(shape, dtype, generator).relu(), randn(shape, dtype, generator)
    dx, expected = poisoned_like(y), poisoned_like(y)
    relu_grad(y, dy, dx)
    relu_grad_reference(y, dy, expected)
    assert torch.equal(dx, expected)
    relu_grad(y, dy, dy)
    assert torch.equal(dy, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_is_autograd_with_nan(dtype: torch.dtype, generator: torch.Generator) -> None:
    x = randn((2, 3, 5, 8), dtype, generator)
    x.view(-1)[:4] = torch.tensor([math.nan, math.inf, -math.inf, 0.0])
    dy = randn(x.shape, dtype, generator)
    leaf = x.clone().requires_grad_()
    torch.relu(leaf).backward(dy)
    y, dx = poisoned_like(x), poisoned_like(x)
    for forward, backward in [(relu, relu_grad), (relu_reference, relu_grad_reference)]:
        forward(x, y)
        backward(y, dy, dx)
        assert same_bits(y, torch.relu(x))
        assert leaf.grad is not None
        assert same_bits(dx, leaf.grad)


@pytest.mark.gpu
def test_repeats_and_large_offsets(generator: torch.Generator) -> None:
    x = randn((3, 37, 41, 64), torch.bfloat16, generator)
    y = poisoned_like(x)
    assert_repeatable(lambda: relu(x, y), y)
    large = torch.full(((1 << 31) + 5000,), -1.0, dtype=torch.bfloat16, device=x.device)
    large[-5000:] = 3.0
    relu(large, large)
    assert large[-5000:].eq(3.0).all()
    assert large[-10000:-5000].eq(0.0).all()
