"""Sums, products and multiples of maps against float64, in place too."""

import pytest
import torch

from tests.kernels.numerics import poisoned_like, randn, rms_error
from tvdnn.kernels.pointwise import arithmetic

SHAPES = [(1,), (3, 5, 7, 11), (4097,), (2, 4, 8, 64), (0, 4, 4, 8)]
TOLERANCE = {torch.float32: 1e-7, torch.bfloat16: 4e-3}
NAMES = ("affine", "add_multiple", "multiply", "multiply_grad")


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", SHAPES)
def test_follows_float64(
    shape: tuple[int, ...], dtype: torch.dtype, suffix: str, generator: torch.Generator
) -> None:
    affine, add_multiple, multiply, multiply_grad = (
        getattr(arithmetic, name + suffix) for name in NAMES
    )
    a, b, dy = (randn(shape, dtype, generator) for _ in range(3))
    wide_a, wide_b, wide_dy = (each.double() for each in (a, b, dy))
    y, da = poisoned_like(a), poisoned_like(a)
    affine(a, y, scale=0.3, shift=-2)
    assert rms_error(y, wide_a * 0.3 - 2) <= TOLERANCE[dtype]
    add_multiple(a, b, y, scale=-0.7)
    assert rms_error(y, wide_a - 0.7 * wide_b) <= TOLERANCE[dtype]
    multiply(a, b, y)
    assert rms_error(y, wide_a * wide_b) <= TOLERANCE[dtype]
    multiply_grad(a, b, dy, da, dy)
    assert rms_error(da, wide_dy * wide_b) <= TOLERANCE[dtype]
    assert rms_error(dy, wide_dy * wide_a) <= TOLERANCE[dtype]
    affine(y, y, scale=0.0, shift=1.5)
    assert y.eq(1.5).all()


@pytest.mark.gpu
def test_large_offsets(generator: torch.Generator) -> None:
    x = torch.full(((1 << 31) + 5000,), 3.0, dtype=torch.bfloat16, device=generator.device)
    arithmetic.affine(x, x, scale=2.0)
    arithmetic.multiply(x, x, x)
    assert x[-10000:].eq(36.0).all()
