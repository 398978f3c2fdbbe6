"""The kernel by which the rate of the L2 cache is measured."""

import pytest
import torch

from bench.cached_copy import BLOCK, copy_often, operands


@pytest.mark.parametrize("programs", [1, 3, 8])
def test_every_block_is_copied(device: torch.device, programs: int) -> None:
    source, target = operands(5 * BLOCK * 4, device.type)
    copy_often(source, target, 2, programs)
    assert torch.equal(source, target)


def test_no_copies_leave_the_target(device: torch.device) -> None:
    source, target = operands(3 * BLOCK * 4, device.type)
    copy_often(source, target, 0, 4)
    assert not target.any()
