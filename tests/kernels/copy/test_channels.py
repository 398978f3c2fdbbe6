"""Copies and zeros of channel ranges: every bit of the range, none beside it."""

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import assert_repeatable, poisoned, randn
from tvdnn.kernels.copy.channels import (
    copy_channels,
    copy_channels_reference,
    zero_channels,
    zero_channels_reference,
)

DTYPES = [torch.float32, torch.bfloat16]
RANGES = [  # shape before the channels, then first channel, channels and pitch of both maps
    ((2, 5, 3), (0, 8, 24), (16, 8, 32)),
    ((1, 1, 1), (0, 1, 1), (2, 1, 7)),
    ((3, 7, 5), (3, 13, 17), (0, 13, 13)),
    ((2, 2, 2), (4, 200, 300), (6, 200, 206)),
    ((300, 9), (1, 6, 8), (2, 6, 10)),
    ((7,), (0, 5, 9), (4, 5, 9)),
    ((0, 4, 4), (0, 8, 8), (0, 8, 16)),
]
COPIES = [copy_channels, copy_channels_reference]
ZEROS = [zero_channels, zero_channels_reference]


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "source", "target"), RANGES)
def test_moves_the_range_and_nothing_else(
    shape: tuple[int, ...],
    source: tuple[int, int, int],
    target: tuple[int, int, int],
    dtype: torch.dtype,
    generator: torch.Generator,
) -> None:
    first, channels, pitch = source
    start, _, width = target
    x = randn((*shape, pitch), dtype, generator)
    taken = x[..., first : first + channels]
    for copy in COPIES:
        y = poisoned((*shape, width), dtype, x.device)
        expected = y.clone()
        expected[..., start : start + channels] = taken
        copy(taken, y[..., start : start + channels])
        assert torch.equal(bits(y), bits(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "_", "target"), RANGES)
def test_clears_the_range_and_nothing_else(
    shape: tuple[int, ...],
    _: object,
    target: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    start, channels, width = target
    for zero in ZEROS:
        y = poisoned((*shape, width), dtype, device)
        expected = y.clone()
        expected[..., start : start + channels] = 0
        zero(y[..., start : start + channels])
        assert torch.equal(bits(y), bits(expected))


def test_values_keep_their_bits(device: torch.device) -> None:
    """NaN with any payload, infinities and -0 move as they are."""
    odd = torch.tensor([0x7FC00001, -0x400000, 0x7F800000, -0x80000000], dtype=torch.int32)
    x = odd.to(device).view(torch.float32).repeat(3, 1)
    y = torch.zeros(3, 9, device=device)
    copy_channels(x, y[:, 2:6])
    assert torch.equal(bits(y[:, 2:6]), bits(x))


@pytest.mark.gpu
def test_repeats_and_large_offsets(generator: torch.Generator) -> None:
    x = randn((5, 33, 31, 58), torch.bfloat16, generator)
    y = poisoned((5, 33, 31, 116), torch.bfloat16, x.device)
    assert_repeatable(lambda: copy_channels(x, y[..., 58:]), y[..., 58:])
    source = torch.zeros(1 << 17, 1 << 15, dtype=torch.bfloat16, device=x.device)
    source[-1, -1] = 3.0
    target = torch.ones_like(source)
    copy_channels(source[:, -24:], target[:, -24:])
    assert target[-1, -1] == 3.0
    assert target[:, -24:].count_nonzero() == 1
    zero_channels(target[:, :24])
    assert not target[:, :24].any()
