"""`tvdnn train`: train a network on real data inside a budget, with checkpoints and resume."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import nn

from .. import models
from ..engine import Trainer
from ..errors import InputError
from ..experiment import data
from ..experiment.data import Dataset
from ..experiment.request import Request, make_request, parse_policies
from ..experiment.together import Together, together
from ..optim import SGD
from ..planner.rounding import parse_allowed
from ..units import format_bytes, parse_limit
from .options import (
    Allow,
    ChunkSize,
    Dtype,
    HostBudget,
    ImageSize,
    Net,
    Policy,
    Shard,
    in_a_folder,
)
from .output import messages, stages


@dataclass(frozen=True, slots=True)
class Run:
    """A training run: the trainer, its data, and where it saves."""

    request: Request
    trainer: Trainer
    dataset: Dataset
    epochs: int
    seed: int
    checkpoint: Path | None
    together: Together

    @property
    def batch(self) -> int:
        """The images of a step in all processes."""
        return self.request.batch * self.together.size


def train(
    net: Net,
    source: Annotated[
        str, typer.Option("--data", help="digits, a folder of class folders, or an .npz of x, y.")
    ] = "digits",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data, in all.")] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 64,
    image_size: ImageSize = None,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 0.05,
    momentum: Annotated[float, typer.Option(help="Momentum.")] = 0.9,
    weight_decay: Annotated[float, typer.Option(help="Weight decay.")] = 0.0,
    dtype: Dtype = None,
    policy: Policy = None,
    allow: Allow = None,
    budget: Annotated[str, typer.Option(help="Device bytes: 6GiB, ..., min or none.")] = "none",
    host_budget: HostBudget = None,
    chunk_size: ChunkSize = None,
    shard: Shard = None,
    seed: Annotated[int, typer.Option(help="Of weights, order and test part.")] = 0,
    checkpoint: Annotated[
        Path | None,
        typer.Option(callback=in_a_folder, help="Save here after each epoch, whole or not at all."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint, if it is there.")
    ] = False,
) -> None:
    """Train NET by planned steps; print loss and test accuracy after each epoch.

    Processes that torchrun starts train together, each on a batch of its own; the first prints, and
    saves the checkpoint. With --shard optimizer each has a part of the optimizer's state.

    The budget covers the training steps; accuracy is computed after them by the plain network on a
    few images at a time.
    """
    default = "bf16" if torch.cuda.is_available() else "fp32"
    request = make_request(net, batch, image_size, dtype or default, chunk_size, host_budget)
    _check_policy(policy, allow)
    limit = parse_limit(budget)
    if resume and checkpoint is None:
        raise InputError("--resume needs --checkpoint FILE to go on from")
    options: dict[str, Any] = {"policy": policy, "allow": allow, "budget": limit}
    optimizer = SGD(lr=lr, momentum=momentum, weight_decay=weight_decay)
    console = messages()

    def run_in(processes: Together) -> Run:
        dataset = _dataset(source, request, seed, processes.size)
        with stages(console, net) as report:
            how = {"progress": report, "process_group": processes.group, "shard": shard}
            trainer = _trainer(request, dataset, seed, optimizer=optimizer, **options, **how)
        return Run(request, trainer, dataset, epochs, seed, checkpoint, processes)

    with together() as processes:  # no name keeps the trainer, which keeps their group
        _train(console, run_in(processes), resume)


def _trainer(request: Request, dataset: Dataset, seed: int, **options: Any) -> Trainer:
    """A trainer of the request's network for the classes of the data."""
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = models.by_name(request.net, num_classes=dataset.num_classes).to(device)
    return Trainer(
        net,
        torch.empty(request.batch, *request.shape),
        host_budget=request.host_budget,
        chunk_size=request.chunks if request.sized else None,
        dtype=request.dtype,
        seed=seed,
        **options,
    )


def _train(console: Console, run: Run, resume: bool) -> None:
    try:
        start = _start(console, run, resume)
        if set(run.together.all_of(start)) != {start}:
            raise InputError(
                f"processes go on after other epochs, this one after {start}: put the checkpoint"
                " where all machines read it"
            )
        _fit(console, run, start)
        if run.trainer.rounding is not None:
            console.print(str(run.trainer.rounding), markup=False)
    finally:
        run.trainer.close()


def _check_policy(policy: str | None, allow: str | None) -> None:
    allowed = parse_allowed(allow)
    if policy is not None:
        parse_policies(policy, allowed)


def _dataset(source: str, request: Request, seed: int, processes: int) -> Dataset:
    dataset = data.load(source, shape=request.shape, seed=seed)
    if len(dataset.train) < processes * request.batch:
        each = f" for each of {processes} processes" if processes > 1 else ""
        raise InputError(
            f"{source} has {len(dataset.train)} images to train on, fewer than a batch{each}"
        )
    return dataset


def _fit(console: Console, run: Run, start: int) -> None:
    """Train the epochs from `start` on."""
    left_over = len(run.dataset.train) % run.batch
    if left_over:
        console.print(f"each epoch leaves out {left_over} images, another few each time")
    for epoch in range(start, run.epochs):
        with stages(console, f"epoch {epoch + 1}/{run.epochs}") as report:
            loss = _epoch(run, epoch, lambda share: report("running", share))
        peak = max(run.together.all_of(run.trainer.peak_nbytes()))
        share = _accuracy(run.trainer.net, run) if run.together.rank == 0 else 0.0
        _save(run, epoch + 1)
        if run.together.rank == 0:
            print_epoch(epoch + 1, loss, share, format_bytes(int(peak)))


def print_epoch(epoch: int, loss: float, accuracy: float, peak: str) -> None:
    """Print the result of an epoch."""
    Console(highlight=False).print(
        f"epoch {epoch}: loss {loss:.4f}, test accuracy {accuracy:.2%}, peak {peak}"
    )


def _epoch(run: Run, epoch: int, report: Callable[[float], None]) -> float:
    """The mean loss of one pass over the data, in the order of this epoch."""
    count, split = len(run.dataset.train) // run.batch, run.request.batch
    total = torch.zeros((), device=run.trainer.device)
    whole = data.batches(run.dataset.train, run.batch, seed=run.seed + epoch)
    for number, (x, y) in enumerate(whole):
        own = slice(run.together.rank * split, (run.together.rank + 1) * split)
        total += run.trainer.step(x[own], y[own])
        report((number + 1) / count)
    return float(total) / count


def _accuracy(net: nn.Module, run: Run) -> float:
    net.eval()
    share = data.accuracy(net, run.dataset.test, run.trainer.device)
    net.train()
    return share


def _start(console: Console, run: Run, resume: bool) -> int:
    """The first epoch: 0, or the one after the checkpoint."""
    path = run.checkpoint
    if not resume or path is None:
        return 0
    if not path.exists():
        console.print(f"no checkpoint {path} yet: starting from the beginning")
        return 0
    state: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if state["net"] != run.request.net or state["classes"] != run.dataset.num_classes:
        raise InputError(
            f"{path} is of {state['net']} with {state['classes']} classes, not of "
            f"{run.request.net} with {run.dataset.num_classes}; name another checkpoint"
        )
    run.trainer.load_state_dict(state["trainer"])
    console.print(f"going on after epoch {state['epoch']} of {path}")
    return int(state["epoch"])


def _save(run: Run, epoch: int) -> None:
    """Write the checkpoint to a temporary file, then move it. None is ever half written.

    The first process writes. All take part, since each may have a part of the optimizer's state.
    """
    if run.checkpoint is None:
        return
    state = {
        "net": run.request.net,
        "classes": run.dataset.num_classes,
        "epoch": epoch,
        "trainer": run.trainer.state_dict(),
    }
    if run.together.rank == 0:
        partial = run.checkpoint.with_name(run.checkpoint.name + ".partial")
        torch.save(state, partial)
        partial.replace(run.checkpoint)
