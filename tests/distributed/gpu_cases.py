"""Training on GPUs by several processes: run as the process of a rank."""

import faulthandler
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.data_parallel_cases import Net
from tests.distributed.trainer_cases import SPECS, TORCHS, part_of
from tvdnn import Trainer, virtualize

STEPS = 4
ANSWER_S = 10  # after which a process that does not answer is given up
LIMIT_S = 100  # three times what a process takes with no kernel compiled yet


def main() -> None:
    """Train by Trainer and by DistributedDataParallel on this rank's part; save all states."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)  # where a process waits for ever
    backend, rank, world, folder = _joined()
    device = torch.device("cuda", torch.cuda.current_device())
    given = [(x.to(device), y.to(device)) for x, y in part_of(rank, (4,) * world, STEPS)]
    states, losses = {}, {}
    for name, shard in (("trainer", None), ("shards", "optimizer")):
        if shard is None or backend == "nccl":
            losses[name], states[name] = _by_trainer(Net(), given, shard=shard)
    _, states["synchronized"] = _by_trainer(_normalized(), given)
    for seed in (None, rank):
        how: dict[str, Any] = {"policy": "vdnn-all", "delay_seed": seed}
        _, states[f"offloaded, delays by {seed is not None}"] = _by_trainer(Net(), given, **how)
    states["wrapped"] = _by_data_parallel(Net(), given)
    states["normalized"] = _by_data_parallel(_normalized(), given)
    torch.save({"losses": losses["trainer"], **states}, folder / f"{backend}.{rank}.pt")
    distributed.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


def lose_one() -> None:
    """Train by Trainer until the last process ends in the place of a step."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    _, rank, world, _ = _joined(timeout=timedelta(seconds=ANSWER_S))
    device = torch.device("cuda", torch.cuda.current_device())
    given = [(x.to(device), y.to(device)) for x, y in part_of(rank, (4,) * world, STEPS)]
    trainer = _trainer_of(Net().to(device), given)
    for number, batch in enumerate(given):
        if number == 2 and rank == world - 1:
            os._exit(0)
        trainer.step(*batch).item()
    raise AssertionError("the step without the last process has ended")


def _joined(**how: Any) -> tuple[str, int, int, Path]:
    """The backend, this rank, the number of ranks and a folder, once the group is there."""
    backend, rank, world, folder = *sys.argv[1:2], *map(int, sys.argv[2:4]), Path(sys.argv[4])
    torch.cuda.set_device(rank if backend == "nccl" else 0)
    how |= {"init_method": f"file://{folder}/{backend}.store", "rank": rank, "world_size": world}
    distributed.init_process_group(backend, **how)
    return backend, rank, world, folder


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
    net: nn.Module, given: list[tuple[Tensor, Tensor]], **how: Any
) -> tuple[list[float], Any]:
    """The losses and the state after steps by Trainer, in a group of all processes."""
    trainer = _trainer_of(net.to(given[0][0].device), given, **how)
    losses = [trainer.step(*batch).item() for batch in given]
    momentum = trainer.state_dict()["optimizer"]["state"][0]["momentum_buffer"].cpu()
    trainer.close()  # a group waits for the graphs that hold its sums
    return losses, {**net.cpu().state_dict(), "momentum": momentum}


def _trainer_of(net: nn.Module, given: list[tuple[Tensor, Tensor]], **how: Any) -> Trainer:
    how |= {"dtype": "fp32", "chunk_size": 3000, "bucket_size": 3000}
    how["process_group"] = distributed.group.WORLD
    return Trainer(net, torch.empty_like(given[0][0]), optimizer=SPECS["SGD"], **how)
