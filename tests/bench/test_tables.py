"""Generated pages: tables and figure from rows worked out by hand, and up to date."""

import json
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import everything, headline, markdown, networks, plans, tables
from bench.entries import Result, read
from bench.figure import Line, draw
from bench.sections import section
from tvdnn.report.rows import Row

GIB = 2**30
OWN = {"net": "vgg16", "batch": 256, "image_size": 224, "dtype": "bf16", "infeasible": False}
ROWS = [
    {**OWN, "policy": "torch eager", "step_s": 0.07, "max_memory_allocated": 12 * GIB},
    {**OWN, "policy": "keep", "step_s": 0.08, "peak_bytes": 10 * GIB, "equal": True},
    {
        **OWN,
        "policy": "vdnn-all",
        "budget_bytes": 6 * GIB,
        "step_s": 0.3,
        "predicted_s": 0.285,
        "images_per_s": 853.3,
        "planned_peak_bytes": 6 * GIB - 512,
        "peak_bytes": 6 * GIB - 512,
        "max_memory_allocated": 6 * GIB + GIB // 8,
        "offloaded_bytes": 7784103936,
        "stall_s": 0.2,
        "slowdown": 3.75,
        "wait_rate": 48e9,
        "link_rate": 50e9,
        "equal": True,
    },
    {**OWN, "policy": "vdnn-conv", "budget_bytes": 6 * GIB, "step_s": 0.25, "equal": True},
    {**OWN, "policy": "vdnn-dyn", "budget_bytes": 12 * GIB, "step_s": 0.08, "equal": True},
    {
        **OWN,
        "policy": "vdnn-conv",
        "budget_bytes": 4 * GIB,
        "infeasible": True,
        "floor_bytes": 4 * GIB + GIB // 4,
    },
]
FILE = {
    "title": "VGG-16",
    "note": "A note.",
    "environment": {"gpu": "H200", "commit": "c0ffee1"},
    "rows": ROWS,
}


@pytest.fixture
def results(tmp_path: Path) -> tuple[Result, ...]:
    (tmp_path / "vgg16.json").write_text(json.dumps(FILE))
    return read(tmp_path)


def cells(table: str) -> list[dict[str, str]]:
    """The rows of a Markdown table by heading."""
    head, _, *body = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
    )
    return [dict(zip(head, line, strict=True)) for line in body]


def answers(result: Result) -> dict[str, list[dict[str, str]]]:
    """The rows of each table of a section by the line above it."""
    parts = section(result, note="").split("\n\n")
    return {line: cells(table) for line, table in pairwise(parts) if table.startswith("| ")}


def opening(result: Result | None) -> str:
    return headline.opening(result, Path("overview.svg"))


def test_a_row_says_what_was_measured_question_by_question(results: tuple[Result, ...]) -> None:
    found = answers(results[0])
    key = {"policy": "vdnn-all", "budget": "6.00 GiB"}
    assert list(found) == [
        f"{question}, at commit c0ffee1:" for question in ("Time", "Memory", "Copies")
    ]
    time, memory, copies = found.values()
    assert time[2] == {
        **key,
        "step ms": "300.0",
        "images/s": "853",
        "predicted ms": "285.0 (-5.0%)",
        "slowdown": "3.75",
        "same bits as keep": "yes",
    }
    assert memory[2] == {
        **key,
        "planned peak": "6.00 GiB",
        "measured peak": "6.00 GiB",
        "by torch's counter": "6.12 GiB",
        "offloaded": "7.25 GiB",
    }
    assert copies == [{**key, "stall ms": "200.0", "link used while waiting": "96%"}]


def test_a_peer_and_an_infeasible_row_leave_blanks(results: tuple[Result, ...]) -> None:
    time, memory, _ = answers(results[0]).values()
    assert memory[0]["by torch's counter"] == "12.00 GiB"
    assert memory[0]["planned peak"] == "-"
    assert time[5]["step ms"].startswith("infeasible: floor 4.25 GiB")
    assert time[5]["images/s"] == "-"
    assert {row["policy"] for row in memory} == {"torch eager", "keep", "vdnn-all"}


def test_rows_of_several_commits_name_theirs(tmp_path: Path) -> None:
    rows = [ROWS[1], {**ROWS[2], "commit": "5ca1ab1"}]
    (tmp_path / "vgg16.json").write_text(json.dumps({**FILE, "rows": rows}))
    found = answers(read(tmp_path)[0])
    assert [row["commit"] for row in found["Time, at commits c0ffee1, 5ca1ab1:"]] == [
        "c0ffee1",
        "5ca1ab1",
    ]


def test_a_table_of_more_than_nine_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="10 columns"):
        markdown.table([str(number) for number in range(10)], [])


def test_different_bits_are_not_overlooked(tmp_path: Path) -> None:
    rows = [ROWS[0], ROWS[1], {**ROWS[2], "equal": False}]
    (tmp_path / "vgg16.json").write_text(json.dumps({**FILE, "rows": rows}))
    results = read(tmp_path)
    time = answers(results[0])["Time, at commit c0ffee1:"]
    assert [row["same bits as keep"] for row in time] == ["-", "yes", "NO"]
    assert "bit for bit" not in opening(headline.compared(results))


def test_a_delayed_run_is_told_apart_and_held_to_no_prediction(tmp_path: Path) -> None:
    rows = [ROWS[2], {**ROWS[2], "random_delays": True}]
    (tmp_path / "soak.json").write_text(json.dumps({**FILE, "rows": rows}))
    plain, delayed = answers(read(tmp_path)[0])["Time, at commit c0ffee1:"]
    assert (plain["random delays"], plain["predicted ms"]) == ("-", "285.0 (-5.0%)")
    assert (delayed["random delays"], delayed["predicted ms"]) == ("yes", "-")


def test_several_networks_are_told_apart(tmp_path: Path) -> None:
    rows = [ROWS[1], {**ROWS[1], "net": "alexnet", "batch": 7168}]
    (tmp_path / "deep.json").write_text(json.dumps({**FILE, "rows": rows}))
    found = answers(read(tmp_path)[0])["Time, at commit c0ffee1:"]
    assert [row["network"] for row in found] == ["vgg16(256)", "alexnet(7168)"]


def test_a_table_that_would_be_too_wide_leaves_the_relaxation_out(tmp_path: Path) -> None:
    """Rows of tuning have a network, a policy, a budget and sizes, and nearly all other columns."""
    more = {"bound_s": 0.25, "relaxed_s": 0.26}
    tuned = {"chunk_size": 1 << 24, "tuned": True}
    rows = [ROWS[1], ROWS[2] | more, ROWS[2] | more | tuned, ROWS[1] | {"net": "alexnet"}]
    headings = []
    for count in (2, 4):
        (tmp_path / "tuned.json").write_text(json.dumps({**FILE, "rows": rows[:count]}))
        (first, *_), *_ = answers(read(tmp_path)[0]).values()
        headings.append({*first})
    assert "relaxed ms" in headings[0]
    assert "relaxed ms" not in headings[1]
    assert "bound ms" in headings[0] & headings[1]


def test_a_sweep_is_one_row_of_its_times_over_those_with_memory_enough(tmp_path: Path) -> None:
    names = dict.fromkeys(field.name for field in fields(Row))
    swept = [
        Row(
            **{
                **names,
                **OWN,
                "policy": "auto",
                "budget_bytes": nbytes,
                "planned_peak_bytes": nbytes,
                **times,
            }
        )
        for nbytes, times in (
            (4, {"predicted_s": 0.4, "bound_s": 0.2}),
            (5, {"predicted_s": 0.3, "bound_s": 0.2}),
            (6, {"predicted_s": 0.2, "bound_s": 0.2}),
            (7, {"predicted_s": 0.2, "bound_s": 0.1}),
            (8, {"predicted_s": 0.1, "bound_s": 0.1}),
        )
    ]
    row = plans.swept_row(swept)
    assert row["budgets"] == [4, 5, 6, 7, 8]
    (tmp_path / "sweeps.json").write_text(json.dumps({**FILE, "rows": [row]}))
    assert answers(read(tmp_path)[0])["Plans, at commit c0ffee1:"] == [
        {
            "policy": "auto",
            "budgets": "5",
            "slower at the floor / 1/4 / 1/2 / 3/4": "4.00 / 3.00 / 2.00 / 2.00",
            "over the bound there": "2.00 / 1.50 / 1.00 / 2.00",
        }
    ]
    with pytest.raises(AssertionError):
        plans.swept_row(swept[::-1])


def test_the_figure_shows_peers_keep_and_the_fastest_at_each_budget_below_it(
    results: tuple[Result, ...],
) -> None:
    shown = headline.compared(results)
    assert shown is not None
    assert [(e.row.policy, e.row.budget_bytes) for e in shown.entries] == [
        ("torch eager", None),
        ("keep", None),
        ("vdnn-conv", 6 * GIB),
    ]
    caption = opening(shown)
    assert "torch eager takes 12.00 GiB and 70.0 ms a step" in caption
    assert "tvdnn (vdnn-conv) trains inside 6.00 GiB at 250.0 ms" in caption
    assert "at commit c0ffee1" in caption
    assert "bit for bit" in caption


def test_results_without_peers_make_no_figure(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text(json.dumps({**FILE, "rows": ROWS[1:]}))
    assert headline.compared(read(tmp_path)) is None
    assert headline.compared(()) is None


def test_bars_are_as_long_as_their_values() -> None:
    lines = [
        Line("eager & co", True, 12 * GIB, 12 * GIB, None, 0.1),
        Line("vdnn-all", False, 3 * GIB, 6 * GIB, 4 * GIB, 0.4),
    ]
    root = ElementTree.fromstring(draw("VGG-16", lines))
    bars = [
        (bar.get("class"), float(bar.get("width", "nan")))
        for bar in root.iter("{http://www.w3.org/2000/svg}rect")
    ]
    assert bars == [("peer", 220), ("peer", 55), ("own", 55), ("caller", 55), ("own", 220)]
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[3:] == [
        *("eager & co", "12.00 GiB", "100.0 ms"),
        *("vdnn-all, 4 GiB", "6.00 GiB", "400.0 ms"),
    ]


def test_every_result_of_a_gpu_can_be_made_again() -> None:
    made = {path.stem for path in tables.RESULTS.glob("*.json")}
    assert {name for name in made if not name.startswith("plans_")} <= set(everything.JOBS)
    assert set(everything.ALONE) <= set(everything.JOBS)


def test_a_file_has_the_rows_of_all_its_commands(tmp_path: Path) -> None:
    count = len(everything.JOBS["accuracy_bf16"])
    for number in reversed(range(count)):
        everything.join(tmp_path, "accuracy_bf16", tmp_path / "none")
        assert not (tmp_path / "accuracy_bf16.json").exists()
        rows = [{"part": number}] * (1 + number)
        document = {"title": "errors", "environment": {"commit": f"c{number}"}, "rows": rows}
        text = json.dumps(document)
        (tmp_path / f"accuracy_bf16.{number}.json").write_text(text)
    everything.join(tmp_path, "accuracy_bf16", tmp_path / "none")
    document = json.loads((tmp_path / "accuracy_bf16.json").read_text())
    assert document["title"] == "errors"
    assert [row["part"] for row in document["rows"]] == [0, 1, 1, 2, 2, 2]
    assert [row["commit"] for row in document["rows"]] == ["c0", "c1", "c1", "c2", "c2", "c2"]


def test_a_readme_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="needs one"):
        tables.fill("no marks", ())


def test_written_pages_are_up_to_date() -> None:
    stale = [path.name for path, text in tables.pages().items() if path.read_text() != text]
    assert stale == [], "run python -m bench.tables"


def test_ten_networks_stand_beside_torch() -> None:
    _, shown = headline.ten_networks(read(tables.RESULTS)).split("\n\n")
    rows = cells(shown)
    assert [row["network"].partition(",")[0] for row in rows] == list(headline.TEN)
    assert all(row[name] != "-" for row in rows for name in ("torch eager", "`keep`", "commit"))


def test_networks_are_counted_by_type_and_listed_by_name(tmp_path: Path) -> None:
    random = {
        "environment": {"gpu": "H200", "commit": "c0ffee1"},
        "networks": 1500,
        "outcomes": {"right": 1480, "torch fails": 10, "refused": 9, "wrong": 1},
        "median_ratio": 0.987,
    }
    (tmp_path / "random_cuda_bf16.json").write_text(json.dumps(random))
    about = {"library": "timm", "dtype": "bf16"}
    right = {**about, "name": "a", "tokens": False, "outcome": "right", "why": ""}
    why = "tvdnn cannot trace this network:\n  x.0: softmax of | at /there/x.py:3\n"
    rows = [
        {**right, "side": 64},
        {**right, "side": 97},
        {**about, "name": "b", "tokens": True, "outcome": "refused", "why": why, "side": 224},
    ]
    others = {
        "environment": {"gpu": "H200", "commit": "5ca1ab1"},
        "median_ratio": {"bf16": 1.0},
        "rows": rows,
    }
    (tmp_path / networks.OTHERS).write_text(json.dumps(others))
    _, shown, *_ = networks.markdown(tmp_path).split("\n\n")
    found = [[row[name] for name in networks.HEAD] for row in cells(shown)]
    assert found == [
        ["1,490 random", "H200", "bf16", "1,480", "1", "0", "9", "0.99", "c0ffee1"],
        [
            "1 of torchvision's and timm's, 2 with sizes",
            "H200",
            "bf16",
            "2",
            "0",
            "0",
            "0",
            "1.00",
            "5ca1ab1",
        ],
        [
            "1 of those with attention, 1 with sizes",
            "H200",
            "bf16",
            "0",
            "0",
            "0",
            "1",
            "",
            "5ca1ab1",
        ],
    ]
    lines = networks.by_name(tmp_path).splitlines()
    assert "On one H200, at commit 5ca1ab1:" in lines
    assert lines[-2:] == [
        "| timm | a |  | right at 64, right at 97 |  |",
        "| timm | b |  | refused at 224 | x.0: softmax of \\| |",
    ]
