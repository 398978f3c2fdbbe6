"""Copies of bytes by a kernel: every byte, and none beside them."""

import pytest
import torch

from tvdnn.kernels.copy import host as module
from tvdnn.kernels.copy.host import transfer, transfer_reference


@pytest.mark.parametrize("nbytes", [0, 1, 17, module.BLOCK, 3 * module.BLOCK + 16, 100_003])
def test_all_bytes_are_copied(nbytes: int, generator: torch.Generator) -> None:
    options = {"dtype": torch.uint8, "device": generator.device}
    source = torch.randint(256, (nbytes + 32,), generator=generator, **options)
    targets = [torch.full_like(source, 7) for _ in range(2)]
    for run, target in zip((transfer, transfer_reference), targets, strict=True):
        run(source[16 : 16 + nbytes], target[16 : 16 + nbytes])
    assert torch.equal(*targets)
    assert torch.equal(targets[0][16 : 16 + nbytes], source[16 : 16 + nbytes])
    assert (targets[0][:16] == 7).all()
    assert (targets[0][16 + nbytes :] == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("to_host", [True, False])
def test_pinned_memory_is_reached(*, to_host: bool, generator: torch.Generator) -> None:
    options = {"dtype": torch.uint8, "device": generator.device}
    device = torch.randint(256, (5_000_016,), generator=generator, **options)
    host = torch.zeros(len(device), dtype=torch.uint8).pin_memory()
    if not to_host:
        host.random_(256)
    source, target = (device, host) if to_host else (host, device)
    expected = source.cpu().clone()
    transfer(source, target)
    torch.cuda.synchronize()
    assert torch.equal(target.cpu(), expected)
