"""Cases of trainers that train together, in several processes."""

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.data_parallel_cases import CLASSES, EPS, SHAPE, STEPS, Net, batches, trained
from tests.support.ranks import WORLD, EndOfProcessError
from tvdnn import Trainer
from tvdnn.errors import BudgetError, EngineError, InputError
from tvdnn.optim import SGD, AdamW
from tvdnn.planner.ir.schedule import Lane

Batches = Iterator[tuple[Tensor, Tensor]]
SPECS: Final = {"SGD": SGD(0.1, momentum=0.9), "AdamW": AdamW(1e-3, eps=EPS)}
TORCHS: Final[dict[str, Callable[[Any], torch.optim.Optimizer]]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=1e-3, eps=EPS),
}
KEPT_NBYTES: Final = 200_000  # of a step of `Net` on 4 samples
SIZES: Final = (5, 4, 2, 3)  # samples of each rank, where they differ


def part_of(rank: int, sizes: tuple[int, ...], count: int = STEPS, seed: int = 5) -> Batches:
    """A rank's part of each batch, of so many samples."""
    first = sum(sizes[:rank])
    for x, y in batches(count, sum(sizes)):
        yield x[first : first + sizes[rank]], y[first : first + sizes[rank]]


def trainer_of(net: nn.Module, size: int, name: str = "SGD", **options: Any) -> Trainer:
    options = {"policy": "vdnn-all", "chunk_size": 3000, "order_seed": 2} | options
    options.setdefault("process_group", distributed.group.WORLD)
    return Trainer(net, torch.empty(size, *SHAPE), optimizer=SPECS[name], **options)


def steps(trainer: Trainer, given: Batches, **options: Any) -> Any:
    losses = [trainer.step(x, y, **options).clone() for x, y in given]
    return {"losses": torch.stack(losses), "state": copy.deepcopy(trainer.net.state_dict())}


def _trained_in_parts(rank: int, sizes: tuple[int, ...], name: str, **options: Any) -> Any:
    trainer = trainer_of(Net(), sizes[rank], name)
    return steps(trainer, part_of(rank, sizes), **options)


def case_sgd(rank: int) -> Any:
    return _trained_in_parts(rank, (4,) * 4, "SGD")


def case_adamw(rank: int) -> Any:
    return _trained_in_parts(rank, (4,) * 4, "AdamW")


def case_bf16_sums(rank: int) -> Any:
    trainer = trainer_of(Net(), 4, bucket_size=3000, sum_dtype="bf16")
    return steps(trainer, part_of(rank, (4,) * 4))


def case_of_unequal_parts(rank: int) -> Any:
    return _trained_in_parts(rank, SIZES, "SGD")


def case_accumulated(rank: int) -> Any:
    return _trained_in_parts(rank, (4,) * 4, "SGD", accumulate=2)


def case_early(rank: int) -> Any:
    """Each bucket's parameters are updated behind its own sum."""
    trainers = {
        early: trainer_of(Net(), 4, bucket_size=3000, early_updates=early)
        for early in (True, False)
    }
    early, usual = ([each.name for each in trainers[way].graph.passes] for way in (True, False))
    trained = steps(trainers[True], part_of(rank, (4,) * 4, 3))
    return {"names": early, "usual names": usual, **trained}


def case_host_budget(rank: int) -> Any:
    """The budget of a machine, of which each process has its part."""
    trainer = trainer_of(Net(), 4, host_budget="4MiB")
    return trainer.schedule.host_budget_nbytes


def case_synchronized(rank: int) -> Any:
    """Statistics over all processes, whose parts differ."""
    net = nn.SyncBatchNorm.convert_sync_batchnorm(Net(normalizes=True))
    return steps(trainer_of(net, SIZES[rank]), part_of(rank, SIZES))


class Residual(nn.Module):
    """Normalizations of several kinds, and a sum with a ReLU behind one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(8, momentum=None)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(8, affine=False)
        self.norm3 = nn.BatchNorm1d(8, track_running_stats=False)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(x + self.norm2(self.conv2(x)))
        return self.fc(self.norm3(x.mean((2, 3))))


def case_synchronized_parts(rank: int) -> Any:
    """Two parts of each batch; part by part, statistics are those of all processes."""
    net = nn.SyncBatchNorm.convert_sync_batchnorm(Residual())
    found = steps(trainer_of(net, 4), part_of(rank, (4,) * 4), accumulate=2)
    return found | {f"whole {dtype}": _in_parts(dtype) for dtype in ("float32", "float64")}


def _in_parts(dtype: str) -> dict[str, Tensor]:
    """The state by torch in one process, each part with the samples of all."""
    net = Residual().to(getattr(torch, dtype))
    optimizer = TORCHS["SGD"](net.parameters())
    for x, y in batches(STEPS, 16):
        optimizer.zero_grad()
        for part in (0, 1):
            own = [4 * process + 2 * part + n for process in range(4) for n in (0, 1)]
            (functional.cross_entropy(net(x[own].to(net.fc.weight.dtype)), y[own]) / 2).backward()
        optimizer.step()
    return net.state_dict()


def case_synchronized_alone(rank: int) -> Any:
    """A trainer without a group refuses layers that normalize over one."""
    net = nn.SyncBatchNorm.convert_sync_batchnorm(Net(normalizes=True))
    with pytest.raises(InputError) as caught:
        trainer_of(net, 4, process_group="none")
    return str(caught.value)


def case_plain(rank: int) -> Any:
    """DistributedDataParallel on the same parts, for each optimizer."""
    return {
        name: trained(DistributedDataParallel(Net()), part_of(rank, (4,) * 4), make)
        for name, make in TORCHS.items()
    }


def case_whole_batches(rank: int) -> Any:
    """One process with the whole batches, by torch in float64."""
    if rank:
        return None
    return {
        f"{name} {sum(sizes)}": trained(Net().double(), batches(STEPS, sum(sizes)), make)
        for name, make in TORCHS.items()
        for sizes in ((4,) * 4, SIZES)
    } | {
        f"{kind} normalized": trained(net, batches(STEPS, sum(SIZES)), TORCHS["SGD"])
        for kind, net in (
            ("float64", Net(normalizes=True).double()),
            ("float32", Net(normalizes=True)),
        )
    }


def case_other_starts(rank: int) -> Any:
    """All begin with the parameters of the first."""
    net = Net()
    with torch.no_grad():
        net.fc1.weight.add_(rank)
    trainer_of(net, 4)
    return net.state_dict()


def case_wrong_labels(rank: int) -> Any:
    """A rank has a label that is no class; all hear of it, and all go on."""
    net, told = Net(normalizes=True), list[str]()
    trainer = trainer_of(net, 4)
    given = list(part_of(rank, (4,) * 4, 3))
    before = copy.deepcopy(net.state_dict())
    x, y = given[0]
    loss = trainer.step(x, torch.full_like(y, CLASSES) if rank == 2 else y)
    for _ in range(2 if rank == 1 else 0):  # one process alone looks, as one that logs
        with pytest.raises(InputError):
            loss.item()
    same = all(torch.equal(before[name], each) for name, each in net.state_dict().items())
    try:
        trainer.step(*given[1])
    except InputError as error:
        told.append(str(error))
    return {"unchanged": same, "told": told, "after": steps(trainer, iter(given[1:]))}


def case_other_parts(rank: int) -> Any:
    """A process cuts its step into parts."""
    trainer = trainer_of(Net(), 4)
    ((x, y),) = part_of(rank, (4,) * 4, 1)
    try:
        trainer.step(x, y, accumulate=2 if rank == 1 else 1)
    except EngineError as error:
        return str(error)
    return None


def case_differences(rank: int) -> Any:
    """What is told of a network that differs in one process."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES + (rank == 3)))
    with suppress(InputError):
        trainer_of(net, 4)
        return None
    try:
        trainer_of(net, 4)
    except InputError as error:
        return str(error)
    return None


def case_sums(rank: int) -> Any:
    """The passes on the lane of sums, under two policies."""
    found = {}
    for policy in ("keep", "auto"):
        trainer = trainer_of(Net(), 4, policy=policy, bucket_size=3000)
        schedule = trainer.schedule
        names = [
            schedule.step_name(n)
            for n, step in enumerate(schedule.steps)
            if step.lane is Lane.REDUCE
        ]
        found[policy] = names, steps(trainer, part_of(rank, (4,) * 4, 3))
    return found


def case_functional(rank: int) -> Any:
    """The loss of the first step is that of all samples."""
    trainer, ((x, y),) = trainer_of(Net(), SIZES[rank]), part_of(rank, SIZES, 1)
    ((whole, labels),) = batches(1, sum(SIZES))
    expected = functional.cross_entropy(Net()(whole), labels)
    return trainer.step(x, y).item(), expected.item()


def case_dropout(rank: int) -> Any:
    """Draws go by the sample among those of all processes; the first also trains on all alone."""
    found = {"parts": steps(trainer_of(dropping(), 4), part_of(rank, (4,) * 4, 3))["state"]}
    if rank == 0:
        alone = trainer_of(dropping(), 16, process_group="none")
        found["whole"] = steps(alone, batches(3, 16))["state"]
    return found


def dropping() -> nn.Module:
    torch.manual_seed(4)
    features = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout2d(0.3), nn.Flatten())
    return nn.Sequential(*features, nn.Linear(288, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES))


class Detached(nn.Module):
    """A layer of which no gradient comes amid those that train."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.first, self.cut = nn.Linear(192, 16), nn.Linear(192, 16)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.last(torch.relu(self.first(x)) + self.cut(x).detach())


def case_detached(rank: int) -> Any:
    """By trainers in parts, and by torch in float64 on whole batches."""
    found = {"ours": steps(trainer_of(Detached(), 4), part_of(rank, (4,) * 4, 3))["state"]}
    if rank == 0:
        exact = trained(Detached().double(), batches(3, 16), TORCHS["SGD"])
        found["exact"] = exact["state"]
    return found


def case_plans(rank: int) -> Any:
    """The steps of the schedule, inside a budget, and what is told of one that is too small."""
    trainer = trainer_of(Net(), 4, policy="auto", budget=KEPT_NBYTES)
    found = {"steps": repr(trainer.schedule.steps)}
    try:
        trainer_of(Net(), 4, budget="1KiB")
    except BudgetError as error:
        found["told"] = str(error)
    return found


def case_killed(rank: int) -> Any:
    """A rank ends while the others are in a step: their parameters, optimizer and error."""
    how = {"process_group": distributed.new_group(timeout=timedelta(seconds=5))}
    whole = trainer_of(Net(normalizes=True), 4, **how)
    sharded = trainer_of(Net(normalizes=True), 4, "AdamW", shard="optimizer", **how)
    first, second = part_of(rank, (4,) * 4, 2)
    for trainer in (whole, sharded):
        trainer.step(*first)
    if rank == WORLD - 1:
        raise EndOfProcessError
    return {"whole": _failing(whole, second), "sharded": _failing(sharded, second)}


def _failing(trainer: Trainer, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """What a step tells that fails, and what there was before and after it."""
    before = copy.deepcopy(_kept(trainer))
    with pytest.raises(EngineError) as caught:
        trainer.step(*batch)
    return {"told": str(caught.value), "before": before, "after": _kept(trainer)}


def _kept(trainer: Trainer) -> list[Any]:
    """All that outlives a step: the network's tensors, the optimizer's, and its counts."""
    kept = trainer.optimizer.planned_state
    return [trainer.net.state_dict(), [*kept.states.values()], kept.steps]
