"""The digits on a CPU: LeNet-5 trained under `keep`, and under `vdnn-all` just above its floor."""

import itertools
from collections.abc import Iterator

import torch
from rich.console import Console
from torch import Tensor, nn

from ..data import Dataset, accuracy, batches, digits, has_digits, random_batch
from ..optim import SGD
from ..planner.costs import Roofline
from ..planner.hardware import load
from ..report.rows import Row, with_slowdowns
from ..units import KIB, format_bytes
from .measuring import Batches, Measured, measured, present_device
from .output import stages
from .request import Request, find_floor, make_graph

REQUEST = Request("lenet5", 64, 32, "fp32", 64 * KIB, None)
OPTIMIZER = SGD(lr=0.05, momentum=0.9)
STEPS = 132  # six epochs of the digits
POLICY = "vdnn-all:m"
SLACK = 1.02  # budget over floor


def train_digits(console: Console, kernels: str | None) -> list[Row]:
    """Train both ways; say whether losses and weights are the same bits, and how well it learnt."""
    data = digits(REQUEST.shape) if has_digits() else None
    if data is None:
        console.print("scikit-learn is not installed (extra demo): training on random arrays.")
    steps = _steps(data)
    device = present_device(kernels)
    with stages(console, "lenet5") as report:
        graph = make_graph(REQUEST, report)
    floor = find_floor(graph, Roofline(load("H200"), REQUEST.dtype), POLICY)
    cases = (("keep", None), (POLICY, int(floor.nbytes * SLACK)))
    found = []
    for policy, budget in cases:
        with stages(console, policy) as report:
            found.append(
                measured(REQUEST, graph, device, policy, budget, steps, report, optimizer=OPTIMIZER)
            )
    device.slab.close()
    _compare(console, found, data)
    return list(with_slowdowns([one.row for one in found]))


def _steps(data: Dataset | None) -> Batches:
    if data is None:
        return [random_batch(REQUEST.batch, REQUEST.shape, 10, torch.device("cpu"))] * STEPS
    return list(itertools.islice(_epochs(data), STEPS))


def _epochs(data: Dataset) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in itertools.count():
        yield from batches(data.train, REQUEST.batch, seed=epoch)


def _compare(console: Console, found: list[Measured], data: Dataset | None) -> None:
    oracle, other = found
    if not other.losses:
        return
    budget = format_bytes(other.row.budget_bytes)
    for what, same in (
        (f"{len(other.losses)} losses", oracle.losses == other.losses),
        ("the weights", _same_weights(oracle.net, other.net)),
    ):
        verdict = "bit-identical to" if same else "DIFFERENT from"
        console.print(f"{POLICY} inside {budget}: {what} {verdict} those of keep")
    if data is not None and other.net is not None:
        share = accuracy(other.net.eval(), data.test, torch.device("cpu"))
        console.print(f"accuracy on {len(data.test)} digits not trained on: {share:.1%}")


def _same_weights(first: nn.Module | None, second: nn.Module | None) -> bool:
    if first is None or second is None:
        return False
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(one, two) for one, two in pairs)
