"""Training on GPUs by several processes: run as the process of a rank."""

import faulthandler
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.data_parallel_cases import SHAPE, Net
from tests.distributed.trainer_cases import SPECS, TORCHS, part_of
from tvdnn import Trainer, virtualize

STEPS = 4
LIMIT_S = 100  # three times what a process takes with no kernel compiled yet


def main() -> None:
    """Train by Trainer and by DistributedDataParallel on this rank's part; save all states."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)  # where a process waits for ever
    backend, rank, world, folder = *sys.argv[1:2], *map(int, sys.argv[2:4]), Path(sys.argv[4])
    device = torch.device("cuda", rank if backend == "nccl" else 0)
    torch.cuda.set_device(device)
    store = f"file://{folder}/{backend}.store"
    distributed.init_process_group(backend, init_method=store, rank=rank, world_size=world)
    given = [(x.to(device), y.to(device)) for x, y in part_of(rank, (4,) * world, STEPS)]
    states, losses = {}, {}
    for name, shard in (("trainer", None), ("shards", "optimizer")):
        if shard is None or backend == "nccl":
            losses[name], states[name] = _by_trainer(Net(), given, shard)
    _, states["synchronized"] = _by_trainer(_normalized(), given, None)
    states["wrapped"] = _by_data_parallel(Net(), given)
    states["normalized"] = _by_data_parallel(_normalized(), given)
    torch.save({"losses": losses["trainer"], **states}, folder / f"{backend}.{rank}.pt")
    distributed.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


def _normalized() -> nn.Module:
    """The network with statistics of the samples of all processes."""
    return nn.SyncBatchNorm.convert_sync_batchnorm(Net(normalizes=True))


def _by_data_parallel(net: nn.Module, given: list[tuple[Tensor, Tensor]]) -> Any:
    """The state after steps by DistributedDataParallel around the virtualized network."""
    net.to(given[0][0].device)
    virtual = virtualize(net, given[0][0], dtype="fp32", chunk_size=3000)
    parallel = DistributedDataParallel(virtual, bucket_cap_mb=0.003)
    optimizer = TORCHS["SGD"](parallel.parameters())
    for x, y in given:
        optimizer.zero_grad()
        functional.cross_entropy(parallel(x), y).backward()
        optimizer.step()
    virtual.close()
    return net.cpu().state_dict()


def _by_trainer(
    net: nn.Module, given: list[tuple[Tensor, Tensor]], shard: str | None
) -> tuple[list[float], Any]:
    """The losses and the state after steps by Trainer, in a group of all processes."""
    device = given[0][0].device
    net, x = net.to(device), torch.empty(4, *SHAPE, device=device)
    how: dict[str, Any] = {"dtype": "fp32", "chunk_size": 3000, "bucket_size": 3000}
    how |= {"process_group": distributed.group.WORLD, "shard": shard}
    trainer = Trainer(net, x, optimizer=SPECS["SGD"], **how)
    losses = [trainer.step(*batch).item() for batch in given]
    momentum = trainer.state_dict()["optimizer"]["state"][0]["momentum_buffer"].cpu()
    trainer.close()  # a group waits for the graphs that hold its sums
    return losses, {**net.cpu().state_dict(), "momentum": momentum}
