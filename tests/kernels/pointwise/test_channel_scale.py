"""Maps times one value a channel against the reference, and the reference against torch."""

from functools import partial

import pytest
import torch

from tests.kernels.numerics import assert_rounds, poisoned, poisoned_like, randn, rms_error
from tvdnn.kernels.language.channel_chunks import num_chunks
from tvdnn.kernels.pointwise import channel_scale as own

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
PAIRS = [
    (own.scale_channels, own.scale_channels_grad),
    (own.scale_channels_reference, own.scale_channels_grad_reference),
]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", [(2, 49, 96), (3, 130, 65), (1, 1, 1), (0, 4, 8)])
def test_follows_torch(
    shape: tuple[int, int, int], dtype: torch.dtype, generator: torch.Generator
) -> None:
    x, dy = randn(shape, dtype, generator), randn(shape, dtype, generator)
    scale = randn(shape[2:], torch.float32, generator)
    leaf, scale_leaf = x.double().requires_grad_(), scale.double().requires_grad_()
    expected = leaf * scale_leaf
    expected.backward(dy.double())
    for forward, backward in PAIRS:
        y, dx, alone = poisoned_like(x), poisoned_like(x), poisoned_like(x)
        sums = poisoned((shape[0], num_chunks(*shape[1:]), 1, shape[2]), torch.float32, x.device)
        forward(x, scale, y)
        backward(x, dy, scale, None, sums)
        assert rms_error(sums.sum((0, 1, 2)), scale_leaf.grad) <= TOLERANCE[torch.float32]
        again, overwritten = poisoned_like(sums), dy.clone()
        backward(x, dy, scale, dx, again)
        backward(x, overwritten, scale, overwritten, poisoned_like(sums))
        forward(dy, scale, alone)
        assert rms_error(y, expected.detach()) <= TOLERANCE[dtype]
        assert rms_error(dx, leaf.grad) <= TOLERANCE[dtype]
        assert torch.equal(sums, again)
        assert torch.equal(dx, alone)
        assert torch.equal(dx, overwritten)


def test_results_are_rounded_for_products(generator: torch.Generator) -> None:
    x, dy = (randn((2, 9, 8), torch.float32, generator) for _ in range(2))
    scale, sums = randn((8,), torch.float32, generator), x.new_empty(2, 1, 1, 8)
    for forward, backward in PAIRS:
        assert_rounds(partial(forward, x, scale), x)
        assert_rounds(partial(backward, x, dy, scale, sums=sums), x)
