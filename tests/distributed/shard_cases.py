"""Cases of trainers whose processes have each a shard of the optimizer's state."""

from typing import Any

import pytest
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.data_parallel_cases import STEPS, Net, batches, trained
from tests.distributed.trainer_cases import TORCHS, part_of, steps, trainer_of
from tvdnn.errors import InputError


def case_shards(rank: int) -> Any:
    """Each process has a shard of the optimizer's state, by each optimizer and in several ways."""
    ways: dict[str, dict[str, Any]] = {
        "SGD": {"bucket_size": 3000},
        "AdamW": {},
        "SGD in bf16": {"bucket_size": 3000, "sum_dtype": "bf16"},
        "SGD early": {"bucket_size": 3000, "early_updates": True, "policy": "auto"},
    }
    return {name: _by_shards(rank, name.split()[0], **how) for name, how in ways.items()}


def _by_shards(rank: int, name: str, **how: Any) -> Any:
    trainer = trainer_of(Net(), 4, name, shard="optimizer", **how)
    found = steps(trainer, part_of(rank, (4,) * 4))
    states = trainer.optimizer.planned_state.states.values()
    kept = sum(each.numel() for state in states for each in state.values())
    fixed = trainer.graph.fixed["optimizer state"]
    return {**found, "kept": kept, "fixed": fixed, "saved": trainer.state_dict()}


def case_accumulated(rank: int) -> Any:
    trainer = trainer_of(Net(), 4, "AdamW", shard="optimizer")
    return steps(trainer, part_of(rank, (4,) * 4), accumulate=2)


def case_restored(rank: int) -> Any:
    """From shards to whole states and back amid the steps, beside shards all the way."""
    given = list(part_of(rank, (4,) * 4, 6))
    shards, whole, others, usual = (
        trainer_of(Net(), 4, "AdamW", shard=shard)
        for shard in ("optimizer", None, "optimizer", "optimizer")
    )
    steps(shards, iter(given[:3]))
    whole.load_state_dict(shards.state_dict())
    shown = whole.optimizer.state[whole.net.fc1.weight]["exp_avg"].clone()
    others.load_state_dict(whole.state_dict())
    steps(others, iter(given[3:]))
    steps(usual, iter(given))
    return {"found": others.state_dict(), "expected": usual.state_dict(), "shown": shown}


def case_refused(rank: int) -> Any:
    with pytest.raises(InputError) as alone:
        trainer_of(Net(), 4, process_group="none", shard="optimizer")
    with pytest.raises(InputError) as unknown:
        trainer_of(Net(), 4, shard="gradients")
    return str(alone.value), str(unknown.value)


def case_torchs(rank: int) -> Any:
    """By torch: DistributedDataParallel on the same parts, and whole batches in float64."""
    return {
        name: {
            "plain": trained(DistributedDataParallel(Net()), part_of(rank, (4,) * 4), make),
            "exact": None if rank else trained(Net().double(), batches(STEPS, 16), make),
        }
        for name, make in TORCHS.items()
    }
