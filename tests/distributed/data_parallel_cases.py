"""Cases of DistributedDataParallel around virtualized networks, in several processes."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from tvdnn import virtualize
from tvdnn.engine import Virtualized

STEPS: Final = 10
EPS: Final = 1e-4  # of AdamW: with less, gradients near 0 move parameters by their rounding
SHARD, SHAPE, CLASSES = 4, (3, 8, 8), 5
BUCKET_MB: Final = 0.002  # several buckets in a network of 20 kB
Optimizers = Callable[[Any], Optimizer]
OPTIMIZERS: Final[dict[str, Optimizers]] = {
    "SGD": lambda params: SGD(params, lr=0.1, momentum=0.9),
    "AdamW": lambda params: AdamW(params, lr=1e-3, eps=EPS),
}


class Net(nn.Module):
    """Convolutions and linear layers; `spare` is used where `uses_spare`."""

    def __init__(self, *, normalizes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv1 = nn.Conv2d(3, 12, 3, padding=1)
        self.norm = nn.BatchNorm2d(12) if normalizes else nn.Identity()
        self.conv2 = nn.Conv2d(12, 12, 3, stride=2, padding=1)
        self.fc1 = nn.Linear(12 * 16, 16)
        self.spare = nn.Linear(16, 16)
        self.fc2 = nn.Linear(16, CLASSES)
        self.uses_spare = True

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv1(x)))
        x = torch.relu(self.conv2(x)).flatten(1)
        x = torch.relu(self.fc1(x))
        return self.fc2(torch.relu(self.spare(x)) if self.uses_spare else x)


def batches(count: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of so many samples."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        x = torch.randn(size, *SHAPE, generator=generator)
        yield x, torch.randint(0, CLASSES, (size,), generator=generator)


def shards(rank: int, count: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    """A rank's equal share of each batch."""
    for x, y in batches(count, SHARD * distributed.get_world_size()):
        yield x[rank * SHARD :][:SHARD], y[rank * SHARD :][:SHARD]


def virtual(net: nn.Module) -> Virtualized:
    options: dict[str, Any] = {"policy": "vdnn-all", "chunk_size": 3000, "order_seed": 2}
    return virtualize(net, torch.empty(SHARD, *SHAPE), **options)


def parallel(net: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(net, bucket_cap_mb=BUCKET_MB, **options)


def trained(net: nn.Module, given: Iterator[tuple[Tensor, Tensor]], make: Optimizers) -> Any:
    """The state of a network after a step for each batch, and its losses."""
    optimizer, losses = make(net.parameters()), []
    dtype = next(net.parameters()).dtype
    for x, y in given:
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x.to(dtype)), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "state": copy.deepcopy(net.state_dict())}


@cache
def _three_ways(rank: int, name: str, normalizes: bool) -> dict[str, Any]:
    make, net = OPTIMIZERS[name], Net(normalizes=normalizes)
    nets = {
        "ours": parallel(virtual(copy.deepcopy(net))),
        "torch": parallel(copy.deepcopy(net)),
        "exact": parallel(copy.deepcopy(net).double()),
    }
    return {way: trained(each, shards(rank), make) for way, each in nets.items()}


def case_sgd(rank: int) -> Any:
    """Ours, torch's and float64's training on the same shards."""
    return _three_ways(rank, "SGD", False)


def case_adamw(rank: int) -> Any:
    return _three_ways(rank, "AdamW", False)


def case_batch_norm(rank: int) -> Any:
    """Statistics are each rank's own. Running ones are broadcast from rank 0."""
    return _three_ways(rank, "SGD", True)


def case_synchronized(rank: int) -> Any:
    """Statistics are those of all ranks. DistributedDataParallel takes such layers on GPUs alone:
    gradients are averaged by hand.
    """
    net: Any = virtual(nn.SyncBatchNorm.convert_sync_batchnorm(Net(normalizes=True)))
    optimizer, losses = OPTIMIZERS["SGD"](net.parameters()), []
    for x, y in shards(rank):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        for param in net.parameters():
            distributed.all_reduce(param.grad)
            param.grad /= distributed.get_world_size()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "state": copy.deepcopy(net.state_dict())}


def case_whole_batches(rank: int) -> Any:
    """One process with the whole batches, in float64 and in float32."""
    if rank:
        return None
    size, net = SHARD * distributed.get_world_size(), Net()
    ways = {"torch": copy.deepcopy(net), "exact": copy.deepcopy(net).double()}
    normalized = Net(normalizes=True)
    ways |= {"torch normalized": normalized, "exact normalized": copy.deepcopy(normalized).double()}
    make = OPTIMIZERS["SGD"]
    return {way: trained(each, batches(STEPS, size), make) for way, each in ways.items()}


def case_buckets(rank: int) -> Any:
    """What happens in a second step: buckets are reduced, and parts of backward run."""
    events: list[str] = []
    net = parallel(virtual(Net()))
    inner: Any = net.module
    steps = inner._steps
    begin = steps._begin_phase

    def begun(runner: Any, number: int, phase: int) -> None:
        events.append(f"part {phase}")
        begin(runner, number, phase)

    def reduced(_: object, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
        events.append(f"bucket {bucket.index()}")
        return (
            distributed.all_reduce(  # type: ignore[no-any-return]
                bucket.buffer().div_(distributed.get_world_size()), async_op=True
            )
            .get_future()
            .then(lambda each: each.value()[0])
        )

    net.register_comm_hook(None, reduced)
    steps._begin_phase = begun
    for x, y in shards(rank, 2):
        events.clear()
        functional.cross_entropy(net(x), y).backward()
    return events


@contextmanager
def _counted_reductions(net: DistributedDataParallel) -> Iterator[list[int]]:
    counts: list[int] = []

    def reduced(_: object, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
        counts.append(bucket.index())
        work = distributed.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(  # type: ignore[no-any-return]
            lambda each: each.value()[0] / distributed.get_world_size()
        )

    net.register_comm_hook(None, reduced)
    yield counts


def case_accumulated(rank: int) -> Any:
    """The gradients of three batches, of which the last alone is reduced; how often that is."""
    found = {}
    for way, make in {"ours": virtual, "torch": nn.Identity}.items():
        net = Net()
        wrapped = parallel(virtual(net) if make is virtual else net)
        with _counted_reductions(wrapped) as counts:
            for number, (x, y) in enumerate(shards(rank, 3)):
                with wrapped.no_sync() if number < 2 else nullcontext():
                    functional.cross_entropy(wrapped(x), y).backward()
                assert bool(counts) == (number == 2)
        found[way] = {name: param.grad for name, param in net.named_parameters()}
    return found


def case_unused(rank: int) -> Any:
    """The gradients where a layer is in no network, and in those of some ranks alone."""
    found: dict[str, Any] = {}
    for users in ((), (1,)):
        for way in ("ours", "torch"):
            net = Net()
            wrapped = parallel(virtual(net) if way == "ours" else net, find_unused_parameters=True)
            net.uses_spare = rank in users
            for x, y in shards(rank, 2):
                net.zero_grad()
                functional.cross_entropy(wrapped(x), y).backward()
            found[f"{way}, used by {users}"] = {n: p.grad for n, p in net.named_parameters()}
    return found


def case_two_ranks(rank: int) -> Any:
    """The first two ranks alone, as a group."""
    group = distributed.new_group([0, 1])
    if rank > 1:
        return None
    found = {}
    for way in ("ours", "torch"):
        net = Net()
        wrapped = parallel(virtual(net) if way == "ours" else net, process_group=group)
        found[way] = trained(wrapped, shards(rank, 2), OPTIMIZERS["SGD"])
    return found


def case_checkpoints(rank: int) -> Any:
    """Torch's wrapper goes on from the state of ours, and ours from torch's."""
    make = OPTIMIZERS["SGD"]
    ours, torchs = parallel(virtual(Net(normalizes=True))), parallel(Net(normalizes=True))
    trained(ours, shards(rank, 2), make)
    torchs.load_state_dict(ours.state_dict())
    there = trained(torchs, shards(rank, 2), make)
    ours.load_state_dict(ours.state_dict())
    here = trained(ours, shards(rank, 2), make)
    return {"ours": here, "torch": there}
