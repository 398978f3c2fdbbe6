"""TF32 codes: all 2^18 patterns come back, and a code is what its reference makes."""

import pytest
import torch

from tvdnn.kernels.codec.tf32 import (
    tf32_decode,
    tf32_decode_reference,
    tf32_encode,
    tf32_encode_reference,
    tf32_nbytes,
)

PATTERNS = 1 << 18


@pytest.mark.parametrize("numel", [0, 1, 5, 4096, 4099, PATTERNS])
def test_every_pattern_comes_back(numel: int, device: torch.device) -> None:
    places = torch.arange(numel, dtype=torch.int32, device=device) * 40503 % PATTERNS
    raw = (places << 13).view(torch.float32)
    coded, expected = (
        torch.full((tf32_nbytes(numel) + 16,), 0xA5, dtype=torch.uint8, device=device)
        for _ in range(2)
    )
    tf32_encode(raw, coded[:-16])
    tf32_encode_reference(raw, expected[:-16])
    assert torch.equal(coded, expected)
    for decode in (tf32_decode, tf32_decode_reference):
        decoded = torch.full_like(raw, 7)
        decode(coded[:-16], decoded)
        assert torch.equal(decoded.view(torch.int32), raw.view(torch.int32))


def test_a_code_has_eighteen_bits_a_value() -> None:
    assert tf32_nbytes(PATTERNS) * 8 == 18 * PATTERNS
