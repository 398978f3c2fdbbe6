"""Training on GPUs by several processes: run as the process of a rank."""

import sys
from pathlib import Path

import torch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.data_parallel_cases import SHAPE, Net
from tests.distributed.trainer_cases import SPECS, TORCHS, part_of
from tvdnn import Trainer, virtualize

STEPS = 4


def main() -> None:
    """Train by Trainer and by DistributedDataParallel on this rank's part; save both states."""
    backend, rank, world, folder = *sys.argv[1:2], *map(int, sys.argv[2:4]), Path(sys.argv[4])
    device = torch.device("cuda", rank if backend == "nccl" else 0)
    torch.cuda.set_device(device)
    store = f"file://{folder}/{backend}.store"
    distributed.init_process_group(backend, init_method=store, rank=rank, world_size=world)
    x = torch.empty(4, *SHAPE, device=device)
    given = [(x.to(device), y.to(device)) for x, y in part_of(rank, (4,) * world, STEPS)]
    net, wrapped = Net().to(device), Net().to(device)
    group, how = distributed.group.WORLD, {"dtype": "fp32", "chunk_size": 3000}
    trainer = Trainer(net, x, optimizer=SPECS["SGD"], process_group=group, bucket_size=3000, **how)
    losses = [trainer.step(*batch).item() for batch in given]
    virtual = virtualize(wrapped, x, **how)
    parallel = DistributedDataParallel(virtual, bucket_cap_mb=0.003)
    optimizer = TORCHS["SGD"](parallel.parameters())
    for x, y in given:
        optimizer.zero_grad()
        functional.cross_entropy(parallel(x), y).backward()
        optimizer.step()
    states = {"trainer": net.cpu().state_dict(), "wrapped": wrapped.cpu().state_dict()}
    torch.save({"losses": losses, **states}, folder / f"{backend}.{rank}.pt")
    trainer.close()  # a group waits for the graphs that hold its sums
    virtual.close()
    distributed.destroy_process_group()
