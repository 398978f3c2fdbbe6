"""The zoo's tables and means, from rows worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import plain_rows
from bench import tables as pages
from bench.zoo import tables
from bench.zoo.networks import NAMES
from bench.zoo.ratios import Ratios, means_of, ratios_of
from bench.zoo.rows import AUTO, COMPILED, EAGER, GRAPHED, HALF, KEEP, VIRTUALIZED, geometric_mean

GIB = 2**30
ABOUT = {"gpu": "NVIDIA H200", "torch": "2.11", "commit": "c0ffee1"}
MARKS = ("figure", "networks")


def row(net: str, way: str, step_s: float, gib: float, **more: Any) -> dict[str, Any]:
    memory = {"measured_peak_bytes": round(gib * GIB), "planned_peak_bytes": round(gib * GIB)}
    timed = {"step_s": step_s, "first_step_s": 100 * step_s, "predicted_s": step_s / 2}
    about = {"net": net, "way": way, "dtype": "bf16", "environment": ABOUT}
    return {**about, **timed, **memory, **more}


def torchs(net: str) -> list[dict[str, Any]]:
    """Rows of eager, and of torch.compile: faster with graphs, smaller without."""
    compiled = row(net, COMPILED, 0.05, 4), row(net, GRAPHED, 0.04, 8)
    again = row(net, GRAPHED, 0.01, 1, again_in="second")
    return [row(net, EAGER, 0.08, 10), *compiled, again]


def tvdnns(net: str, step_s: float = 0.02) -> list[dict[str, Any]]:
    timed = (AUTO, step_s, 2), (KEEP, step_s, 3), (HALF, 0.03, 2), (VIRTUALIZED, 0.021, 2.5)
    return [row(net, *each) for each in timed]


def written(folder: Path, *nets: str, gpu: str = "h200") -> None:
    for name, made in (("torch", torchs), ("tvdnn", tvdnns)):
        rows = [each for net in nets for each in made(net)]
        (folder / f"{name}_{gpu}.json").write_text(json.dumps({"rows": rows}))


def test_the_geometric_mean_is_of_factors() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([0.25, 1.0, 2.0]) == pytest.approx(0.5 ** (1 / 3))
    assert geometric_mean([]) is None


def test_ratios_are_over_the_faster_and_over_the_smaller_compiled() -> None:
    found = ratios_of(torchs("resnet18"), tvdnns("resnet18"), "resnet18", "bf16")
    assert found == Ratios(0.5, 0.25, 0.5, 1.5, pytest.approx(1.05))
    other = ratios_of(torchs("resnet18"), tvdnns("resnet18", 0.08), "resnet18", "bf16")
    missing = ratios_of(torchs("vgg16"), [], "vgg16", "bf16")
    assert missing == Ratios(None, None, None, None, None)
    means = means_of([found, other, missing])
    assert means.time_over_compiled == pytest.approx(1.0)
    assert means.time_over_eager == pytest.approx(0.5)
    assert means.memory_over_compiled == pytest.approx(0.5)


def test_a_row_shows_a_network_and_the_last_one_the_means(tmp_path: Path) -> None:
    written(tmp_path, "vgg16", "resnet18")
    steps, first = (part for part in tables.markdown(tmp_path).split("\n\n") if part[0] == "|")
    assert steps.splitlines()[2:] == [
        f"| {net} | 80.0 | 40.0 | 20.0 | 0.50x | 0.25x | 4.00 GiB | 2.00 GiB, 0.50x | 30.0, 1.50x |"
        for net in ("resnet18(256)", "vgg16(256)")
    ] + ["| geometric mean |  |  |  | 0.50x | 0.25x |  | 0.50x | 1.50x |"]
    assert first.splitlines()[2] == (
        "| resnet18(256) | 5.0 | 2.0 | 0.50 | 2.00 GiB | 20.0 | 3.00 GiB | 21.0 | 1.05x |"
    )
    assert first.splitlines()[-1].endswith(" 1.05x |")


def test_a_row_without_times_tells_why(tmp_path: Path) -> None:
    written(tmp_path)
    error = {"net": "vgg16", "way": AUTO, "dtype": "bf16", "environment": ABOUT}
    rows = [{**error, "error": "UnsupportedOpError: tvdnn cannot | trace"}]
    (tmp_path / "tvdnn_h200.json").write_text(json.dumps({"rows": rows}))
    slow = {**error, "way": COMPILED, "error": "over 180 s"}
    (tmp_path / "torch_h200.json").write_text(json.dumps({"rows": [slow]}))
    text = tables.markdown(tmp_path)
    assert "| vgg16(256) | - | over 180 s | UnsupportedOpError | - | - | - | -, - | -, - |" in text
    assert "| vgg16(256) | over 180 s | UnsupportedOpError | - |" in text


def test_the_readmes_table_comes_from_the_zoo_once_all_ten_are_there(tmp_path: Path) -> None:
    assert set(tables.TEN) <= set(NAMES)
    assert len(tables.TEN) == 10
    assert tables.markdown(tmp_path) == ""
    written(tmp_path, *tables.TEN[1:], gpu="h100")
    assert tables.ten_networks(tmp_path) is None
    written(tmp_path, *tables.TEN)
    told, shown = (tables.ten_networks(tmp_path) or "").split("\n\n")
    assert told.startswith("Device memory and time of a training step on one NVIDIA H200")
    assert shown.splitlines()[2] == (
        "| vgg16(256) | 10.00 GiB, 80.0 ms | 4.00 GiB, 40.0 ms | 2.00 GiB, 20.0 ms "
        "| 2.00 GiB, 30.0 ms | c0ffee1 |"
    )
    assert len(shown.splitlines()) == 12


def test_the_readme_has_a_table_with_and_without_the_zoo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = "".join(f"<!-- {mark}: begin -->\n<!-- {mark}: end -->\n" for mark in MARKS)
    monkeypatch.setattr(pages, "ZOO", tmp_path)
    assert "resnext50" not in pages.fill(marks, ())
    written(tmp_path, *tables.TEN)
    assert "| resnext50_32x4d(128) |" in pages.fill(marks, ())


def test_plans_stand_with_their_refusals(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    sizes = {f"{name}_peak_bytes": GIB for name in ("keep", "auto", "half")}
    seconds = {"keep_s": 0.02, "auto_s": 0.02, "half_s": 0.025}
    planning = {"estimated_share": 0.25, "trace_cpu_s": 0.5, "half_plan_cpu_s": 4.0}
    rows = [
        {"net": "vgg16", **sizes, **seconds, **planning},
        {"net": "resnet18", "refused": "x.0: softmax of | at x.py:3\n"},
    ]
    document = {"environment": ABOUT, "rows": rows}
    (tmp_path / tables.PLANS.file).write_text(json.dumps(document))
    assert plain_rows.markdown(tmp_path, tables.PLANS).splitlines()[-2:] == [
        "| vgg16(256) | 1.00 GiB | 1.00 GiB | 20.0 | 25.0 | 1.25x | 25% | 0.5 | 4.0 |",
        "| resnet18(256), x.0: softmax of / at x.py:3  | - | - | - | - | - | - | - | - |",
    ]
