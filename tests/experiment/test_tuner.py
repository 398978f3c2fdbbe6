"""Tuning: trials, choices, interruptions and their continuation."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.support.simulated import h200
from tests.support.tuning import (
    BATCH,
    BUDGET,
    FASTER,
    SHAPE,
    SHARES,
    SIZES,
    UNTUNED,
    Clocked,
    lenet,
    make_net,
    tuner_of,
)
from tvdnn.errors import BudgetError
from tvdnn.experiment.machines import DataSheet
from tvdnn.experiment.processes import Processes
from tvdnn.experiment.request import make_graph, make_request, network_of
from tvdnn.experiment.trials import Job, Trial
from tvdnn.experiment.tuner import SEARCHED, Tuner
from tvdnn.graph import ChunkSizes
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.settings import Choice, Tuned
from tvdnn.planner.make import Problem
from tvdnn.runtime.tuning_store import TuningStore, find_tuned
from tvdnn.trace.trace import trace
from tvdnn.units import KIB

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.usefixtures("guessed")
def test_the_best_few_are_measured_and_the_fastest_settled() -> None:
    machine = Clocked()
    tuner, store = tuner_of(machine)
    tuned = tuner.tune([BUDGET], SIZES)
    best, *others = [chunks for chunks, _ in machine.measured[:3]]
    assert (best.default, [size for _, size in best.classes]) == (4 * KIB, [2 * KIB])
    assert others == [ChunkSizes(4 * KIB), UNTUNED]
    assert tuned.chunks == best  # all take as long: what simulation says is best
    assert [choice for _, choice in machine.measured[3:]] == [
        Choice("tvdnn-heuristic", 2),
        Choice("tvdnn-heuristic", 2, "kernel"),
    ]
    assert tuned.choices == {str(BUDGET): Choice("tvdnn-heuristic", 2)}
    assert find_tuned("H200", network_of(lenet()), "fp32") == tuned
    assert find_tuned("A100", network_of(lenet()), "fp32") is None
    trials, measured = dict(store.trials), list(machine.measured)
    again, _ = tuner_of(machine)
    assert again.tune([BUDGET], SIZES) == tuned
    assert (store.trials, machine.measured) == (trials, measured)


@pytest.mark.usefixtures("guessed")
def test_what_is_measured_decides() -> None:
    machine = Clocked()
    tuner, _ = tuner_of(machine)
    assert tuner.tune([], (16 * KIB,)).chunks in (chunks for chunks, _ in machine.measured)
    assert tuner.tuned.chunks is not None
    assert tuner.tuned.chunks.default == 16 * KIB


@pytest.mark.usefixtures("guessed")
def test_chunk_sizes_stay_when_another_budget_is_tuned() -> None:
    tuner, _ = tuner_of(Clocked())
    first = tuner.tune([BUDGET], SIZES)
    both = tuner.tune([BUDGET, 1_100_000], (16 * KIB,))
    assert both.chunks == first.chunks
    assert both.choices.keys() == {str(BUDGET), "1100000"}


@pytest.mark.usefixtures("guessed")
@pytest.mark.parametrize("stops_after", [0, 1, 4])
def test_an_interrupted_tuning_loses_nothing(stops_after: int) -> None:
    stopped = Clocked(stops_after)
    tuner, store = tuner_of(stopped)
    with pytest.raises(KeyboardInterrupt):
        tuner.tune([BUDGET], SIZES)
    tried = dict(store.trials)
    kept = TuningStore("H200", network_of(lenet()), "fp32")
    assert kept.trials == tried
    assert (kept.tuned == Tuned()) == (stops_after < 3)
    machine = Clocked()
    tuner, store = tuner_of(machine)
    tuned = tuner.tune([BUDGET], SIZES)
    assert not set(stopped.measured) & set(machine.measured)
    assert {name: store.trials[name] for name in tried} == tried
    unbroken, _ = tuner_of(Clocked())
    assert unbroken.tune([BUDGET], SIZES) == tuned


@pytest.mark.usefixtures("guessed")
def test_configurations_that_are_clearly_faster_are_settled() -> None:
    machine = Clocked(shares=SHARES)
    tuner, store = tuner_of(machine)
    tuned = tuner.tune([BUDGET], SIZES)
    assert tuned.configurations == FASTER
    assert find_tuned("H200", network_of(lenet()), "fp32") == tuned
    assert len(machine.shared) == 7
    again, _ = tuner_of(machine)
    assert again.tune([BUDGET], SIZES) == tuned
    assert len(machine.shared) == 7
    (stored,) = tuner.stored()
    mine = Trial(tuned.chunks or UNTUNED, stored.choice, BUDGET, measured=True, configured=True)
    assert store.trials[mine.name] == stored.measured_s
    plain = Trial(UNTUNED, Choice(), BUDGET, measured=True)
    assert store.trials[plain.name] == stored.untuned_measured_s
    assert {point.chunk_size for point in tuner.curve([BUDGET])} >= set(SIZES)


@pytest.mark.usefixtures("guessed")
@pytest.mark.parametrize("stops_after", [0, 2, 5])
def test_launches_that_were_measured_are_not_again(stops_after: int) -> None:
    stopped = Clocked(shares=SHARES)
    tuner, _ = tuner_of(stopped)
    tuner.tune([], SIZES)
    store = TuningStore("H200", network_of(lenet()), "fp32")
    store.set_tuned(Tuned(store.tuned.chunks))
    for name in [name for name in store.trials if name.startswith('["launch"')][stops_after:]:
        del store.trials[name]
    machine = Clocked(shares=SHARES)
    tuned = Tuner(lenet(), machine, store, lambda *_: None, Processes(1)).tune([], SIZES)
    assert tuned.configurations == FASTER
    assert machine.shared == stopped.shared[stops_after:]


def test_choices_are_simulated_as_configured() -> None:
    machine = Clocked(shares=SHARES)
    tuner, store = tuner_of(machine)
    store.set_tuned(Tuned(UNTUNED))
    tuner.tune([2_000_000])
    assert machine.configured
    assert all(table == FASTER for table in machine.configured)


def test_costs_are_of_the_graph_that_a_policy_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Auto's convolutions make maps as they load them, so that it has fewer passes than others."""
    monkeypatch.setattr(Job, "seconds", lambda job: 1.0)
    request = make_request("resnet50", 2, 32, "bf16", None, None)
    store = TuningStore("H200", network_of(request), "bf16")
    store.set_tuned(Tuned(UNTUNED, configurations={}))
    machine = Clocked()
    Tuner(request, machine, store, lambda *_: None, Processes(1)).tune([BUDGET])
    sized = replace(request, chunks=UNTUNED)
    planned = [make_graph(sized, policy, lambda *_: None) for policy in SEARCHED]
    counts = [len(graph.passes) for graph in planned]
    assert len(set(counts)) == 2
    assert {len(graph.passes) for graph in machine.graphs} == set(counts)


def test_on_a_data_sheet_no_kernel_is_tuned(few_settings: None) -> None:
    store = TuningStore("H200", network_of(lenet()), "fp32")
    tuner = Tuner(lenet(), DataSheet(load("H200")), store, lambda *_: None, Processes(1))
    assert tuner.tune([], (16 * KIB,)).configurations is None
    assert not any(name.startswith('["launch"') for name in store.trials)


def test_networks_are_told_apart_by_what_they_compute() -> None:
    x = torch.empty(BATCH, *SHAPE)
    network = trace(make_net(), (x,))
    renamed = trace(nn.Sequential(*make_net(), nn.Identity())[:9], (x,))
    named = trace(nn.ModuleDict({"net": make_net()})["net"], (x,))
    mine = TuningStore("H200", network, "fp32").path
    assert {TuningStore("H200", other, "fp32").path for other in (renamed, named)} == {mine}
    others = [trace(make_net(), (x[:4],)), trace(make_net()[:-1], (x,))]
    paths = {TuningStore("H200", other, "fp32").path for other in others}
    assert len(paths | {mine, TuningStore("H200", network, "bf16").path}) == 4


def test_records_tell_configurations_from_none_tried() -> None:
    store = TuningStore("H200", network_of(lenet()), "fp32")
    for configurations in (None, {}, FASTER):
        store.set_tuned(Tuned(UNTUNED, configurations=configurations))
        assert TuningStore("H200", network_of(lenet()), "fp32").tuned == store.tuned
    stored = json.loads(store.path.read_text())
    del stored["configurations"]
    store.path.write_text(json.dumps(stored))
    assert TuningStore("H200", network_of(lenet()), "fp32").tuned == Tuned(UNTUNED)


def test_a_budget_that_nothing_fits_names_the_floor() -> None:
    tuner, store = tuner_of(Clocked())
    for _ in range(2):
        with pytest.raises(BudgetError, match="below the floor"):
            tuner.tune([600_000], SIZES)
    assert store.tuned.chunks is None


@pytest.mark.usefixtures("guessed")
def test_without_a_budget_some_between_floor_and_keep_are_tried() -> None:
    tuner, store = tuner_of(Clocked())
    tuned = tuner.tune([], SIZES)
    assert tuned.chunks is not None
    assert not tuned.choices
    budgets = {int(json.loads(name)[1]) for name in store.trials}
    graph = make_graph(lenet(), "auto", lambda *_: None)
    floor, kept = Problem(graph, h200(graph)).floor("auto")[0], graph.baseline_nbytes
    assert all(floor < budget < kept for budget in budgets)
    assert {point.budget for point in tuner.curve([])} == budgets
