"""Shuffled channels against torch, in maps of their own and in ranges of wider ones."""

import pytest
import torch
from torch.nn import functional

from tests.kernels.numerics import as_range, is_poisoned_beside, poisoned_like, randn
from tvdnn.kernels.copy.shuffle import shuffle_channels, shuffle_channels_reference


@pytest.mark.parametrize("groups", [1, 2, 3, 6, 24])
def test_shuffle_of_channels(groups: int, generator: torch.Generator) -> None:
    """Results are torch's, in ranges of wider maps too. A shuffle by 24 / groups undoes them."""
    x = randn((2, 24, 5, 7), torch.bfloat16, generator)
    maps, expected = (
        each.permute(0, 2, 3, 1).contiguous() for each in (x, functional.channel_shuffle(x, groups))
    )
    for shuffle in (shuffle_channels, shuffle_channels_reference):
        for place in (torch.clone, as_range):
            y, back = (place(poisoned_like(maps)) for _ in range(2))
            shuffle(place(maps), y, groups=groups)
            shuffle(y, back, groups=24 // groups)
            assert torch.equal(y, expected)
            assert torch.equal(back, maps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "shape", [(2, 9, 5, 244), (3, 7, 7, 48), (1, 1, 1, 2), (2, 1, 3, 6), (1, 5, 5, 272)]
)
def test_halves_are_interleaved_and_taken_apart(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> None:
    x = randn(shape, dtype, generator)
    expected = torch.stack(x.chunk(2, -1), -1).flatten(-2)
    for place in (torch.clone, as_range):
        y, back = (place(poisoned_like(x)) for _ in range(2))
        shuffle_channels(place(x), y, groups=2)
        assert torch.equal(y, expected)
        shuffle_channels(y, back, groups=shape[-1] // 2)
        assert torch.equal(back, x)
        assert place is torch.clone or (is_poisoned_beside(y) and is_poisoned_beside(back))
