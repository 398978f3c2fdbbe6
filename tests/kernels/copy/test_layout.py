"""Staging, casts and sums against their references and plain torch."""

import pytest
import torch

from tests.kernels.numerics import assert_repeatable, poisoned, poisoned_like, randn
from tvdnn.kernels.copy.layout import (
    add,
    add_reference,
    cast,
    cast_reference,
    stage,
    stage_reference,
    unstage,
    unstage_reference,
)

SHAPES = [
    (5,),
    (2, 3, 4, 5, 7),
    (2, 3, 5, 7),
    (1, 1, 1, 1),
    (1, 65, 5, 8),
    (1, 64, 33, 31),
    (5, 13),
    (0, 3, 4, 4),
    (0, 7),
]
DTYPES = [
    (torch.float32, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.float16, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16),
]
STRIDES = ["contiguous", "channels_last", "sliced"]


def strided(x: torch.Tensor, strides: str) -> torch.Tensor:
    """The same values, laid out in memory in one of several ways."""
    if strides == "sliced":
        wide = torch.zeros(*x.shape[:-1], x.shape[-1] + 3, dtype=x.dtype, device=x.device)
        wide[..., 1 : x.shape[-1] + 1] = x
        return wide[..., 1 : x.shape[-1] + 1]
    if strides == "channels_last" and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x


def map_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) <= 2 else (shape[0], *shape[2:], shape[1])


@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize(("outside", "inside"), DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_stage_and_unstage(
    shape: tuple[int, ...],
    outside: torch.dtype,
    inside: torch.dtype,
    strides: str,
    generator: torch.Generator,
) -> None:
    x = strided(randn(shape, outside, generator), strides)
    plain = (x if x.dim() <= 2 else x.movedim(1, -1)).to(inside)
    back = plain.to(outside) if x.dim() <= 2 else plain.to(outside).movedim(-1, 1)
    for into, out_of in [(stage, unstage), (stage_reference, unstage_reference)]:
        y = poisoned(map_shape(shape), inside, x.device)
        into(x, y)
        assert torch.equal(y, plain)
        again = strided(poisoned_like(x), strides)
        out_of(y, again)
        assert torch.equal(again, back)


@pytest.mark.parametrize("order", [(0, 3, 1, 2, 4), (0, 2, 3, 4, 1), (0, 4, 3, 2, 1)])
def test_unstage_into_any_order_of_five_dimensions(
    order: tuple[int, ...], generator: torch.Generator
) -> None:
    y = randn((2, 3, 4, 5, 6), torch.float32, generator)
    expected = y.movedim(-1, 1)
    for out_of, into in [(unstage, stage), (unstage_reference, stage_reference)]:
        sizes = [expected.shape[dim] for dim in order]
        x = poisoned(sizes, torch.float32, y.device).permute([order.index(dim) for dim in range(5)])
        out_of(y, x)
        assert torch.equal(x, expected)
        again = poisoned_like(y)
        into(x, again)
        assert torch.equal(again, y)


@pytest.mark.parametrize("length", [0, 1, 4096, 4099])
def test_cast_and_add(length: int, generator: torch.Generator) -> None:
    a = randn((length,), torch.float32, generator)
    b = randn((length,), torch.float32, generator)
    for caster, adder in [(cast, add), (cast_reference, add_reference)]:
        narrow = poisoned(a.shape, torch.bfloat16, a.device)
        caster(a, narrow)
        assert torch.equal(narrow, a.bfloat16())
        for left, right in [(a, b), (a.bfloat16(), b.bfloat16())]:
            out = poisoned_like(left)
            adder(left, right, out)
            assert torch.equal(out, left + right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "first"), [((2, 5, 3, 24), 8), ((7, 13), 1), ((3, 1, 9, 200), 4)]
)
def test_add_of_ranges(
    shape: tuple[int, ...], first: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """A range and a whole map add up in the range, and nothing beside it changes."""
    channels = slice(first, first + shape[-1])
    wide = randn((*shape[:-1], shape[-1] + 2 * first), dtype, generator)
    b = randn(shape, dtype, generator)
    expected = wide.clone()
    expected[..., channels] += b
    for adder in (add, add_reference):
        given = wide.clone()
        adder(given[..., channels], b, given[..., channels])
        assert torch.equal(given, expected)
        out = poisoned_like(b)
        adder(b, wide[..., channels], out)
        assert torch.equal(out, expected[..., channels])


@pytest.mark.gpu
def test_repeats_and_large_offsets(generator: torch.Generator) -> None:
    x = randn((3, 65, 37, 41), torch.float32, generator)
    y = poisoned(map_shape(tuple(x.shape)), torch.bfloat16, x.device)
    assert_repeatable(lambda: stage(x, y), y)
    source = torch.zeros(2, 1 << 15, 1 << 8, 1 << 8, dtype=torch.bfloat16, device=x.device)
    source[1, -1, -1, -1] = 3.0
    target = torch.ones(2, 1 << 8, 1 << 8, 1 << 15, dtype=torch.bfloat16, device=x.device)
    stage(source, target)
    assert target[1, -1, -1, -1] == 3.0
    assert target[0].count_nonzero() == 0
    unstage(target, source)
    assert source[1, -1, -1, -1] == 3.0
    assert source[1].count_nonzero() == 1


@pytest.mark.gpu
def test_an_image_of_more_tiles_than_a_grid_has_columns(generator: torch.Generator) -> None:
    x = randn((1, 3, 8192, 8200), torch.float32, generator)
    y, expected = (poisoned((1, 8192, 8200, 3), torch.bfloat16, x.device) for _ in range(2))
    stage(x, y)
    stage_reference(x, expected)
    assert torch.equal(y, expected)
