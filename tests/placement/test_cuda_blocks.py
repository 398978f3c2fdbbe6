"""Blocks of torch's allocator: a tensor takes the planned bytes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tvdnn
from tvdnn.placement import aligned
from tvdnn.placement.cuda_blocks import LARGE_NBYTES, block_nbytes, usable_nbytes
from tvdnn.units import GIB, MIB

SIZES = st.integers(0, 64 * MIB)


@given(SIZES, SIZES)
def test_blocks_of_what_is_usable_fit(nbytes: int, room: int) -> None:
    usable = usable_nbytes(room)
    assert usable <= room
    assert nbytes <= block_nbytes(nbytes) <= aligned(nbytes) + MIB
    assert block_nbytes(min(nbytes, usable)) <= room


def test_rests_of_a_mebibyte_stay_with_their_block() -> None:
    assert block_nbytes(12 * MIB) == 12 * MIB
    assert block_nbytes(11 * MIB) == 12 * MIB
    assert block_nbytes(11 * MIB - 512) == 11 * MIB - 512
    assert block_nbytes(LARGE_NBYTES - 1) == LARGE_NBYTES - 1
    assert block_nbytes(4096 * 1000 * 4) == 16 * MIB  # the weight of VGG-16's last layer


@pytest.mark.gpu
@pytest.mark.parametrize("nbytes", [10 * MIB, 11 * MIB - 512, 11 * MIB, 16_384_000, 700 * MIB + 9])
def test_blocks_are_torchs(nbytes: int) -> None:
    before = torch.cuda.memory_allocated()
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):  # others' segments may have room for it
        tensor = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == aligned(block_nbytes(nbytes))
    del tensor


@pytest.mark.gpu
def test_a_full_budget_is_kept() -> None:
    budget = 2 * GIB + 12_345
    net = tvdnn.models.vgg16().cuda()
    x = torch.randn(64, 3, 224, 224, device="cuda")
    y = torch.zeros(64, dtype=torch.int64, device="cuda")
    trainer = tvdnn.Trainer(net, x, budget=budget, policy="vdnn-all:p", dtype="bf16")
    trainer.step(x, y)
    assert trainer.peak_nbytes() <= budget
    trainer.close()
