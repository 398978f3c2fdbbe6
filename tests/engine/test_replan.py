"""Replanning: training goes on while a worker plans, and the new plan computes the same bits."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.planner.test_calibrate import (
    BATCH,
    BUDGET,
    CLASSES,
    MOMENTUM,
    PROFILED,
    SHAPE,
    SLOW,
    UNTIL_MEASURED,
    machine,
    make_net,
    schedule_of,
    slowed,
    small_graph,
    trainer_of,
)
from tests.support.gated import Exhausted, Gate, Gated
from tests.support.running import random_batches
from tvdnn.engine import Trainer, training_graph, virtualize
from tvdnn.graph import Graph
from tvdnn.planner.ir.costs import Costs
from tvdnn.planner.replan import ReplanRequest, replan, sendable
from tvdnn.planner.timing.calibrate import CalibratedCosts
from tvdnn.planner.timing.simulate import simulate
from tvdnn.runtime.host_slab import Slab
from tvdnn.units import KIB, MIB
from tvdnn.workers.process import Worker

pytestmark = pytest.mark.usefixtures("units_of_one")

ROOT = Path(__file__).parents[2]
SCRIPT = """
print("the script runs")
from tests.planner.test_calibrate import *

trainer = trainer_of(make_net(), budget=BUDGET, costs=PROFILED, clock=machine({}, SLOW))
for x, y in random_batches(UNTIL_MEASURED, (BATCH, *SHAPE), CLASSES, 1):
    trainer.step(x, y)
trainer.settle()
print("replanned", trainer.feedback.replanned)
"""


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate.at(tmp_path)


def gated(gate: Gate) -> Costs:
    """Costs of which planning in another process waits at the gate."""
    return Gated(PROFILED, os.getpid(), gate)


def batches(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    yield from random_batches(count, (BATCH, *SHAPE), CLASSES, 1)


def measured_trainer(costs: Costs, **options: Any) -> Trainer:
    """A trainer after the step that showed a link slower than predicted."""
    clock = machine({}, SLOW)
    trainer = trainer_of(make_net(), budget=BUDGET, costs=costs, clock=clock, **options)
    for x, y in batches(UNTIL_MEASURED):
        trainer.step(x, y)
    return trainer


def test_training_goes_on_while_another_process_plans(gate: Gate) -> None:
    kept = trainer_of(make_net(), policy="keep")
    clock = machine({}, SLOW)
    trainer = trainer_of(make_net(), budget=BUDGET, costs=gated(gate), clock=clock)
    before = trainer.schedule
    for number, (x, y) in enumerate(batches(UNTIL_MEASURED + 6)):
        if number == UNTIL_MEASURED:
            assert gate.await_one() != os.getpid()
        if number == UNTIL_MEASURED + 3:
            assert trainer.schedule is before
            assert trainer.feedback is not None
            assert not trainer.feedback.replanned
            assert trainer.replanning
            gate.open()
            trainer.settle()
            assert trainer.feedback.replanned
            assert not trainer.replanning
        assert torch.equal(kept.step(x, y), trainer.step(x, y))
    assert trainer.schedule.offloaded_nbytes < before.offloaded_nbytes
    assert trainer.graph is before.graph
    assert isinstance(trainer.costs, CalibratedCosts)
    assert isinstance(trainer.costs.costs, Gated)
    assert trainer.schedule.host_budget_nbytes == before.host_budget_nbytes
    assert all(map(torch.equal, kept.net.parameters(), trainer.net.parameters()))


def test_a_step_takes_the_new_plan_over_by_itself(gate: Gate) -> None:
    """Without `settle` an answer is looked for where a step begins, and nowhere else."""
    trainer = measured_trainer(gated(gate))
    before = trainer.schedule
    gate.await_one()
    gate.open()
    trainer._core.new_plans.measured.wait()
    assert trainer.schedule is before
    for x, y in batches(1):
        trainer.step(x, y)
    assert trainer.schedule is not before


def test_parts_of_a_batch_are_replanned_too(gate: Gate) -> None:
    nets = [make_net() for _ in range(2)]
    gate.open()
    given = {"costs": gated(gate), "clock": machine({}, SLOW), "budget": BUDGET}
    trainers = [trainer_of(net, **each) for net, each in zip(nets, ({}, given), strict=True)]
    for x, y in batches(UNTIL_MEASURED):
        losses = [trainer.step(x, y, accumulate=2) for trainer in trainers]
        assert torch.equal(*losses)
        trainers[1].settle()
    assert all(map(torch.equal, nets[0].parameters(), nets[1].parameters()))


def test_an_open_forward_is_not_torn_apart(gate: Gate) -> None:
    clock, nets = machine({}, SLOW), [make_net() for _ in range(2)]
    x = torch.empty(BATCH, *SHAPE)
    options: dict[str, Any] = {"chunk_size": "8KiB", "budget": BUDGET}
    kept = virtualize(nets[0], x, **options)
    model = virtualize(nets[1], x, costs=gated(gate), clock=clock, **options)
    before = model.schedule
    for number, (x, y) in enumerate(batches(UNTIL_MEASURED + 2)):
        losses = [functional.cross_entropy(each(x), y) for each in (kept, model)]
        if number == UNTIL_MEASURED:
            gate.await_one()
            gate.open()
            model.settle()
            model.prepare(x)
            assert model.schedule is before
        for each, loss in zip((kept, model), losses, strict=True):
            each.zero_grad()
            loss.backward()
        assert all(torch.equal(*each) for each in _grads(*nets))
    assert model.schedule is not before
    assert model.feedback is not None
    assert model.feedback.replanned


def _grads(*nets: nn.Module) -> Iterator[tuple[Any, ...]]:
    for params in zip(*(net.parameters() for net in nets), strict=True):
        yield tuple(param.grad for param in params)


def test_a_virtualized_network_settles_between_its_steps(gate: Gate) -> None:
    clock, x = machine({}, SLOW), torch.empty(BATCH, *SHAPE)
    options: dict[str, Any] = {"chunk_size": "8KiB", "budget": BUDGET}
    model = virtualize(make_net(), x, costs=gated(gate), clock=clock, **options)
    before = model.schedule
    for x, y in batches(UNTIL_MEASURED):
        functional.cross_entropy(model(x), y).backward()
    gate.await_one()
    gate.open()
    model.settle()
    assert model.schedule is not before
    model.close()
    model.settle()
    assert model._steps.core is None


def killed(gate: Gate) -> None:
    os.kill(gate.await_one(), signal.SIGKILL)


@pytest.mark.filterwarnings("error")
def test_training_goes_on_where_the_worker_is_killed(gate: Gate) -> None:
    trainer = measured_trainer(gated(gate))
    before = trainer.schedule
    killed(gate)
    with pytest.warns(RuntimeWarning, match="present plan.*ended by signal 9"):
        trainer.settle()
    for x, y in batches(2):
        trainer.step(x, y)  # a second warning would be an error
    assert trainer.schedule is before
    assert trainer.feedback is not None
    assert not trainer.feedback.replanned


def test_training_goes_on_where_planning_fails() -> None:
    trainer = measured_trainer(Exhausted(PROFILED, os.getpid()))
    before = trainer.schedule
    with pytest.warns(RuntimeWarning, match="MemoryError: no memory for a plan"):
        trainer.settle()
    assert trainer.schedule is before


def test_training_goes_on_where_costs_cannot_be_sent() -> None:
    @dataclass(frozen=True)
    class Local(CalibratedCosts):
        pass

    trainer = measured_trainer(Local(PROFILED, {}, PROFILED.links))
    with pytest.warns(RuntimeWarning, match="pickle"):
        trainer.settle()


@pytest.mark.parametrize("end", ["close", "move"])
def test_a_plan_that_nobody_waits_for_any_more_is_dropped(gate: Gate, end: str) -> None:
    trainer = measured_trainer(gated(gate))
    pid = gate.await_one()
    if end == "close":
        trainer.close()
    else:
        for param in trainer.net.parameters():
            param.data = param.data.clone()
        for x, y in batches(1):
            trainer.step(x, y)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not trainer._core.new_plans.measured.pending


@pytest.mark.parametrize("slab_nbytes", [0, MIB])
def test_a_new_plan_has_the_host_memory_that_is_pinned(slab_nbytes: int) -> None:
    """More pinned memory would stop training. Passes are slow, and copies would pay."""
    slab = Slab(pinned=False)
    slab.reserve(slab_nbytes)
    costs = CalibratedCosts(PROFILED, {}, slowed(PROFILED.links, 0.03))
    slower = {pass_.name: 10.0 for pass_ in small_graph().passes}
    trainer = trainer_of(
        make_net(),
        budget=300 * KIB,
        costs=costs,
        clock=CalibratedCosts(costs, slower, costs.links),
        slab=slab,
    )
    before = trainer.schedule
    assert before.slab_nbytes == 0
    for x, y in batches(UNTIL_MEASURED):
        trainer.step(x, y)
    trainer.settle()
    assert trainer.feedback is not None
    assert trainer.feedback.replanned == bool(slab_nbytes)
    assert bool(trainer.schedule.slab_nbytes) == bool(slab_nbytes)


class Doubled(nn.Module):
    """A module of torch's own arithmetic, which only runs as it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.ifft(torch.fft.fft(2 * x)).real


def opaque_graph() -> Graph:
    model = virtualize(
        nn.Sequential(nn.Conv2d(3, 4, 3), Doubled(), nn.ReLU()),
        torch.empty(BATCH, *SHAPE),
        opaque=True,
        costs=PROFILED,
    )
    return model.schedule.graph


def named_outputs_graph() -> Graph:
    """The network gathers its outputs by a function of its own."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make_net()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": self.inner(x)}

    return training_graph(Named(), torch.empty(BATCH, *SHAPE), optimizer=MOMENTUM, fuse=True)


@pytest.mark.parametrize("make_graph", [small_graph, opaque_graph, named_outputs_graph])
def test_another_process_plans_the_same_without_torch(make_graph: Any) -> None:
    graph = make_graph()
    truth = CalibratedCosts(PROFILED, {}, machine({}, SLOW).links)
    schedule = schedule_of(graph, PROFILED)
    timeline = replace(simulate(schedule, truth), simulated=False)
    request = ReplanRequest(schedule, PROFILED, timeline, "auto", None, None)
    here = replan(request)
    worker = Worker()
    try:
        sent = replace(request, schedule=replace(schedule, graph=sendable(graph)))
        there = worker.call(partial(replan, sent))
        assert "torch" not in worker.call(partial(eval, "[*__import__('sys').modules]"))
    finally:
        worker.close()
    assert there.costs == here.costs
    assert (there.schedule is None) == (here.schedule is None)
    if here.schedule is not None and there.schedule is not None:
        assert there.schedule.steps == here.schedule.steps
        assert there.schedule.plan == here.schedule.plan
        assert there.schedule.arena_nbytes == here.schedule.arena_nbytes


@pytest.mark.slow
def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    """torchrun starts the script."""
    ranked = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranked |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "PYTHONPATH": str(ROOT)}
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env={**os.environ, **ranked},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["the script runs", "replanned True"], done.stderr
