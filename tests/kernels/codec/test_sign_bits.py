"""Sign bits of whole maps: all bfloat16 patterns, and float32's special values."""

import math

import pytest
import torch

from tvdnn.kernels.codec.sign_bits import (
    passes_reference,
    sign_bits_encode,
    sign_bits_encode_reference,
)


@pytest.mark.parametrize("channels", [8, 24, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bits_are_set_above_zero_and_at_nan(
    dtype: torch.dtype, channels: int, device: torch.device
) -> None:
    bits = torch.arange(1 << 16, dtype=torch.int32, device=device)
    raw = (bits << 16).view(torch.float32).to(dtype)
    raw = raw[: len(raw) // channels * channels].view(-1, channels)
    coded, expected = (
        torch.full((len(raw), channels // 8), 0xA5, dtype=torch.uint8, device=device)
        for _ in range(2)
    )
    sign_bits_encode(raw, coded)
    sign_bits_encode_reference(raw, expected)
    assert torch.equal(coded, expected)
    assert torch.equal(passes_reference(coded), (raw > 0) | raw.isnan())


def test_zeros_of_both_signs_have_no_bit(device: torch.device) -> None:
    raw = torch.tensor([[0.0, -0.0, 1e-45, -1e-45, math.inf, -math.inf, math.nan, -1.0]])
    coded = torch.empty(1, 1, dtype=torch.uint8, device=device)
    sign_bits_encode(raw.to(device), coded)
    assert coded.item() == 0b01010100
