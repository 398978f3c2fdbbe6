"""The profiler's launches: every pass of every kind of step runs on its stand-ins."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime import _async_compile

from tests.support.networks import NetworkMaker
from tvdnn.graph import Graph, Network
from tvdnn.kernels.language.rounding import stored_reference
from tvdnn.ops import Settings, expand
from tvdnn.ops.builder import Ranks
from tvdnn.ops.expand import Mode
from tvdnn.optim import SGD, AdamW, Optimizer
from tvdnn.planner.ir.costs import Forms, Link
from tvdnn.planner.ir.schedule import Step
from tvdnn.planner.ir.settings import Table
from tvdnn.runtime import launch_timer as scratch_module
from tvdnn.runtime import profiler
from tvdnn.runtime.autotune import Autotuner, Tunable
from tvdnn.runtime.binding import ByteViews, Call
from tvdnn.runtime.disk_cache import sources
from tvdnn.runtime.launch_timer import Scratch
from tvdnn.runtime.profiler import profile
from tvdnn.units import KIB, MIB

OPTIMIZERS = (SGD(), SGD(momentum=0.9), AdamW())


def network() -> Network:
    """Two convolutions, of which pooling follows one, and two linear layers with dropout."""
    maker = NetworkMaker((4, 16, 16, 4))
    maker.conv(8)
    maker.relu()
    maker.max_pool()
    maker.conv(8)
    maker.relu()
    maker.flatten()
    maker.linear(16)
    maker.relu()
    maker.dropout()
    maker.linear(4)
    return maker.build()


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("mode", Mode)
def test_every_pass_runs_on_stand_ins(mode: Mode, optimizer: Optimizer, fuse: bool) -> None:
    settings = Settings("fp32", 16 * KIB, mode=mode, optimizer=optimizer, fuse=fuse)
    traced = network()
    if mode is Mode.INFER:
        traced = replace(traced, training=False)
    run_all(expand(traced, settings))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_passes_of_processes_that_train_together_run_on_stand_ins(dtype: str) -> None:
    """All but the sums over these processes, which are not measured."""
    settings = Settings("fp32", 16 * KIB, optimizer=AdamW(), ranks=Ranks(4, 2000, dtype))
    graph = expand(network(), settings)
    roles = {"pack_loss", "unpack_loss", *(["pack"] if dtype == "bfloat16" else [])}
    assert roles <= {pass_.role for pass_ in graph.passes}
    run_all(graph)


def run_all(graph: Graph) -> None:
    scratch = Scratch(graph, torch.device("cpu"), "torch", 64 * MIB)
    for index, pass_ in enumerate(graph.passes):
        if pass_.ranks:
            continue
        counts = scratch.row_counts(pass_)
        assert counts, pass_.name
        assert all(0 < rows <= pass_.domain for rows in counts), pass_.name
        for rows in counts:
            scratch.call(index, rows)()


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Step, ByteViews]]:
    """The steps that are bound, and the memory of each."""
    found = list[tuple[Step, ByteViews]]()
    bind = scratch_module.bind_step

    def spied(graph: Graph, step: Step, memory: ByteViews, *others: Any, **options: Any) -> Call:
        found.append((step, memory))
        return bind(graph, step, memory, *others, **options)

    monkeypatch.setattr(scratch_module, "bind_step", spied)
    return found


@pytest.mark.parametrize("cache", [0, 8 * KIB, MIB])
def test_launches_take_turns_until_a_cache_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, bound: list[tuple[Step, ByteViews]], cache: int
) -> None:
    """They go over a pass's domain as those of a step do, each on bytes of its own."""
    graph = expand(network(), Settings("fp32", 2 * KIB, optimizer=SGD()))
    monkeypatch.setattr(scratch_module, "cache_nbytes", lambda _: cache)
    scratch = Scratch(graph, torch.device("cpu"), "torch", 64 * MIB)
    several = 0
    for index, pass_ in enumerate(graph.passes):
        rows = min(scratch.row_counts(pass_))
        bound.clear()
        for call in scratch.turns(index, rows):
            call()
        steps = [step for step, _ in bound]
        assert [(step.start, step.stop) for step in steps] == [
            (number * rows, (number + 1) * rows) for number in range(len(steps))
        ]
        moved = [
            {(each.offset, each.nbytes) for each in (*step.reads, *step.writes)} for step in steps
        ]
        spans = sorted(set().union(*moved))
        assert all(low + size <= high for (low, size), (high, _) in pairwise(spans))
        touched = [sum(size for _, size in set().union(*moved[:n])) for n in range(len(moved))]
        assert all(nbytes < 2 * cache for nbytes in touched[1:])
        over = len(steps) == min(pass_.domain // rows, scratch_module.REPEATS)
        assert over or sum(size for _, size in spans) >= 2 * cache
        several += len(steps) > 1
    assert bool(several) == bool(cache)


def test_launches_take_no_more_turns_than_scratch_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = expand(network(), Settings("fp32", 2 * KIB, optimizer=SGD()))
    monkeypatch.setattr(scratch_module, "cache_nbytes", lambda _: MIB)
    index = next(i for i, pass_ in enumerate(graph.passes) if pass_.name == "relu1 grad_input")
    turns = [  # of 16 KiB each, which no parameter adds to
        len(Scratch(graph, torch.device("cpu"), "torch", limit * KIB).turns(index, 1))
        for limit in (16, 47, 48, 1024)
    ]
    assert turns == [1, 2, 3, 4]


def test_products_are_measured_on_what_tf32_holds(bound: list[tuple[Step, ByteViews]]) -> None:
    graph = expand(network(), Settings("tf32", 16 * KIB, optimizer=SGD()))
    scratch = Scratch(graph, torch.device("cpu"), "torch", 64 * MIB)
    index = next(i for i, pass_ in enumerate(graph.passes) if pass_.role == "grad_weight")
    scratch.call(index, graph.passes[index].domain)
    ((step, memory),) = bound
    read = [memory.view(operand, graph.buffers[operand.buffer]) for operand in step.reads]
    assert len(read) == 2
    for values in read:
        assert torch.equal(values, stored_reference(values, values.dtype, "tf32"))
        assert values.count_nonzero() == values.numel()


def test_each_launch_that_is_measured_is_made_once_to_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it does not run, but for those of torch's operations."""
    graph = expand(network(), Settings("fp32", 16 * KIB, optimizer=SGD()))
    torchs = graph.passes[0].op
    ops = {**graph.ops, torchs: replace(graph.ops[torchs], kind="opaque")}
    graph = replace(graph, ops=ops)
    made, launched = list[tuple[int, int, int]](), list[tuple[int, int, int]]()

    def turns(_: Scratch, index: int, rows: int, forms: Forms) -> tuple[Call, ...]:
        assert _async_compile.active_mode.get() is not None
        made.extend(each := [(index, rows, turn) for turn in range(2)])
        return tuple(partial(launched.append, one) for one in each)

    monkeypatch.setattr(Scratch, "turns", turns)
    scratch = Scratch(graph, torch.device("cpu"), "torch", 64 * MIB)
    scratch.compile((index, ()) for index in range(len(graph.passes)))
    passes = [(i, each) for i, each in enumerate(graph.passes) if each.op != torchs]
    assert len(passes) < len(graph.passes)
    assert launched == made
    assert {each[:2] for each in made} == {
        (i, rows) for i, each in passes for rows in scratch.row_counts(each)
    }


def test_a_pass_that_fails_leaves_others_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = expand(network(), Settings("fp32", 16 * KIB, optimizer=SGD()))
    launched = list[int]()

    def turns(_: Scratch, index: int, rows: int, forms: Forms) -> tuple[Call, ...]:
        if index == 1:
            raise RuntimeError("out of memory")
        return (partial(launched.append, index),)

    monkeypatch.setattr(Scratch, "turns", turns)
    Scratch(graph, torch.device("cpu"), "torch", 64 * MIB).compile(
        (index, ()) for index in range(3)
    )
    assert set(launched) == {0, 2}


def test_a_profile_on_disk_is_known_by_how_it_was_measured(tmp_path: Path) -> None:
    method = tmp_path / "profiler.py"
    method.write_text("REPLAYS = 5")
    before = sources(method)
    sources.cache_clear()
    method.write_text("REPLAYS = 3")
    assert len({before, sources(method), sources()}) == 3


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[int, Table]]:
    """Passes that are measured, on the CPU: each launch takes a second, by three stages half."""
    found: list[tuple[int, Table]] = []

    def measure(self: Scratch, index: int, rows: int, forms: Forms = ()) -> float:
        for call in self.turns(index, rows, forms):
            call()
        table = self.configurations.table
        found.append((index, table))
        return 0.5 if any(way.get("num_stages") == 3 for way in table.values()) else 1.0

    monkeypatch.setenv("TVDNN_CACHE", str(tmp_path))
    monkeypatch.setattr(Scratch, "measure", measure)
    monkeypatch.setattr(profiler, "recoded_sizes", lambda *_: ())  # none is measured
    monkeypatch.setattr(Scratch, "row_counts", lambda _, pass_, forms=(): (pass_.unit,))
    monkeypatch.setattr(profiler, "measure_link", lambda *_: Link(1.0, 1.0, 1.0, 1.0, 0.0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "CPU")
    return found


def few_passes() -> Graph:
    maker = NetworkMaker((2, 4, 4, 8))
    maker.conv(8)
    maker.flatten()
    maker.linear(4)
    return expand(maker.build(), Settings("fp32", 16 * KIB, mode=Mode.INFER))


def test_measurements_are_told_apart_by_the_configurations_that_passes_ask_for(
    measured: list[tuple[int, Table]],
) -> None:
    graph, options = few_passes(), {"device": torch.device("cpu"), "kernels": "triton"}
    profile(graph, **options)
    assert [index for index, _ in measured] == list(range(len(graph.passes)))
    scratch = Scratch(graph, torch.device("cpu"), "triton", 64 * MIB)
    index = -1
    while not scratch.configurations.requests:
        index += 1
        scratch.call(index, 1)()
    (key,) = scratch.configurations.requests
    table = {key: {"num_stages": 3}, "of another network": {"num_stages": 4}}
    for configurations, again in ((table, [index]), (table, []), ({}, [])):
        measured.clear()
        found = profile(graph, **options, configurations=configurations)
        assert [each for each, _ in measured] == again
        ((_, seconds),) = found.samples[graph.passes[index].name][frozenset()]
        assert seconds == (0.5 if configurations else 1.0)


def test_launches_worth_it_are_tried_and_refused(
    measured: list[tuple[int, Table]], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, device = few_passes(), torch.device("cpu")
    costs = profile(graph, device=device, kernels="triton")
    configuring = Autotuner(graph, device, "triton")
    each = next(each for each in configuring.worth(costs) if each.key.startswith("pointer"))
    assert graph.passes[each.pass_index].params
    assert {"num_stages": 3} in each.candidates
    configuring.compile([each])
    assert configuring.share(each, {"num_stages": 3}) == 0.5
    assert configuring.share(each, {"num_stages": 4}) == 1.0
    assert configuring.share(each, {"out_channels": 3}) is None  # no power of two

    def other_bits(self: Scratch, index: int, rows: int) -> tuple[torch.Tensor, ...]:
        return (torch.full((8,), len(self.configurations.table), dtype=torch.uint8),)

    monkeypatch.setattr(Scratch, "results", other_bits)
    unlike = Tunable(f"{each.key} again", each.pass_index, each.candidates)
    assert configuring.share(unlike, {"num_stages": 3}) is None


def test_a_pass_leaves_the_same_bytes_each_time() -> None:
    graph = expand(network(), Settings("fp32", 16 * KIB, optimizer=SGD(momentum=0.9)))
    scratches = [Scratch(graph, torch.device("cpu"), "torch", 64 * MIB) for _ in range(2)]
    for index, pass_ in enumerate(graph.passes):
        left = [scratch.results(index, pass_.domain) for scratch in scratches]
        assert left[0], pass_.name
        assert all(map(torch.equal, *left)), pass_.name
