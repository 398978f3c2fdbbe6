"""Measurement of a request: train the network under a policy on this machine, and time steps."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from platform import machine
from statistics import median

import torch
from torch import Tensor, nn

from .. import models
from ..engine import Trainer
from ..engine.build import DEFAULT_HARDWARE
from ..errors import BudgetError
from ..optim import SGD
from ..planner.ir.costs import Costs, Roofline
from ..planner.ir.hardware import load
from ..planner.ir.schedule import Schedule
from ..planner.ir.settings import Choice
from ..planner.ir.timeline import Timeline
from ..planner.make import Problem
from ..planner.rounding import ALLOWED
from ..report.rows import Case, Measurement, Row, measured_row
from ..runtime.host_slab import Slab
from ..units import Limit
from .progress import StageReport
from .request import (
    OPTIMIZER,
    REFUSALS,
    Request,
    chunk_sizes,
    find_bound,
    find_floor,
    make_case,
    make_problem,
    refused_row,
    software,
)
from .simulate_request import Outcome
from .together import ONE, Together

SEED = 0
UNGUARANTEED = "torch (outside the memory guarantee)"

Batches = Sequence[tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Device:
    """Where requests are measured: the device, its kernels ("triton" or "torch"), a shared slab."""

    device: torch.device
    kernels: str | None
    slab: Slab

    @property
    def name(self) -> str:
        return device_name(self.device)

    @property
    def label(self) -> str:
        """The kernels that run. References on a GPU allocate memory that no plan counts."""
        cuda = self.device.type == "cuda"
        kernels = self.kernels or ("triton" if cuda else "torch")
        return UNGUARANTEED if kernels == "torch" and cuda else kernels


@dataclass(frozen=True, slots=True)
class Measured:
    """A row, the trained network, its schedule and costs and, on a GPU, the timeline of a step.

    All but the row are None where the row is infeasible.
    """

    row: Row
    net: nn.Module | None = None
    schedule: Schedule | None = None
    timeline: Timeline | None = None
    costs: Costs | None = None

    @property
    def outcome(self) -> Outcome:
        """The result without the network, whose bytes stay on the device as long as it lives."""
        return Outcome(self.row, self.schedule, self.timeline, self.costs)


def device_name(device: torch.device) -> str:
    """The name of the GPU, or "CPU" with its architecture."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({machine()})"


def planned_on(device: torch.device) -> str:
    """The machine whose costs plan the steps of the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else DEFAULT_HARDWARE


def present_device(kernels: str | None) -> Device:
    """The GPU if there is one, otherwise the CPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Device(device, kernels, Slab(pinned=device.type == "cuda"))


def measured(
    request: Request,
    device: Device,
    policy: str,
    limit: Limit,
    batches: Batches,
    report: StageReport,
    *,
    optimizer: SGD = OPTIMIZER,
    feedback: bool = False,
    choice: Choice | None = None,
    together: Together = ONE,
) -> Measured:
    """Train a new network with the same weights on these batches, under one policy and budget.

    The first step is not timed. With `feedback` the plan follows the first steps. `choice` sets the
    prefetch distance and the kind of copies. The row is infeasible where no schedule fits the
    limits or this machine. Processes that train `together` all call this, each with its batches.
    """
    problem = make_problem(request, Roofline(load(DEFAULT_HARDWARE), request.dtype), limit)
    budget = problem.budget_nbytes(policy)
    case = make_case(request, policy, budget, device.name, software(device.label))
    torch.manual_seed(SEED)
    net = models.by_name(request.net).to(device.device)
    try:
        trainer = Trainer(
            net,
            batches[0][0],
            optimizer=optimizer,
            policy=policy,
            allow=None if request.allowed is None else f"{ALLOWED}:{request.allowed!r}",
            budget=budget,
            host_budget=request.host_budget,
            chunk_size=chunk_sizes(request),
            lead=None if choice is None else choice.lead,
            copies=None if choice is None else choice.copies,
            dtype=request.dtype,
            kernels=device.kernels,
            slab=device.slab,
            feedback=feedback,
            progress=report,
            process_group=together.group,
        )
    except REFUSALS as error:
        if together.size > 1 and not isinstance(error, BudgetError):
            raise  # the other processes have an error of another kind
        return Measured(refused_row(case, problem, error, simulated=False))
    try:
        feedback &= together.size == 1  # several processes keep their plan
        measurement = _run(trainer, batches, report, together)
        row = _row(case, trainer, measurement, feedback=feedback)
        return Measured(row, net, trainer.schedule, measurement.timeline, trainer.costs)
    finally:
        trainer.close()


def _run(
    trainer: Trainer, batches: Batches, report: StageReport, together: Together
) -> Measurement:
    losses: list[float] = []
    seconds: list[float] = []
    for number, (x, y) in enumerate(batches):
        begin = time.perf_counter()
        losses.append(float(trainer.step(x, y)))
        seconds.append(time.perf_counter() - begin)
        report("running", (number + 1) / len(batches))
        trainer.settle()  # no steps are timed while a plan is made
    cuda = trainer.device.type == "cuda"
    peaks = tuple(map(int, together.all_of(trainer.peak_nbytes()))) if cuda else None
    return Measurement(
        step_s=max(together.all_of(median(seconds[1:]))),
        peak_nbytes=max(peaks) if peaks else None,
        peaks=peaks if together.size > 1 else None,
        world=together.size,
        loss=losses[-1],
        timeline=trainer.timeline(x, y) if cuda else None,
        losses=tuple(losses[1:]),
        first_step_s=dict(trainer.first_step),
    )


def _row(case: Case, trainer: Trainer, measurement: Measurement, *, feedback: bool) -> Row:
    problem = Problem(trainer.graph, trainer.costs, case.budget_bytes)
    known = trainer.costs.measured
    return measured_row(
        case,
        trainer.schedule,
        measurement,
        find_floor(problem, case.policy),
        predicted_s=trainer.predicted.step_s if known else None,
        bound_s=find_bound(problem, case.policy) if known else None,
        feedback=feedback,
    )
