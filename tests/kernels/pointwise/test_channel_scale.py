"""Maps times one value a channel against the reference, and the reference against torch."""

from functools import partial

import pytest
import torch

from tests.kernels.numerics import (
    as_range,
    assert_rounds,
    is_poisoned_beside,
    poison,
    poisoned,
    poisoned_like,
    randn,
    rms_error,
)
from tvdnn.kernels.copy.layout import add, add_reference
from tvdnn.kernels.language.channel_chunks import num_chunks
from tvdnn.kernels.pointwise import channel_scale as own
from tvdnn.kernels.pointwise.dropout_blocks import Drop, dropout_parts, dropout_parts_reference

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


APART = [
    (own.scale_channels, dropout_parts, add),
    (own.scale_channels_reference, dropout_parts_reference, add_reference),
]
TOGETHER = [
    (own.add_scaled, own.scale_channels_grad),
    (own.add_scaled_reference, own.scale_channels_grad_reference),
]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("part", ["", "row", "channel"])
@pytest.mark.parametrize(("apart", "together"), list(zip(APART, TOGETHER, strict=True)))
def test_one_pass_has_the_bits_of_passes_apart(
    part: str, dtype: torch.dtype, apart: tuple, together: tuple, generator: torch.Generator
) -> None:  # fmt: skip
    """Of ranges, with a scale and without, and in the place of the residual."""
    scale_by, drop_by, add_by = apart
    add_scaled, grad = together
    x, residual, dy = (as_range(randn((4, 37, 40), dtype, generator)) for _ in range(3))
    scale = randn((40,), torch.float32, generator)
    place = {"part": part, "p": 0.5, "op_id": 3, "first_sample": 2}
    seed = torch.tensor([11], device=x.device)
    drop = Drop(seed, *place.values()) if part else None
    for factor in (scale, None):
        branch, expected = x.contiguous(), poisoned_like(x)
        if factor is not None:
            scale_by(branch, factor, branch)
        if part:
            drop_by(branch, branch, seed, **place)
        add_by(residual.contiguous(), branch, expected)
        y, over = as_range(x), as_range(residual)
        poison(y)
        add_scaled(x, factor, residual, y, drop=drop)
        add_scaled(x, factor, over, over, drop=drop)
        assert torch.equal(y, expected)
        assert torch.equal(over, expected)
        assert is_poisoned_beside(y)
    sums = poisoned((4, num_chunks(37, 40), 1, 40), torch.float32, x.device)
    alone = poisoned_like(sums)
    dropped, dx, expected = dy.contiguous(), as_range(x), poisoned_like(x)
    if part:
        drop_by(dropped, dropped, seed, **place)
    grad(x.contiguous(), dropped, scale, expected, alone)
    grad(x, dy, scale, poison(dx), sums, drop=drop)
    assert torch.equal(sums, alone)
    assert torch.equal(dx, expected)
    assert is_poisoned_beside(dx)
    grad(None, dy, scale, poison(dx), None, drop=drop)
    assert torch.equal(dx, expected)
