"""Sign bits packed by a kernel of their own: every pattern of bits, all sizes, cuts."""

import pytest
import torch

from tests.kernels.numerics import poisoned, randn
from tvdnn.kernels.codec import sign_bits
from tvdnn.kernels.codec.sign_bits import passes_reference

SHAPES = [(1, 8), (3, 5, 7, 24), (2, 9, 9, 32), (0, 4, 4, 64), (257, 40), (2, 1, 1, 4128)]
TYPES = (torch.float32, torch.bfloat16)


def coded(raw: torch.Tensor, suffix: str = "") -> torch.Tensor:
    bits = poisoned((*raw.shape[:-1], raw.shape[-1] // 8), torch.uint8, raw.device)
    getattr(sign_bits, f"sign_bits_encode{suffix}")(raw, bits)
    return bits


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_bit_says_whether_a_value_is_above_zero_or_nan(
    shape: tuple[int, ...], dtype: torch.dtype, suffix: str, generator: torch.Generator
) -> None:
    raw = randn(shape, dtype, generator)
    raw.view(-1)[::5] = 0.0
    raw.view(-1)[1::7] = torch.nan
    bits = coded(raw, suffix)
    assert torch.equal(passes_reference(bits), ~(raw <= 0))
    places = 2 ** torch.arange(8, device=raw.device)
    first = (~(raw[..., :8] <= 0) * places).sum(-1)
    assert torch.equal(bits[..., 0].long(), first)


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("channels", [8, 32])
def test_every_pattern_of_bfloat16(channels: int, suffix: str, generator: torch.Generator) -> None:
    """Zeros, subnormals, infinities and every NaN."""
    patterns = torch.arange(1 << 16, device=generator.device, dtype=torch.int32)
    raw = patterns.to(torch.int16).view(torch.bfloat16).view(-1, channels)
    negative, magnitude = patterns >= 1 << 15, patterns & 0x7FFF
    passing = (magnitude > 0x7F80) | (~negative & (magnitude > 0))
    assert torch.equal(passes_reference(coded(raw, suffix)).flatten(), passing)


@pytest.mark.parametrize("channels", [24, 64])
def test_cuts_do_not_show(channels: int, generator: torch.Generator) -> None:
    raw = randn((7, 5, 5, channels), torch.bfloat16, generator)
    parts = [coded(raw[run]) for run in (slice(0, 1), slice(1, 3), slice(3, 7))]
    assert torch.equal(torch.cat(parts), coded(raw))


@pytest.mark.gpu
def test_large_offsets(generator: torch.Generator) -> None:
    raw = torch.ones((1 << 17) + 1, 128, 128, dtype=torch.bfloat16, device=generator.device)
    raw[-1] = randn((128, 128), torch.bfloat16, generator)
    assert torch.equal(coded(raw)[-1], coded(raw[-1].clone()))
