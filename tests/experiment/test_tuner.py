"""Tuning: what is tried, settled, interrupted, gone on with and used; and that no bit changes."""

import json
import os
import pickle
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.support.running import random_batches
from tests.support.simulated import h200
from tvdnn.cli import main, tune
from tvdnn.engine import Trainer, virtualize
from tvdnn.errors import BudgetError, HostMemoryError, InputError
from tvdnn.experiment import processes
from tvdnn.experiment import tuner as tuning
from tvdnn.experiment.machines import DataSheet
from tvdnn.experiment.processes import Processes
from tvdnn.experiment.request import Request, as_tuned, chosen, make_graph, make_request, network_of
from tvdnn.experiment.trials import Job, Trial
from tvdnn.experiment.tuner import Tuner
from tvdnn.graph import ChunkSizes, Graph, size_class
from tvdnn.kernels.language.overrides import Configurations
from tvdnn.planner.ir.costs import Costs
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.schedule import Lane
from tvdnn.planner.ir.settings import (
    RULES,
    Choice,
    Configuration,
    Requested,
    Table,
    Tuned,
    choose,
    fingerprint,
)
from tvdnn.planner.make import DEFAULT_CHUNK_SIZE, floor_of, make_schedule
from tvdnn.runtime import runner
from tvdnn.runtime.autotune import Autotuner, Tunable
from tvdnn.runtime.kernel_set import kernel_set
from tvdnn.runtime.tuning_store import TuningStore, find_tuned
from tvdnn.trace.trace import trace
from tvdnn.units import KIB, Limit

Captured = pytest.CaptureFixture[str]
BATCH, SHAPE, CLASSES = 8, (3, 16, 16), 5
SIZES = (4 * KIB, 16 * KIB)
BUDGET = 1_000_000  # of LeNet-5(16): above the floor in sections of 16 KiB, below that in one
UNTUNED = ChunkSizes(DEFAULT_CHUNK_SIZE)
SMALL = ("lenet5", "--batch", "16", "--dtype", "fp32", "--hardware", "H200")
NO_SHARES: Mapping[str, Sequence[float | None]] = {}
SHARES = {"first": (0.99, 0.9, None), "second": (0.985, None), "third": (None,), "last": (0.5,)}
FASTER = {"first": {"num_stages": 4}, "last": {"num_stages": 3}}
TRIED = ("--chunk-sizes", "16KiB,32KiB", "--budget", str(BUDGET))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVDNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(processes, "PROCESSES", 1)


class Clocked:
    """A machine whose steps are fastest in sections of 16 KiB, and with a lead.

    Its launches take these shares of their times by 3 stages, by 4 and so on.
    """

    hardware, measures, copies = "H200", True, ("engine", "kernel")

    def __init__(
        self,
        stops_after: int | None = None,
        shares: Mapping[str, Sequence[float | None]] = NO_SHARES,
    ) -> None:
        self.measured: list[tuple[ChunkSizes, Choice]] = []
        self.stops_after = stops_after
        self.shares = shares
        self.shared: list[tuple[str, int]] = []
        self.configured: list[Table] = []

    def costs(self, graph: Graph, copies: str, configurations: Table = RULES) -> Costs:
        self.configured.append(configurations)
        return DataSheet(load("H200")).costs(graph, copies)

    def configurable(self, graph: Graph) -> Sequence[Tunable]:
        return [
            Tunable(key, 0, tuple({"num_stages": 3 + i} for i in range(len(shares))))
            for key, shares in self.shares.items()
        ]

    def share(self, each: Tunable, configuration: Configuration) -> float | None:
        stages = configuration["num_stages"]
        self.shared.append((each.key, stages))
        return self.shares[each.key][stages - 3]

    def measured_s(self, request: Request, choice: Choice, budget: Limit) -> float | None:
        if len(self.measured) == self.stops_after:
            raise KeyboardInterrupt
        self.measured.append((request.chunks, choice))
        return 1.0 + (request.chunks.default != 16 * KIB) + (choice.lead is None) / 2

    def close(self) -> None: ...


@pytest.fixture
def guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are not simulated but guessed: fastest in sections of 4 KiB, a class of 2 KiB.

    By the heuristic, and with a lead of 2.
    """

    def guess(job: Job) -> float:
        sizes = {4 * KIB: 1.0, 16 * KIB: 1.1, 32 * KIB: 1.2, UNTUNED.default: 1.3}
        policies = {"auto": 0.2, "tvdnn-heuristic": 0.1, "tvdnn-ilp": 0.3}
        chunks, choice = job.request.chunks, job.choice
        own = sum(size == 2 * KIB for _, size in chunks.classes[:1]) / 10
        led = {None: 0.2, 2: 0.1}.get(choice.lead, 0.15)
        way = {"engine": 0.05, "kernel": 0.06}[choice.copies]
        return sizes[chunks.default] - own + policies[choice.policy] + led + way

    monkeypatch.setattr(Job, "seconds", guess)


@pytest.fixture
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SEARCHED", ("auto",))
    monkeypatch.setattr(tuning, "LEADS", (2,))
    monkeypatch.setattr(tuning, "SMALL_CLASS", 0.5)  # few classes have sizes of their own


def lenet() -> Request:
    return make_request("lenet5", 16, None, "fp32", None, None)


def tuner_of(machine: Clocked) -> tuple[Tuner, TuningStore]:
    store = TuningStore("H200", network_of(lenet()), "fp32")
    return Tuner(lenet(), machine, store, lambda *_: None, Processes(1)), store


def run(capsys: Captured, *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(width, 8, 3, padding=1) for width in (3, 8, 8)]
    rectified = [each for layer in layers for each in (layer, nn.ReLU())]
    return nn.Sequential(*rectified, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, CLASSES))


def store(tuned: Tuned) -> None:
    """Have this settled for `make_net` in float32."""
    network = trace(make_net(), (torch.empty(BATCH, *SHAPE),))
    TuningStore("H200", network, "fp32").set_tuned(tuned)


# What is tuned


def test_maps_of_a_class_have_sections_of_its_size() -> None:
    chunks = ChunkSizes(16 * KIB, ((13, 4 * KIB), (11, 64 * KIB)))
    assert [size_class(nbytes) for nbytes in (1, 2, 4096, 4097, 8192)] == [0, 1, 12, 13, 13]
    assert [chunks.of(nbytes) for nbytes in (8192, 4096, 2048)] == [4 * KIB, 16 * KIB, 64 * KIB]
    plain, sized = (
        Trainer(make_net(), torch.empty(BATCH, *SHAPE), chunk_size=each).graph.buffers
        for each in (16 * KIB, chunks)
    )
    of_class = [name for name in plain if size_class(plain[name].row_nbytes) == 13]
    assert {(plain[name].section, sized[name].section) for name in of_class} == {(2, 1)}


@pytest.mark.parametrize("lead", [0, 2])
def test_a_lead_bounds_how_early_prefetches_come(lead: int) -> None:
    request = make_request("lenet5", 16, None, "fp32", "4KiB", None)
    graph = make_graph(request, "vdnn-all", lambda *_: None)
    led = make_schedule(graph, h200(graph), policy="vdnn-all", lead=lead)
    moves = led.plan.transfers
    assert moves
    assert all(move.needed_by - move.earliest_prefetch <= lead for move in moves)
    opens = {move.buffer: move.earliest_prefetch for move in moves}
    launches = [index for index, step in enumerate(led.steps) if step.lane is Lane.COMPUTE]
    for index, step in enumerate(led.steps):
        if step.lane is Lane.PREFETCH:
            first = next(i for i in launches if led.steps[i].slot == opens[step.reads[0].buffer])
            before = [i for i in launches if i < first]
            assert index > before[-1]
    with pytest.raises(InputError, match="lead is -1"):
        make_schedule(graph, h200(graph), policy="vdnn-all", lead=-1)


def test_choices_are_what_was_asked_then_what_was_found() -> None:
    tuned = Tuned(choices={"5": Choice("tvdnn-ilp", 2, "kernel")})
    assert choose(None, 5, Requested()) == Choice("auto", None, "engine")
    assert choose(tuned, 5, Requested()) == Choice("tvdnn-ilp", 2, "kernel")
    assert choose(tuned, 6, Requested()) == Choice()
    assert choose(tuned, 5, Requested("tvdnn-ilp", 4)) == Choice("tvdnn-ilp", 4, "kernel")
    assert choose(tuned, 5, Requested("keep")) == Choice("keep")
    assert choose(tuned, 5, Requested(copies="engine")) == Choice("tvdnn-ilp", 2, "engine")


def test_networks_are_told_apart_by_what_they_compute() -> None:
    x = torch.empty(BATCH, *SHAPE)
    network = trace(make_net(), (x,))
    renamed = trace(nn.Sequential(*make_net(), nn.Identity())[:9], (x,))
    named = trace(nn.ModuleDict({"net": make_net()})["net"], (x,))
    mine = fingerprint(network, "fp32")
    assert {fingerprint(other, "fp32") for other in (renamed, named)} == {mine}
    others = [trace(make_net(), (x[:4],)), trace(make_net()[:-1], (x,))]
    keys = {fingerprint(other, "fp32") for other in others}
    assert len(keys | {mine, fingerprint(network, "bf16")}) == 4


# Tuning


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


def test_on_a_data_sheet_no_kernel_is_tuned(few_trials: None) -> None:
    store = TuningStore("H200", network_of(lenet()), "fp32")
    tuner = Tuner(lenet(), DataSheet(load("H200")), store, lambda *_: None, Processes(1))
    assert tuner.tune([], (16 * KIB,)).configurations is None
    assert not any(name.startswith('["launch"') for name in store.trials)


def test_records_tell_configurations_from_none_tried() -> None:
    store = TuningStore("H200", network_of(lenet()), "fp32")
    for configurations in (None, {}, FASTER):
        store.set_tuned(Tuned(UNTUNED, configurations=configurations))
        assert TuningStore("H200", network_of(lenet()), "fp32").tuned == store.tuned
    stored = json.loads(store.path.read_text())
    del stored["configurations"]
    store.path.write_text(json.dumps(stored))
    assert TuningStore("H200", network_of(lenet()), "fp32").tuned == Tuned(UNTUNED)


def test_jobs_of_another_process_are_the_same() -> None:
    request = replace(lenet(), chunks=ChunkSizes(16 * KIB))
    costs = h200(make_graph(request, "auto", lambda *_: None))
    for budget, fits in ((BUDGET, True), (600_000, False)):
        job = Job(request, Choice("vdnn-all"), budget, costs)
        sent = pickle.loads(pickle.dumps(job.seconds_if_any))
        assert sent() == job.seconds_if_any()
        assert (sent() is not None) == fits


def test_processes_side_by_side_tell_what_ends_them() -> None:
    with closing(Processes(1)) as one, closing(Processes(2)) as two:
        progress: list[float] = []
        here = dict(one.each([os.getpid] * 2, progress.append))
        assert here == dict.fromkeys(range(2), os.getpid())
        assert progress == [0.0, 0.5, 1.0]
        told = dict(two.each([os.getpid] * 2, progress.append))
        assert told.keys() == {0, 1}
        assert os.getpid() not in told.values()
        with pytest.raises(HostMemoryError, match="1 GB"):
            list(two.each([partial(os._exit, 1)] * 2, progress.append))


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
    floor, kept = floor_of(graph, h200(graph), "auto")[0], graph.baseline_nbytes
    assert all(floor < budget < kept for budget in budgets)
    assert {point.budget for point in tuner.curve([])} == budgets


# The command, and what uses its results


@pytest.mark.usefixtures("few_trials")
def test_tune_settles_and_the_other_commands_use_it(capsys: Captured, tmp_path: Path) -> None:
    plan = ("plan", *SMALL, "--budget", str(BUDGET), "--json", "-")
    before = json.loads(run(capsys, *plan)[1])["row"]
    assert (before["chunk_size"], before["tuned"]) == (DEFAULT_CHUNK_SIZE, False)
    path = tmp_path / "tuned.json"
    code, out, err = run(capsys, "tune", *SMALL, *TRIED, "--report", "--json", path)
    found = json.loads(path.read_text())
    assert code == 0
    assert "lenet5(16) 32x32 fp32, simulated on H200" in out
    assert "step over chunk size" in out
    assert "lenet5(16): simulating chunk sizes" in err.splitlines()
    assert found["simulated"]
    assert found["chunks"]["default"] in (16 * KIB, 32 * KIB)
    assert [stored["budget"] for stored in found["budgets"]] == [BUDGET]
    assert {point["chunk_size"] for point in found["curve"]} == {16 * KIB, 32 * KIB}
    after = json.loads(run(capsys, *plan)[1])["row"]
    assert (after["chunk_size"], after["tuned"]) == (found["chunks"]["default"], True)
    assert after["predicted_s"] == pytest.approx(found["budgets"][0]["simulated_s"])
    own = json.loads(run(capsys, *plan, "--chunk-size", "8KiB")[1])["row"]
    assert (own["chunk_size"], own["tuned"]) == (8 * KIB, False)
    _, _, err = run(capsys, "tune", *SMALL, *TRIED)
    assert "simulating" not in err


@pytest.mark.usefixtures("guessed")
def test_an_interrupted_command_says_so_and_is_1(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "machine_for", lambda *_: Clocked(stops_after=1))
    code, _, err = run(capsys, "tune", *SMALL, *TRIED)
    assert code == 1
    assert "interrupted: what was tried and settled is kept" in err
    monkeypatch.setattr(tune, "machine_for", lambda *_: Clocked(shares=SHARES))
    code, out, _ = run(capsys, "tune", *SMALL, *TRIED)
    assert code == 0
    assert "Launches with configurations of their own: 2." in out
    found = json.loads(run(capsys, "tune", *SMALL, *TRIED, "--json", "-")[1])
    assert found["configurations"] == FASTER
    assert "measured on H200" in out
    assert "simulating" not in run(capsys, "tune", *SMALL, *TRIED)[2]
    assert "simulating" in run(capsys, "tune", *SMALL, *TRIED, "--again")[2]


@pytest.mark.usefixtures("guessed")
def test_the_curve_is_drawn(capsys: Captured, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curve.svg"
    assert run(capsys, "tune", *SMALL, *TRIED, "-o", path)[0] == 0
    assert "chunk size, MiB" in path.read_text()


@pytest.mark.parametrize("sizes", ["4KiB,none", "few"])
def test_sizes_that_are_none_are_refused(capsys: Captured, sizes: str) -> None:
    assert run(capsys, "tune", *SMALL, "--chunk-sizes", sizes)[0] == 2


def test_requests_take_what_was_settled() -> None:
    stored = Tuned(ChunkSizes(4 * KIB), {"min": Choice("tvdnn-heuristic", 3)})
    TuningStore("H200", network_of(lenet()), "fp32").set_tuned(stored)
    request = as_tuned(lenet(), "H200")
    assert request.chunks == ChunkSizes(4 * KIB)
    assert chosen(request, None, "min") == Choice("tvdnn-heuristic", 3)
    assert chosen(request, None, None) == Choice()
    assert as_tuned(lenet(), "A100") == lenet()


@pytest.mark.usefixtures("units_of_one")
def test_trainers_use_what_was_settled_to_the_bits_of_keep() -> None:
    chunks = ChunkSizes(8 * KIB, ((size_class(8 * 16 * 16 * 4), 16 * KIB),))
    store(Tuned(chunks, {"min": Choice("tvdnn-heuristic", 1, "kernel")}))
    nets, x = [make_net() for _ in range(2)], torch.empty(BATCH, *SHAPE)
    kept = Trainer(nets[0], x, policy="keep")
    tuned = Trainer(nets[1], x, budget="min", order_seed=3)
    assert tuned.plan.policy == "tvdnn-heuristic"
    assert tuned.schedule.offloaded_nbytes > 0
    assert {trainer.graph.chunk_size for trainer in (kept, tuned)} == {8 * KIB}
    for x, y in random_batches(3, (BATCH, *SHAPE), CLASSES, 1):
        assert torch.equal(kept.step(x, y), tuned.step(x, y))
    assert all(map(torch.equal, nets[0].parameters(), nets[1].parameters()))


@pytest.mark.usefixtures("units_of_one")
def test_virtualized_networks_use_what_was_settled() -> None:
    store(Tuned(ChunkSizes(8 * KIB)))
    x = torch.empty(BATCH, *SHAPE)
    assert virtualize(make_net(), x).schedule.graph.chunk_size == 8 * KIB
    assert virtualize(make_net(), x, chunk_size="4KiB").schedule.graph.chunk_size == 4 * KIB
    with pytest.raises(InputError, match="copies 'fax' are not known"):
        virtualize(make_net(), x, copies="fax")


def test_engines_run_their_kernels_as_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Table | None] = []

    def spied(name: str, configurations: Configurations | None = None) -> SimpleNamespace:
        given.append(configurations and configurations.table)
        return kernel_set(name, configurations)

    monkeypatch.setattr(runner, "kernel_set", spied)
    x = torch.empty(BATCH, *SHAPE)
    Trainer(make_net(), x)
    store(Tuned(configurations=FASTER))
    Trainer(make_net(), x)
    Trainer(make_net(), x, chunk_size="8KiB", policy="keep")
    virtualize(make_net(), x)
    assert given == [None, FASTER, FASTER, FASTER]


@pytest.mark.gpu
def test_kernels_of_the_gpu_are_tuned_to_the_same_bits() -> None:
    """Of a network small enough that a few launches make most of its step."""
    device, shape = torch.device("cuda"), (64, 64, 56, 56)

    def make() -> nn.Module:
        torch.manual_seed(0)
        convs = [nn.Conv2d(64, 64, 3, padding=1) for _ in range(2)]
        body = [each for conv in convs for each in (conv, nn.ReLU())]
        return nn.Sequential(*body, nn.AvgPool2d(56), nn.Flatten(), nn.Linear(64, CLASSES)).cuda()

    x, y = torch.randn(shape, device=device), torch.zeros(64, dtype=torch.int64, device=device)
    by_rule = Trainer(make(), x, dtype="bf16", policy="keep")
    losses = [by_rule.step(x, y) for _ in range(2)]
    configuring = Autotuner(by_rule.graph, device, "triton")
    every = configuring.worth(by_rule.costs)
    assert every
    configuring.compile(every)
    table = {}
    for each in every:
        shares = [configuring.share(each, way) for way in each.candidates]
        assert all(share is None or share > 0 for share in shares)
        if any(shares):
            table[each.key] = next(each.candidates[i] for i, share in enumerate(shares) if share)
    assert table
    hardware = torch.cuda.get_device_name(device)
    network = trace(make(), (torch.empty(shape, device="meta"),))
    TuningStore(hardware, network, "bf16").set_tuned(Tuned(configurations=table))
    tuned = Trainer(make(), x, dtype="bf16", policy="keep")
    assert [float(tuned.step(x, y)) for _ in range(2)] == list(map(float, losses))
