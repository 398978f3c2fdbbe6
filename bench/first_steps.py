"""Seconds to the end of the first step with empty caches, by part, a process to a network.

    python -m bench.first_steps -o bench/results/first_steps/h200.json vgg16 hrnet_w18
    python -m bench.first_steps -o FILE --dtype tf32 --way virtualize --budget 4GiB resnet50:256
    python -m bench.first_steps -o FILE --cores 2 resnet50:256

NAME:BATCH is a network of tvdnn.models, NAME one of the zoo with its batch. Rows are written as
they come. The seconds count from Trainer or virtualize on, when tvdnn and the network are there.
The caches of Triton and of profiles are in folders that are new and empty.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import tvdnn
from bench.command_line import parser_of
from bench.cross_entropies import cross_entropies
from bench.environment import environment, software
from bench.zoo.networks import network_named
from tvdnn import models
from tvdnn.experiment.data import random_batch
from tvdnn.workers.cores import usable_cores

WAYS = ("trainer", "virtualize")


@dataclass(frozen=True, slots=True)
class Subject:
    """A network on a device with a batch."""

    net: nn.Module
    x: Tensor
    y: Tensor
    loss_weights: tuple[float, ...] | None = None


def subject_of(case: str, device: torch.device) -> Subject:
    """The network and batch that NAME:BATCH or NAME says."""
    name, _, batch = case.partition(":")
    if batch:
        x, y = random_batch(int(batch), models.image_shape(name), 10, device)
        return Subject(models.by_name(name).to(device), x, y)
    network = network_named(name)
    make = import_module("bench.zoo.library").make  # which imports torchvision and timm
    x = torch.randn(network.batch, 3, network.side, network.side, device=device)
    y = torch.randint(network.classes, network.target_shape, device=device)
    return Subject(make(network).to(device), x, y, network.loss_weights)


def first_step(case: str, way: str, dtype: str | None, budget: str | None) -> dict[str, Any]:
    """One row: the first step of a network in this process."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    subject = subject_of(case, device)
    net, x, y = subject.net, subject.x, subject.y
    trainer, virtualize = tvdnn.Trainer, tvdnn.virtualize  # imports the engine
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    made: Any
    if way == "trainer":
        made = trainer(net, x, dtype=dtype, budget=budget, loss_weights=subject.loss_weights)
        loss = made.step(x, y)
    else:
        made = virtualize(net, x, dtype=dtype, budget=budget)
        loss = cross_entropies(made(x), y, subject.loss_weights or (1.0,), torch.float32)
        loss.backward()
    float(loss)
    whole = time.perf_counter() - begin
    parts = {part: round(seconds, 3) for part, seconds in made.first_step.items()}
    name, batch = case.partition(":")[0], len(x)
    what = {"net": name, "batch": batch, "dtype": dtype, "way": way, "budget": budget}
    return {**what, "cores": usable_cores(), "seconds": round(whole, 3), "parts": parts}


def measured(case: str, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a case, from a process with empty caches."""
    given = ["--way", options.way, "--dtype", options.dtype]
    given += ["--budget", options.budget] if options.budget else []
    given += ["--cores", str(options.cores)] if options.cores else []
    with TemporaryDirectory() as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "TVDNN_CACHE": f"{folder}/tvdnn"}
        command = [sys.executable, "-m", "bench.first_steps", "--here", *given, case]
        env = {**os.environ, **caches}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def text_of(row: dict[str, Any]) -> str:
    """A row in one line."""
    parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in row["parts"].items())
    what = f"{row['net']}({row['batch']}) {row['dtype']} by {row['way']}"
    return f"{what}, {row['cores']} cores: {row['seconds']:.2f} s ({parts})"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("cases", nargs="+", metavar="CASE", help="NAME or NAME:BATCH")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--way", choices=WAYS, default=WAYS[0])
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--budget")
    parser.add_argument("--cores", type=int, help="at most so many; Linux only")
    parser.add_argument(
        "--here", action="store_true", help="one case in this process, with its caches"
    )
    options = parser.parse_args()
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    if options.here:
        print(json.dumps(first_step(options.cases[0], options.way, options.dtype, options.budget)))
        return
    machine = environment() if torch.cuda.is_available() else software()
    rows = list[dict[str, Any]]()
    document = {"title": "First steps with empty caches", "environment": machine, "rows": rows}
    for case in options.cases:
        rows.append(measured(case, options))
        print(text_of(rows[-1]), flush=True)
        if options.output:
            options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
