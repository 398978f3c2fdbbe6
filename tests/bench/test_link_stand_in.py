"""A process that stands in for several trains as one by itself, to the same bits."""

from typing import Any

import pytest
import torch

from bench.link_stand_in import AT_ONCE, BLOCKS, StandIn, launch
from tests.distributed.data_parallel_cases import SHAPE, Net, batches
from tests.distributed.trainer_cases import SPECS
from tvdnn import Trainer
from tvdnn.planner.ir.hardware import INTERCONNECTS

WORLD = 4


def test_sums_of_equal_parts_change_no_bit(device: torch.device) -> None:
    found = []
    for process_group in ("none", StandIn(WORLD, INTERCONNECTS["100GbE"])):
        net, x = Net(normalizes=True).to(device), torch.empty(8, *SHAPE, device=device)
        how: dict[str, Any] = {"dtype": "fp32", "chunk_size": 3000, "process_group": process_group}
        trainer = Trainer(net, x, optimizer=SPECS["SGD"], bucket_size=3000, **how)
        losses = [trainer.step(x.to(device), y.to(device)).item() for x, y in batches(3, 8)]
        found.append((losses, [each.clone() for each in net.state_dict().values()]))
        trainer.close()
    (losses, alone), (others, together) = found
    assert losses == others
    assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_element_is_multiplied_once(device: torch.device, dtype: torch.dtype) -> None:
    values = torch.randn(BLOCKS * AT_ONCE + 1000).to(device, dtype)
    expected = values * WORLD
    launch(values, WORLD, 0.0)
    assert torch.equal(values, expected)
