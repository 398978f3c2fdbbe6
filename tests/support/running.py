"""Runs schedules as a trainer would, and tells losses, weights and the bytes that were touched."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tvdnn.engine import Trainer
from tvdnn.engine.control import make_control, write_control
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.runtime.arena import Arena
from tvdnn.runtime.binding import Tensors
from tvdnn.runtime.cpu_executor import POISON
from tvdnn.runtime.host_slab import Slab
from tvdnn.runtime.runner import Runner
from tvdnn.runtime.section_file import SectionFile

SENTINEL = 0x7F  # four of them are 3.4e38, far from anything that is computed
BEYOND_NBYTES = 8192
LEARNING_RATE, MOMENTUM = 0.05, 0.9
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The losses of the steps, parameters and buffers after them, how far the arena was touched."""

    losses: tuple[Tensor, ...]
    params: tuple[Tensor, ...]
    touched_nbytes: int

    def equals(self, other: "Outcome") -> bool:
        """Whether every loss and parameter has the same bits."""
        pairs = zip((*self.losses, *self.params), (*other.losses, *other.params), strict=True)
        return all(torch.equal(mine, theirs) for mine, theirs in pairs)


def random_batches(count: int, shape: tuple[int, ...], classes: int, seed: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(shape, generator=generator),
            torch.randint(0, classes, shape[:1], generator=generator),
        )
        for _ in range(count)
    ]


def train(
    net: nn.Module,
    schedule: Schedule,
    batches: Sequence[Batch],
    *,
    order_seed: int | None = None,
    delay_seed: int | None = None,
    file: SectionFile | None = None,
    device: str = "cpu",
) -> Outcome:
    """Train a copy of `net` by SGD with momentum, a step a batch, over memory poisoned before.

    A second arena stands in for that of a peer. `file` takes what goes to one. On a GPU Triton's
    kernels run.
    """
    where = torch.device(device)
    net = copy.deepcopy(net).to(where)
    params, buffers = dict(net.named_parameters()), dict(net.named_buffers())
    momenta = {name: torch.zeros_like(param) for name, param in params.items()}
    block, control = make_control(where)
    arena, slab = Arena(where), Slab(pinned=where.type == "cuda")
    arena.reserve(schedule.arena_nbytes + BEYOND_NBYTES, schedule.pages)
    slab.reserve(max(1, schedule.slab_nbytes))
    peer = Arena(where)
    peer.reserve(schedule.peer_nbytes)
    if file is not None:
        file.reserve(schedule.file_nbytes)
    detached = {name: param.detach() for name, param in params.items()}
    updates = {name: (param, momenta[name]) for name, param in detached.items()}
    updates |= {name: (buffer,) for name, buffer in buffers.items()}
    runner = Runner(
        schedule,
        Tensors(detached | buffers, updates, control),
        kernels="triton" if where.type == "cuda" else "torch",
        arena=arena,
        slab=slab,
        file=file,
        peer=peer,
        order_seed=order_seed,
        delay_seed=delay_seed,
    )
    runner.refresh()
    losses, touched = [], 0
    for number, (x, y) in enumerate(batches):
        if where.type == "cuda":
            torch.cuda.synchronize()  # the step before still copies what the host poisons here
        arena.bytes.fill_(POISON if number else SENTINEL)
        slab.bytes.fill_(POISON)
        peer.bytes.fill_(POISON)
        sgd = (LEARNING_RATE, MOMENTUM, 0.0, 0.0, float(number == 0), 1.0)
        write_control(block, sgd, 1.0, number)
        runner.fill(schedule.graph.network.inputs[0], x.to(where))
        runner.fill("target", y.to(where))
        runner.run()
        losses.append(runner.outputs("loss")[0][1][0].clone())
        touched = touched or _high_water(arena.bytes)
    return Outcome(tuple(losses), (*detached.values(), *buffers.values()), touched)


def bits(trainer: Trainer) -> list[Tensor]:
    """Parameters, statistics and the optimizer's state."""
    state = trainer.optimizer.state_dict()["state"]
    kept = [each for _, held in sorted(state.items()) for each in held.values()]
    tensors = [*trainer.net.state_dict().values(), *kept]
    return [each.clone() for each in tensors if isinstance(each, Tensor)]


def alike(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def _high_water(memory: Tensor) -> int:
    """One past the last byte that is not as it was filled."""
    changed = (memory != SENTINEL).nonzero()
    return int(changed[-1]) + 1 if len(changed) else 0
