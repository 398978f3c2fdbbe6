"""Encoding straight to pinned memory: the codes are those of the codecs' other encoders."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tvdnn.kernels.codec import to_host
from tvdnn.kernels.codec.fp10 import fp10_nbytes
from tvdnn.kernels.codec.tf32 import tf32_nbytes

BF16, F32 = torch.bfloat16, torch.float32
SIZES = (0, 8, 5000, 3 * to_host.BLOCK, 3 * to_host.BLOCK + 40)
FIXED: dict[str, tuple[torch.dtype, Callable[[int], int]]] = {
    "tf32": (F32, tf32_nbytes),
    "fp16": (F32, lambda numel: 2 * numel),
    "fp10": (BF16, fp10_nbytes),
    "fp8": (BF16, lambda numel: numel),
    "sign_bits": (BF16, lambda numel: numel // 8),
}


def _raw(numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(numel)
    raw = torch.randn(numel, device=device, generator=generator)
    return ((raw.view(torch.int32) >> 13) << 13).view(F32).to(dtype)


def _host(nbytes: int, device: torch.device) -> Tensor:
    """Bytes as an encoder to the host gets them, and 16 behind them."""
    return torch.full((nbytes + 16,), 0xA5, dtype=torch.uint8, pin_memory=device.type == "cuda")


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("codec", FIXED)
@pytest.mark.parametrize("programs", [1, 3])
def test_codes_are_the_references(
    codec: str, numel: int, programs: int, device: torch.device
) -> None:
    dtype, nbytes = FIXED[codec]
    raw = _raw(numel, dtype, device)
    raw = raw.relu() if codec == "tf32" else raw
    shape = (-1, 8) if codec == "sign_bits" else (-1,)
    coded, expected = _host(nbytes(numel), device), _host(nbytes(numel), device)
    for name, out, settings in (
        ("", coded, {"programs": programs}),
        ("_reference", expected, {}),
    ):
        encode = getattr(to_host, f"{codec}_encode_to_host{name}")
        code = out[:-16].view(-1, 1) if codec == "sign_bits" else out[:-16]
        encode(raw.view(shape), code, **settings)
    torch.cuda.synchronize() if device.type == "cuda" else None
    assert torch.equal(coded, expected)
