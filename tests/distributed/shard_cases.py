"""Cases of trainers whose processes have each a shard of the optimizer's state."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrizations import weight_norm

from tests.distributed.data_parallel_cases import CLASSES, STEPS, Net, batches, trained
from tests.distributed.trainer_cases import TORCHS, part_of, steps, trainer_of
from tvdnn.errors import EngineError, InputError


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


def case_written_states(rank: int) -> Any:
    """Writes to the optimizer's `state`, each refused once; steps then go on as without them."""
    given, told = list(part_of(rank, (4,) * 4, 6)), []
    trainer, usual = (trainer_of(Net(), 4, "AdamW", shard="optimizer") for _ in range(2))
    weight = trainer.net.fc1.weight
    writes: list[Callable[[Any], Any]] = [
        lambda state: state.clear(),
        lambda state: state.pop(weight),
        lambda state: state[weight].update(step=torch.tensor(3.0)),
        lambda state: state[weight].update(exp_avg=torch.ones_like(weight)),
    ]
    steps(trainer, iter(given[:1]))
    for write, batch in zip(writes, given[1:], strict=False):
        write(trainer.optimizer.state)
        with pytest.raises(InputError) as caught:
            trainer.step(*batch)
        told.append(str(caught.value))
        steps(trainer, iter([batch]))
    steps(usual, iter(given[:5]))
    return {"told": told, "found": trainer.state_dict(), "expected": usual.state_dict()}


def case_other_layout(rank: int) -> Any:
    """The memory format changes between two steps."""
    trainer, given = trainer_of(Net(), 4, shard="optimizer"), list(part_of(rank, (4,) * 4, 2))
    steps(trainer, iter(given[:1]))
    trainer.net.to(memory_format=torch.channels_last)
    with pytest.raises(InputError) as caught:
        trainer.step(*given[1])
    return str(caught.value)


def case_failed_gather(rank: int) -> Any:
    """Gathers fail: of a checkpoint half way, and of a step where nothing is restored."""
    trainer, given = trainer_of(Net(), 4, shard="optimizer"), list(part_of(rank, (4,) * 4, 2))
    steps(trainer, iter(given[:1]))
    group = trainer._core.requested.group
    assert group is not None
    gather, left = group.gather, iter([True, True])

    def fail(values: torch.Tensor) -> None:
        if not next(left, False):
            raise EngineError("no answer")
        gather(values)

    shown, group.gather = dict(trainer.optimizer.state), fail  # type: ignore[method-assign]
    with pytest.raises(EngineError) as of_state:
        trainer.state_dict()
    same = dict(trainer.optimizer.state) == shown
    trainer._steps.loses = True  # as on a GPU
    with pytest.raises(EngineError) as of_step:
        trainer.step(*given[1])
    return {"told": [str(of_state.value), str(of_step.value)], "same": same}


class Tied(nn.Module):
    """A tied weight, one computed from two others, one element, and a layer frozen at first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.first, self.last = nn.Linear(192, 16, bias=False), nn.Linear(16, CLASSES)
        self.middle = weight_norm(nn.Linear(16, 16))
        self.again = nn.Linear(16, 16, bias=False)
        self.again.weight = self.first.weight = nn.Parameter(0.1 * torch.randn(16, 16))
        self.scale = nn.Parameter(torch.ones(1))
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x.flatten(1)[:, :16]))
        x = self.again(torch.relu(self.middle(x))) * self.scale
        return self.last(torch.relu(x + self.frozen(x)))


def case_other_networks(rank: int) -> Any:
    """Trained in shards and in whole states, and then with other layers frozen."""
    found = []
    for shard in ("optimizer", None):
        trainer = trainer_of(Tied(), 4, shard=shard)
        steps(trainer, part_of(rank, (4,) * 4, 2))
        trainer.net.frozen.requires_grad_()
        trainer.net.last.requires_grad_(requires_grad=False)
        steps(trainer, part_of(rank, (4,) * 4, 2), accumulate=2)
        found.append(trainer.state_dict())
        trainer.close()
    return found


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
