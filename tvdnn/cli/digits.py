"""The digits on a CPU: LeNet-5 trained under `keep`, and under `vdnn-all` just above its floor."""

import itertools
from collections.abc import Iterator

import torch
from rich.console import Console
from torch import Tensor

from ..experiment.data import Dataset, accuracy, batches, digits, has_digits, random_batch
from ..experiment.measure import Batches, Measured, measured, present_device
from ..experiment.request import Request, find_floor, make_problem
from ..graph import ChunkSizes
from ..optim import SGD
from ..planner.ir.costs import Roofline
from ..planner.ir.hardware import load
from ..report.rows import Row, against_keep
from ..units import KIB, format_bytes
from .output import stages

REQUEST = Request("lenet5", 64, 32, "fp32", ChunkSizes(64 * KIB), None)
OPTIMIZER = SGD(lr=0.05, momentum=0.9)
STEPS = 220  # ten epochs
POLICY = "vdnn-all:m"
SLACK = 1.02  # budget / floor


def train_digits(console: Console, kernels: str | None) -> list[Row]:
    """Train under both policies. Print whether the bits agree, and the test accuracy."""
    data = digits(REQUEST.shape) if has_digits() else None
    if data is None:
        console.print("scikit-learn is not installed (extra demo): training on random arrays.")
    steps = _steps(data)
    torch.set_num_threads(1)  # such small maps take 31 ms a step with 1 thread and with 2
    device = present_device(kernels)
    with stages(console, "lenet5") as report:
        report("tracing", 0.0)
        problem = make_problem(REQUEST, Roofline(load("H200"), REQUEST.dtype))
        floor = find_floor(problem, POLICY)
    cases = (("keep", None), (POLICY, int(floor.nbytes * SLACK)))
    found = []
    for policy, budget in cases:
        with stages(console, policy) as report:
            found.append(
                measured(REQUEST, device, policy, budget, steps, report, optimizer=OPTIMIZER)
            )
    device.slab.close()
    _compare(console, found, data)
    return list(against_keep([one.row for one in found]))


def _steps(data: Dataset | None) -> Batches:
    if data is None:
        return [random_batch(REQUEST.batch, REQUEST.shape, 10, torch.device("cpu"))] * STEPS
    return list(itertools.islice(_epochs(data), STEPS))


def _epochs(data: Dataset) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in itertools.count():
        yield from batches(data.train, REQUEST.batch, seed=epoch)


def _compare(console: Console, found: list[Measured], data: Dataset | None) -> None:
    kept, moved = (one.net for one in found)
    if kept is None or moved is None:
        return
    pairs = zip(kept.parameters(), moved.parameters(), strict=True)
    verdict = "the same as" if all(torch.equal(*pair) for pair in pairs) else "DIFFERENT from"
    budget = format_bytes(found[-1].row.budget_bytes)
    console.print(f"{POLICY} inside {budget}: weights {verdict} those of keep, bit for bit")
    if data is not None:
        share = accuracy(moved.eval(), data.test, torch.device("cpu"))
        console.print(f"accuracy on {len(data.test)} digits not trained on: {share:.1%}")
