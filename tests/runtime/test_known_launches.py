"""Known launches: a file written from a profile spares its measurement, or says what it guesses."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.networks import NetworkMaker
from tests.support.scripts import run_compiler
from tvdnn.errors import InputError
from tvdnn.graph import DTYPE_NBYTES, Buffer, Graph, Kind, is_packed
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Forms, Link, Profile, Roofline, form_choices
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.plan import HOST
from tvdnn.planner.ir.settings import ENGINE
from tvdnn.runtime import profiler
from tvdnn.runtime.binding import Call
from tvdnn.runtime.known_launches import (
    NOTHING,
    SAME_CHIP,
    KnownLaunches,
    collect,
    digest,
    dumped,
    file_name,
    known_launches,
    loaded,
    rate_key,
    sheet_of,
)
from tvdnn.runtime.launch_timer import Scratch
from tvdnn.runtime.profile_cache import ProfileCache
from tvdnn.runtime.profiler import profile, signature
from tvdnn.units import KIB, MIB

# With the plans of a GPU, which differ from those of the interpreter.
SHIPPED = """
import torch
from bench.large_plans import planned_graph
from tvdnn import models
from tvdnn.runtime.known_launches import SAME_CHIP, known_launches
from tvdnn.runtime.profiler import signature

with torch.device("meta"):
    net, x = models.by_name("vgg16"), torch.empty(256, *models.image_shape("vgg16"))
step = planned_graph(net, x, "auto", dtype="bf16")
for gpu in SAME_CHIP.values():
    known = known_launches(gpu)
    unknown = {each.name for each in step.passes if known.find(signature(step, each)) is None}
    assert not any("grad_weight" in name for name in unknown), (gpu, unknown)
    assert len(unknown) < 0.1 * len(step.passes), (gpu, unknown)
"""
CPU = torch.device("cpu")
LINK = Link(1e9, 2e9, 1e9, 2e9, 1e-5)
SLOWER = 3.0  # measured seconds over those of the roofline


@pytest.fixture
def graph() -> Graph:
    maker = NetworkMaker((4, 16, 16, 4))
    for _ in range(2):
        maker.conv(8)
        maker.relu()
    maker.flatten()
    maker.linear(4)
    return expand(maker.build(), Settings("fp32", 16 * KIB, optimizer=SGD()))


@pytest.mark.slow
def test_what_ships_knows_a_networks_launches() -> None:
    """Their signatures are those of the file: else their seconds would be estimates."""
    run_compiler(SHIPPED)


@pytest.fixture
def launched(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[tuple[int, Forms]]:
    """The launches that are measured. They take three times the seconds of the roofline."""
    found = list[tuple[int, Forms]]()
    roofline = Roofline(load("H200"), "fp32")

    def measure(self: Scratch, index: int, rows: int, forms: Forms = ()) -> float:
        found.append((index, forms))
        return SLOWER * roofline.launch_s(graph.passes[index], rows, forms)

    def seconds(self: Scratch, calls: Sequence[Call]) -> float:
        return 1.0

    monkeypatch.setenv("TVDNN_CACHE", str(tmp_path / "first"))
    monkeypatch.setattr(Scratch, "compile", lambda *_: None)
    monkeypatch.setattr(Scratch, "measure", measure)
    monkeypatch.setattr(Scratch, "seconds", seconds)
    monkeypatch.setattr(profiler, "measure_link", lambda *_: LINK)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    return found


def profiled(graph: Graph, **options: Any) -> Profile:
    return profile(graph, device=CPU, kernels="torch", limit=MIB, **options)


@pytest.fixture
def written(
    graph: Graph,
    launched: list[tuple[int, Forms]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> tuple[Profile, KnownLaunches]:
    """A profile, and the known launches that a file of its cache holds. The cache is then empty."""
    found = profiled(graph, known=NOTHING)
    cache = ProfileCache(CPU, "torch")
    known = collect([(graph, found)], "H200", cache.measured, cache.links)
    (tmp_path / file_name("NVIDIA H200")).write_text(json.dumps(dumped(known)))
    read = known_launches("NVIDIA H200", tmp_path)
    assert read == known
    assert known_launches("NVIDIA H300", tmp_path) is NOTHING
    assert loaded(dumped(read)) == read
    monkeypatch.setenv("TVDNN_CACHE", str(tmp_path / "second"))
    launched.clear()
    return found, read


def test_nothing_is_measured_of_what_ships(
    graph: Graph, written: tuple[Profile, KnownLaunches], launched: list[tuple[int, Forms]]
) -> None:
    found, known = written
    again = profiled(graph, known=known, estimates=True)
    assert launched == []
    assert again == found
    assert again.estimated == frozenset()
    assert ProfileCache(CPU, "torch").measured == {}


def test_launches_of_known_kernels_are_estimated_and_named(
    graph: Graph, written: tuple[Profile, KnownLaunches], launched: list[tuple[int, Forms]]
) -> None:
    found, known = written
    pass_ = next(each for each in graph.passes if graph.ops[each.op].kind == "conv2d")
    gone = {digest(signature(graph, pass_, forms)) for forms in form_choices(pass_)}
    less = replace(known, samples={k: each for k, each in known.samples.items() if k not in gone})
    again = profiled(graph, known=less, estimates=True)
    assert launched == []
    assert again.estimated == {pass_.name}
    expected = SLOWER * Roofline(load("H200"), "fp32").launch_s(pass_, pass_.domain)
    assert again.launch_s(pass_, pass_.domain) == pytest.approx(expected)
    assert again.launch_s(pass_, pass_.domain) == pytest.approx(found.launch_s(pass_, pass_.domain))

    others = {key: 2 * rate for key, rate in less.rates.items() if key != rate_key(graph, pass_)}
    for rates, times in ((others, 2), ({}, 1 / SLOWER)):
        again = profiled(graph, known=replace(less, rates=rates), estimates=True)
        assert launched == []
        assert again.estimated == {pass_.name}
        assert again.launch_s(pass_, pass_.domain) == pytest.approx(times * expected)

    again = profiled(graph, known=replace(less, sheet=""), estimates=True)
    assert {graph.passes[index].name for index, _ in launched} == {pass_.name}
    assert again.estimated == frozenset()
    assert again.links[HOST] == LINK


def test_recodes_that_are_not_known_are_estimated_by_the_roofline(
    graph: Graph, written: tuple[Profile, KnownLaunches], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, known = written
    launches = {
        digest(signature(graph, pass_, forms))
        for pass_ in graph.passes
        for forms in form_choices(pass_)
    }
    less = replace(known, samples={k: each for k, each in known.samples.items() if k in launches})
    monkeypatch.setattr(Scratch, "seconds", lambda *_: pytest.fail("a recode was measured"))
    again = profiled(graph, known=less, estimates=True)
    assert again.recodes.keys() == found.recodes.keys()
    roofline = Roofline(load("H200"), "fp32")
    for (source, target, dtype), samples in again.recodes.items():
        if is_packed(source) or is_packed(target):
            continue
        for nbytes, seconds in samples:
            rows = nbytes // KIB
            buffer = Buffer("m", Kind.MAP, (rows, KIB // DTYPE_NBYTES[dtype]), dtype, rows)
            assert seconds == pytest.approx(roofline.recode_s(buffer, rows, source, target))


def links_of(sheet: str) -> dict[str, Link]:
    return {ENGINE: load(sheet).links[HOST]}


def test_a_gpu_with_a_known_chip_is_estimated_by_its_own_sheet(
    written: tuple[Profile, KnownLaunches], tmp_path: Path
) -> None:
    _, known = written
    of = {sheet: {**known.rates, "of": float(n)} for n, sheet in enumerate(SAME_CHIP)}
    for sheet, measured in SAME_CHIP.items():
        text = json.dumps(dumped(replace(known, sheet=sheet, rates=of[sheet])))
        (tmp_path / file_name(measured)).write_text(text)
    for gpu, sheet in (("NVIDIA H100 PCIe", "H100"), ("NVIDIA H200 NVL", "H200")):
        found = known_launches(gpu, tmp_path)
        assert found == KnownLaunches(sheet, rates=of[sheet], links=links_of(sheet))
    alone = KnownLaunches("A100", links=links_of("A100"))
    assert known_launches("NVIDIA A100-SXM4-80GB", tmp_path) == alone
    assert known_launches("NVIDIA H300", tmp_path) is NOTHING


def test_inside_a_budget_what_does_not_ship_is_measured(
    graph: Graph, written: tuple[Profile, KnownLaunches], launched: list[tuple[int, Forms]]
) -> None:
    _, known = written
    pass_ = graph.passes[0]
    gone = {digest(signature(graph, pass_, forms)) for forms in form_choices(pass_)}
    less = replace(known, samples={k: each for k, each in known.samples.items() if k not in gone})
    assert profiled(graph, known=less).estimated == frozenset()
    assert {index for index, _ in launched} == {0}


def test_rates_are_over_the_roofline(written: tuple[Profile, KnownLaunches]) -> None:
    _, known = written
    assert known.sheet == "H200"
    assert known.links == {"engine": LINK}
    assert "conv2d forward fp32" in known.rates
    assert list(known.rates.values()) == pytest.approx([SLOWER] * len(known.rates))


def test_a_gpu_has_the_data_sheet_in_its_name() -> None:
    assert sheet_of("NVIDIA H200") == "H200"
    assert sheet_of("NVIDIA H100 80GB HBM3") == "H100"
    with pytest.raises(InputError, match="no hardware profile 'NVIDIA X1'"):
        sheet_of("NVIDIA X1")
