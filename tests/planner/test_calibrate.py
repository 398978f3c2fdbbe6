"""Calibration: a measured step scales costs and names ops; plans follow it, to the same bits."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.running import random_batches
from tests.support.schedules.coded import Rest, coded_schedule
from tests.support.simulated import h200
from tests.support.wrapped_costs import WrappedCosts
from tvdnn.engine import Trainer, training_graph, virtualize
from tvdnn.engine.step_watch import TIMED, WARM
from tvdnn.errors import DeviceError
from tvdnn.graph import BITS, RAW, Graph, Pass
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Costs, Forms, Links, Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.plan import HOST
from tvdnn.planner.ir.schedule import Lane, Schedule
from tvdnn.planner.make import make_schedule
from tvdnn.planner.timing.calibrate import CalibratedCosts, calibrate, compare, concat_timelines
from tvdnn.planner.timing.simulate import simulate
from tvdnn.report.tables import drift_table

pytestmark = pytest.mark.usefixtures("units_of_one")

BATCH, SHAPE, CLASSES = 8, (3, 16, 16), 5
MOMENTUM = SGD(0.05, momentum=0.9)
BUDGET = 320_000  # auto offloads sections by it
PROFILED = CalibratedCosts(Roofline(load("H200"), "fp32"), {}, load("H200").links)
SLOW = 0.001  # of the link's rates: maps are made again rather than moved
UNTIL_MEASURED = WARM + TIMED + 1


def slowed(links: Links, share: float) -> Links:
    return {tier: link.scaled(share, share) for tier, link in links.items()}


@dataclass(frozen=True)
class Unsteady(WrappedCosts):
    """Costs whose passes take seeded random times about those of `costs`."""

    jitter: random.Random

    def launch_s(self, pass_: Pass, rows: int, forms: Forms = ()) -> float:
        return self.costs.launch_s(pass_, rows, forms) * self.jitter.uniform(0.99, 1.01)


def machine(factors: Mapping[str, float], link_share: float, seed: int = 0) -> Costs:
    """A clock of passes so many times slower, and a link of such a share of its rates."""
    links = slowed(PROFILED.links, link_share)
    return Unsteady(CalibratedCosts(PROFILED, factors, links), random.Random(seed))


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(width, 8, 3, padding=1) for width in (3, 8, 8)]
    rectified = [each for layer in layers for each in (layer, nn.ReLU())]
    return nn.Sequential(*rectified, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, CLASSES))


def trainer_of(net: nn.Module, **options: Any) -> Trainer:
    options = {"optimizer": MOMENTUM, "chunk_size": "8KiB"} | options
    return Trainer(net, torch.empty(BATCH, *SHAPE), **options)


def small_graph() -> Graph:
    x = torch.empty(BATCH, *SHAPE)
    return training_graph(make_net(), x, optimizer=MOMENTUM, chunk_size="8KiB", fuse=True)


def schedule_of(graph: Graph, costs: Costs) -> Schedule:
    return make_schedule(graph, costs, policy="auto", budget=BUDGET)


def test_corrected_costs_predict_the_machine_that_was_measured() -> None:
    graph = small_graph()
    truth = CalibratedCosts(
        PROFILED, {"2 forward": 3.0, "4 grad_input": 0.5}, slowed(PROFILED.links, 0.1)
    )
    schedule = schedule_of(graph, PROFILED)
    measured = replace(simulate(schedule, truth), simulated=False)
    corrected = calibrate(schedule, PROFILED, measured)
    assert simulate(schedule, corrected).step_s == pytest.approx(measured.step_s, rel=1e-3)
    assert corrected.factors["2 forward"] == pytest.approx(3.0)
    assert corrected.factors["4 grad_input"] == pytest.approx(0.5)
    assert corrected.factors["0 forward"] == pytest.approx(1.0)
    assert corrected.links[HOST].out == pytest.approx(truth.links[HOST].out, rel=0.02)
    assert corrected.links[HOST].back == pytest.approx(truth.links[HOST].back, rel=0.02)
    pass_ = next(each for each in graph.passes if each.name == "2 forward")
    assert corrected.min_pass_s(pass_) == pytest.approx(3.0 * PROFILED.min_pass_s(pass_))


def test_drifts_name_what_misses_most_first() -> None:
    graph = small_graph()
    truth = CalibratedCosts(PROFILED, {"2 forward": 9.0, "4 forward": 4.0}, PROFILED.links)
    schedule = schedule_of(graph, PROFILED)
    found = compare(schedule, PROFILED, replace(simulate(schedule, truth), simulated=False))
    assert [drift.name for drift in found.drifts[:2]] == ["2", "4"]
    pairs = [(drift.measured_s, drift.predicted_s) for drift in found.drifts]
    compute = [span for span in found.measured.spans if span.lane is Lane.COMPUTE]
    copied_s = found.measured.copy_s
    total_s = sum(span.end_s - span.start_s for span in compute) + copied_s
    assert sum(taken for taken, _ in pairs) == pytest.approx(total_s)
    assert found.relative_error > 0.05
    assert str(found).splitlines()[0].endswith(f"predicted ({found.relative_error:+.1%})")
    assert str(found).splitlines()[1].startswith("  2: ")
    assert next(next(iter(column.cells)) for column in drift_table(found).columns) == "2"


def test_recodes_are_corrected_by_a_factor_of_their_own() -> None:
    recodes = "recodes from raw to bits"
    schedule = coded_schedule(Rest.AWAY)
    truth = CalibratedCosts(PROFILED, {recodes: 4.0, "mask": 2.0}, PROFILED.links)
    measured = replace(simulate(schedule, truth), simulated=False)
    corrected = calibrate(schedule, PROFILED, measured)
    assert corrected.factors[recodes] == pytest.approx(4.0)
    assert corrected.factors["mask"] == pytest.approx(2.0)
    assert corrected.factors["use"] == pytest.approx(1.0)
    buffer = schedule.graph.buffers["m"]
    alone_s = PROFILED.recode_s(buffer, 8, RAW, BITS)
    assert corrected.recode_s(buffer, 8, RAW, BITS) == pytest.approx(4.0 * alone_s)
    assert simulate(schedule, corrected).step_s == pytest.approx(measured.step_s, rel=1e-3)
    drifts = {drift.name: drift for drift in compare(schedule, PROFILED, measured).drifts}
    taken = drifts[recodes]
    assert taken.measured_s == pytest.approx(4.0 * taken.predicted_s)
    assert taken.predicted_s == pytest.approx(2 * PROFILED.recode_s(buffer, 4, RAW, BITS))
    assert {"make", "mask", "copies to the host", "copies to the device"} <= drifts.keys()


def test_halves_are_joined_one_behind_the_other() -> None:
    schedule = schedule_of(small_graph(), PROFILED)
    half = simulate(schedule, PROFILED)
    whole = concat_timelines((half, half))
    assert whole.step_s == pytest.approx(2 * half.step_s)
    assert whole.stall_s == 2 * half.stall_s
    assert len(whole.spans) == 2 * len(half.spans)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_trainer_plans_by_what_its_first_steps_took(seed: int) -> None:
    """The link is slower than predicted: maps are made again instead, to the same bits."""
    nets = [make_net() for _ in range(2)]
    kept = trainer_of(nets[0], policy="keep")
    clock = machine({}, SLOW, seed)
    trainer = trainer_of(nets[1], budget=BUDGET, costs=PROFILED, clock=clock, order_seed=seed)
    before = trainer.schedule
    for x, y in random_batches(UNTIL_MEASURED + 2, (BATCH, *SHAPE), CLASSES, 1):
        assert trainer.schedule is before or trainer.feedback is not None
        assert torch.equal(kept.step(x, y), trainer.step(x, y))
        trainer.settle()
    assert trainer.feedback is not None
    assert trainer.feedback.replanned
    assert trainer.feedback.schedule is before
    assert trainer.schedule.offloaded_nbytes < before.offloaded_nbytes
    assert trainer.schedule.peak_nbytes <= BUDGET
    assert trainer.predicted.step_s < simulate(before, trainer.costs).step_s
    assert all(map(torch.equal, nets[0].parameters(), nets[1].parameters()))


@pytest.mark.parametrize(
    "options",
    [
        {"costs": PROFILED, "clock": machine({}, SLOW), "feedback": False},
        {"costs": PROFILED, "clock": machine({}, 1.0)},  # as predicted
        {"costs": PROFILED},  # nothing measures
        {"costs": PROFILED.costs, "clock": machine({}, SLOW)},  # nothing was profiled
    ],
)
def test_plans_stay_where_nothing_is_off(options: dict[str, Any]) -> None:
    trainer = trainer_of(make_net(), budget=BUDGET, **options)
    before, costs = trainer.schedule, trainer.costs
    for x, y in random_batches(UNTIL_MEASURED + 1, (BATCH, *SHAPE), CLASSES, 1):
        trainer.step(x, y)
        trainer.settle()
    assert (trainer.schedule, trainer.costs, trainer.feedback) == (before, costs, None)


def test_a_plan_that_is_no_better_is_not_taken() -> None:
    """All passes slower: the costs are corrected, and the schedule stays."""
    slower = {pass_.name: 3.0 for pass_ in small_graph().passes}
    trainer = trainer_of(make_net(), policy="keep", costs=PROFILED, clock=machine(slower, 1.0))
    before = trainer.schedule
    for x, y in random_batches(UNTIL_MEASURED + 1, (BATCH, *SHAPE), CLASSES, 1):
        trainer.step(x, y)
        trainer.settle()
    assert trainer.schedule is before
    assert trainer.feedback is not None
    assert not trainer.feedback.replanned
    assert trainer.feedback.relative_error == pytest.approx(2.0, abs=0.05)
    assert trainer.predicted.step_s == pytest.approx(trainer.feedback.measured.step_s, rel=0.02)


def test_a_trainer_measures_a_step_when_asked() -> None:
    clock = machine({"2 forward": 5.0}, 1.0)
    nets = [make_net() for _ in range(2)]
    plain, trainer = trainer_of(nets[0]), trainer_of(nets[1], costs=PROFILED, clock=clock)
    (x, y), (again, labels) = random_batches(2, (BATCH, *SHAPE), CLASSES, 1)
    plain.step(x, y)
    found = trainer.drift(x, y)
    assert found.drifts[0].name == "2"
    assert torch.equal(plain.step(again, labels), trainer.step(again, labels))
    with pytest.raises(DeviceError, match="needs a GPU"):
        plain.drift(x, y)


def test_a_virtualized_network_follows_its_first_steps() -> None:
    nets = [make_net() for _ in range(2)]
    clock, x = machine({}, SLOW), torch.empty(BATCH, *SHAPE)
    options: dict[str, Any] = {"chunk_size": "8KiB", "budget": BUDGET, "costs": PROFILED}
    models = [
        virtualize(net, x, clock=clock, feedback=feedback, **options)
        for net, feedback in zip(nets, (False, True), strict=True)
    ]
    before = models[1].schedule
    for x, y in random_batches(UNTIL_MEASURED + 2, (BATCH, *SHAPE), CLASSES, 1):
        for model in models:
            model.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            model.settle()
        grads = [[param.grad for param in net.parameters()] for net in nets]
        assert all(map(torch.equal, *grads))
    assert models[0].feedback is None
    assert models[1].feedback is not None
    assert models[1].feedback.replanned
    assert models[1].schedule is not before
    models[0].measure_next()
    functional.cross_entropy(models[0](x), y).backward()
    assert models[0].feedback is not None
    assert models[0].feedback.relative_error > 0.05
    assert not models[0].feedback.replanned


def test_costs_of_an_h200_are_no_measurement() -> None:
    """Measured costs alone are corrected: a data sheet says little of the present machine."""
    assert not h200(small_graph()).measured
    assert PROFILED.measured
