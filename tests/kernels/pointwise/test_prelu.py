"""PReLU of one slope and of one a channel: kernels and references against torch in float64."""

from functools import partial

import pytest
import torch
from torch.nn import functional

from tests.kernels.numerics import assert_rounds, poisoned, poisoned_like, randn, rms_error
from tvdnn.kernels.pointwise import prelu as own

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
PAIRS = [(own.prelu, own.prelu_grad), (own.prelu_reference, own.prelu_grad_reference)]
SHAPES = [(2, 49, 96), (3, 130, 65), (1, 1, 1), (2, 5000, 3), (0, 4, 8)]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_follows_float64(
    shape: tuple[int, int, int], shared: bool, dtype: torch.dtype, generator: torch.Generator
) -> None:
    x, dy = (randn(shape, dtype, generator) for _ in range(2))
    slope = randn((1 if shared else shape[2],), torch.float32, generator)
    leaf, slope_leaf = x.double().requires_grad_(), slope.double().requires_grad_()
    expected = functional.prelu(leaf.mT, slope_leaf).mT
    expected.backward(dy.double())
    terms = own.prelu_terms(*shape[1:], slope.numel())
    for forward, backward in PAIRS:
        y, dx, alone = poisoned_like(x), poisoned_like(x), poisoned_like(x)
        sums = poisoned((shape[0], terms, 1, slope.numel()), torch.float32, x.device)
        forward(x, slope, y)
        backward(x, dy, slope, None, sums)
        assert rms_error(sums.double().sum((0, 1, 2)), slope_leaf.grad) <= TOLERANCE[torch.float32]
        again, overwritten = poisoned_like(sums), dy.clone()
        backward(x, dy, slope, dx, again)
        backward(x, overwritten, slope, overwritten, poisoned_like(sums))
        backward(x, dy, slope, alone, None)
        assert rms_error(y, expected.detach()) <= TOLERANCE[dtype]
        assert rms_error(dx, leaf.grad) <= TOLERANCE[dtype]
        assert torch.equal(sums, again)
        assert torch.equal(dx, alone)
        assert torch.equal(dx, overwritten)


@pytest.mark.parametrize("slopes", [1, 40])
def test_sums_do_not_depend_on_the_run(slopes: int, generator: torch.Generator) -> None:
    x, dy = (randn((5, 700, 40), torch.float32, generator) for _ in range(2))
    slope = randn((slopes,), torch.float32, generator)
    for _, backward in PAIRS:
        whole = poisoned((5, own.prelu_terms(700, 40, slopes), 1, slopes), torch.float32, x.device)
        backward(x, dy, slope, None, whole)
        for rows in (slice(0, 1), slice(1, 5)):
            part = poisoned_like(whole[rows])
            backward(x[rows], dy[rows], slope, None, part)
            assert torch.equal(part, whole[rows])


def test_results_are_rounded_for_products(generator: torch.Generator) -> None:
    x, dy = (randn((2, 9, 8), torch.float32, generator) for _ in range(2))
    slope = randn((8,), torch.float32, generator)
    for forward, backward in PAIRS:
        assert_rounds(partial(forward, x, slope), x)
        assert_rounds(partial(backward, x, dy, slope, sums=None), x)
