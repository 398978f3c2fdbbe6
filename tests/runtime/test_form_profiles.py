"""Profiles of passes in their forms, and of recodes."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.networks.sign_bits import NETWORKS
from tvdnn.engine import training_graph
from tvdnn.graph import BITMAP, BITS, FP8, FP10, FP16, RAW, SSDC, TF32, Buffer, Form, Graph
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Forms, Link, RecodeKind, form_choices
from tvdnn.planner.ir.schedule import Step
from tvdnn.runtime import launch_timer, profiler, recode_timer
from tvdnn.runtime.binding import ByteViews, Call
from tvdnn.runtime.launch_timer import Scratch
from tvdnn.runtime.profiler import profile, signature
from tvdnn.runtime.recode_timer import SIZES, recode_calls, recoded_sizes, recodes_of
from tvdnn.units import KIB, MIB

CPU = torch.device("cpu")
KIND = (RAW, BITS, "bfloat16")
LIMIT = 6 * MIB  # room for a recode of 4 MiB of raw values to bits


@pytest.fixture(scope="module")
def graph() -> Graph:
    """A step with passes that leave sign bits, and others that read them."""
    net, x = NETWORKS["residual"].network(), torch.empty(5, 3, 4, 4)
    return training_graph(net, x, optimizer=SGD(), dtype="bf16", chunk_size=8 * KIB, fuse=True)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """The launches and recodes that are bound."""
    found = list[Step]()

    def spy(module: object, name: str, place: int) -> None:
        bind = getattr(module, name)

        def spied(*given: object, **options: object) -> Call:
            step = given[place]
            assert isinstance(step, Step)
            found.append(step)
            return bind(*given, **options)

        monkeypatch.setattr(module, name, spied)

    spy(launch_timer, "bind_step", 1)
    spy(recode_timer, "bind_recode", 1)
    return found


def test_passes_run_in_each_choice_of_their_forms(graph: Graph, bound: list[Step]) -> None:
    scratch = Scratch(graph, CPU, "torch", 64 * MIB)
    choices = [(i, forms) for i, each in enumerate(graph.passes) for forms in form_choices(each)]
    coded = [(index, forms) for index, forms in choices if forms]
    assert {forms[0][1] for _, forms in coded} == {BITS}
    assert len(choices) == len(graph.passes) + len(coded)
    for index, forms in coded:
        pass_ = graph.passes[index]
        raw_rows, rows = scratch.row_counts(pass_), scratch.row_counts(pass_, forms)
        assert rows == raw_rows
        bound.clear()
        for call in scratch.turns(index, pass_.domain, forms):
            call()
        assert {step.forms for step in bound} == {forms}
        leaves = any(use.also for use in pass_.writes)
        assert {len(step.writes) for step in bound} == {len(pass_.writes) + leaves}


def test_codes_are_filled_with_bits_of_both_kinds(
    graph: Graph, bound: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = list[ByteViews]()
    fill = Scratch.filled
    monkeypatch.setattr(Scratch, "filled", lambda *given: filled.append(fill(*given)) or filled[-1])
    scratch = Scratch(graph, CPU, "torch", 64 * MIB)
    index = next(i for i, each in enumerate(graph.passes) if any(u.forms for u in each.reads))
    (forms,) = form_choices(graph.passes[index])[1:]
    scratch.turns(index, graph.passes[index].domain, forms)
    (code,) = (operand for operand in bound[-1].reads if operand.form == BITS)
    assert len(filled[-1].bytes_of(code).unique()) > 100


def test_the_key_of_a_pass_tells_its_forms_but_not_its_name(graph: Graph) -> None:
    coded = {i: form_choices(each) for i, each in enumerate(graph.passes) if each.form_nbytes}
    keys = {i: [signature(graph, graph.passes[i], forms) for forms in coded[i]] for i in coded}
    assert all(len(set(each)) == len(each) > 1 for each in keys.values())
    alike = [i for i in coded if graph.passes[i].role == "grad_last"]
    assert len(alike) > len({keys[i][1] for i in alike})


def both_ways(dtype: str, *forms: Form) -> tuple[RecodeKind, ...]:
    return tuple((*ends, dtype) for form in forms for ends in ((RAW, form), (form, RAW)))


def packed(dtype: str) -> tuple[RecodeKind, ...]:
    """The recodes of packed codes."""
    return both_ways(dtype, BITMAP, SSDC)


def lossy(dtype: str) -> tuple[RecodeKind, ...]:
    return both_ways(dtype, *([FP16] if dtype == "float32" else []), FP10, FP8)


def test_recodes_are_those_of_forms_that_a_pass_reads_or_a_map_may_rest_in(graph: Graph) -> None:
    assert recodes_of(graph) == (KIND, *packed("bfloat16"), *lossy("bfloat16"))


def test_recodes_of_maps_that_can_be_restored_go_both_ways() -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 2), torch.nn.Flatten()
    )
    graph = training_graph(net, torch.empty(5, 3, 4, 4), dtype="tf32")
    bits = (RAW, BITS, "float32")  # that the ReLU's gradient reads
    both = (RAW, TF32, "float32"), (TF32, RAW, "float32")
    assert recodes_of(graph) == (bits, *both, *packed("float32"), *lossy("float32"))
    plain = training_graph(net, torch.empty(5, 3, 4, 4))
    assert recodes_of(plain) == (bits, *packed("float32"), *lossy("float32"))


@pytest.mark.parametrize("kind", packed("bfloat16"), ids=str)
def test_packed_codes_are_measured_on_values_half_of_which_are_zero(
    graph: Graph, kind: RecodeKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads have room for all. Each turn has a count of its own, and the first clears all."""
    monkeypatch.setattr(launch_timer, "cache_nbytes", lambda _: MIB)
    given = list[tuple[ByteViews, tuple[Step, ...]]]()
    bind = recode_timer.bind_recode

    def spied(buffer: Buffer, step: Step, memory: ByteViews, kernels: object) -> Call:
        given.append((memory, (step,)))
        return bind(buffer, step, memory, kernels)

    monkeypatch.setattr(recode_timer, "bind_recode", spied)
    scratch = Scratch(graph, CPU, "torch", 4 * MIB)
    calls = recode_calls(scratch, kind, 64 * KIB)
    steps = [step for _, (step,) in given[-len(calls) :]]
    memory = given[-1][0]
    values = {each.offset: memory.bytes_of(each).clone() for each in steps[0].writes}
    for _ in range(2):
        for call in calls:
            call()
    assert len({step.count_word for step in steps}) == len(calls) > 1
    assert all(0.45 < count / (32 * KIB) < 0.55 for count in memory.counts.tolist())
    if kind[1] == RAW:  # the turns restored what was encoded before
        assert all(
            torch.equal(memory.bytes_of(each), values[each.offset]) for each in steps[0].writes
        )


@pytest.mark.parametrize("kind", [KIND, (RAW, TF32, "float32"), (TF32, RAW, "float32")], ids=str)
@pytest.mark.parametrize("limit", [0, 64 * KIB, MIB, LIMIT])
def test_recodes_stay_inside_scratch(
    graph: Graph, kind: RecodeKind, limit: int, bound: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least size is measured on any scratch. Turns take bytes of their own."""
    monkeypatch.setattr(launch_timer, "cache_nbytes", lambda _: MIB)
    sizes = recoded_sizes(kind, limit)
    assert sizes == SIZES[: len(sizes)]
    scratch = Scratch(graph, CPU, "torch", limit)
    for nbytes in sizes:
        bound.clear()
        for call in recode_calls(scratch, kind, nbytes):
            call()
        operands = [each for step in bound for each in (*step.reads, *step.writes)]
        ends = sorted((each.offset, each.end) for each in operands)
        assert all(one[1] <= other[0] for one, other in pairwise(ends))
        assert ends[-1][1] <= max(limit, 2 * SIZES[0])
        taken = {each.form: each.nbytes for each in operands}
        (code,) = taken.keys() - {RAW}
        assert taken == {RAW: nbytes, code: nbytes * (9 if code == TF32 else 1) // 16}
    assert (len(sizes) == 1) == (limit < 128 * KIB)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """What is measured, on the CPU: a pass with forms, or the number of a recode's turns."""
    found = list[object]()

    def measure(self: Scratch, index: int, rows: int, forms: Forms = ()) -> float:
        found.append((index, forms))
        return 2.0 if forms else 1.0

    def seconds(self: Scratch, calls: Sequence[Call]) -> float:
        found.append(len(calls))
        return float(len(found))

    monkeypatch.setenv("TVDNN_CACHE", str(tmp_path))
    monkeypatch.setattr(Scratch, "compile", lambda *_: None)
    monkeypatch.setattr(Scratch, "measure", measure)
    monkeypatch.setattr(Scratch, "seconds", seconds)
    monkeypatch.setattr(profiler, "measure_link", lambda *_: Link(1.0, 1.0, 1.0, 1.0, 0.0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "CPU")
    return found


def test_a_profile_holds_every_form_and_recode(graph: Graph, measured: list[object]) -> None:
    told = list[float]()
    options = {"device": CPU, "kernels": "torch", "limit": LIMIT}
    found = profile(graph, **options, progress=lambda _, share: told.append(share))
    for pass_ in graph.passes:
        choices = form_choices(pass_)
        assert found.samples[pass_.name].keys() == {frozenset(forms) for forms in choices}
        taken = [found.launch_s(pass_, pass_.domain, forms) for forms in choices]
        rows = max(found.samples[pass_.name][frozenset()])[0]
        assert taken == [(2.0 if forms else 1.0) * pass_.domain / rows for forms in choices]
    kinds = recodes_of(graph)
    assert found.recodes.keys() == set(kinds)
    for kind in kinds:
        assert [nbytes for nbytes, _ in found.recodes[kind]] == list(recoded_sizes(kind, LIMIT))
    every = sum(len(form_choices(each)) for each in graph.passes) + len(kinds)
    assert told == [number / every for number in range(every + 1)]

    measured.clear()
    assert profile(graph, **options) == found
    assert measured == []
    less = profile(graph, **{**options, "limit": MIB})
    assert len(measured) == sum(len(recoded_sizes(kind, MIB)) for kind in kinds)
    assert len(less.recodes[KIND]) == len(recoded_sizes(KIND, MIB))
