"""The reports: rows against numbers worked out by hand, decisions, tables and charts as printed."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console, RenderableType

from tvdnn import models
from tvdnn.engine import training_graph
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.schedule import Lane, Schedule
from tvdnn.planner.ir.timeline import Span, Timeline
from tvdnn.planner.make import make_schedule
from tvdnn.planner.timing.simulate import simulate
from tvdnn.report import charts, tables
from tvdnn.report.maps import MapRow, map_rows
from tvdnn.report.rows import (
    Case,
    Floor,
    Measurement,
    Row,
    against_keep,
    infeasible_row,
    measured_row,
    simulated_row,
)
from tvdnn.units import KIB, MIB

# Of a step: what no row knows whose plan does not fit.
STEP_KEYS = frozenset(
    {
        *("step_s", "predicted_s", "bound_s", "images_per_s", "peak_bytes", "planned_peak_bytes"),
        *("avg_bytes", "offloaded_bytes", "host_bytes", "fragmentation", "stall_s", "overlap"),
        *("slowdown", "loss", "coded_bytes", "recode_s", "file_bytes"),
    }
)
KEYS = STEP_KEYS | {
    *("net", "batch", "image_size", "dtype", "policy", "budget_bytes", "chunk_size"),
    *("hardware", "simulated", "infeasible", "floor_bytes", "baseline_bytes", "versions"),
}
VERSIONS: Mapping[str, str | None] = {"tvdnn": "0.1.0", "driver": None}
CASE = Case("lenet5", 64, 32, "fp32", "vdnn-all", 3 * MIB, 64 * KIB, "H200", VERSIONS)
FLOOR = Floor(2 * MIB, "conv grad_weight [0, 8)")
COSTS = Roofline(load("H200"), "fp32")

# LeNet-5(64): the image, conv1's map, pool1's and conv2's, in float32.
LENET_MOVED = 4 * 64 * (32 * 32 + 28 * 28 * 6 + 14 * 14 * 6 + 10 * 10 * 16)


def lenet_schedule(policy: str) -> Schedule:
    with torch.device("meta"):
        net, x = models.lenet5(), torch.empty(64, 1, 32, 32)
    graph = training_graph(net, x, chunk_size=CASE.chunk_size)
    return make_schedule(graph, COSTS, policy=policy, budget=None)


@pytest.fixture(scope="module")
def moved() -> Schedule:
    return lenet_schedule("vdnn-all")


@pytest.fixture(scope="module")
def kept() -> Schedule:
    return lenet_schedule("keep")


def measured(schedule: Schedule, policy: str, losses: tuple[float, ...], step_s: float) -> Row:
    measurement = Measurement(step_s, 2_900_000, losses[-1], losses=losses)
    case = replace(CASE, policy=policy)
    return measured_row(case, schedule, measurement, FLOOR, predicted_s=0.002, bound_s=0.001)


def text(renderable: RenderableType, width: int = 200) -> list[str]:
    """The lines of a renderable that hold anything, their words one blank apart."""
    console = Console(file=StringIO(), width=width)
    with console.capture() as captured:
        console.print(renderable)
    lines = (" ".join(line.split()) for line in captured.get().splitlines())
    return [line for line in lines if line]


# Rows


def test_a_simulated_row_says_what_the_schedule_and_its_timeline_do(moved: Schedule) -> None:
    timeline = simulate(moved, COSTS)
    row = simulated_row(CASE, moved, timeline, FLOOR, bound_s=0.001)
    assert (row.simulated, row.infeasible, row.step_s, row.peak_bytes) == (True, False, None, None)
    assert (row.predicted_s, row.bound_s) == (timeline.step_s, 0.001)
    assert row.images_per_s == 64 / timeline.step_s
    assert row.offloaded_bytes == LENET_MOVED
    assert (row.floor_bytes, row.floor_step) == (FLOOR.nbytes, FLOOR.step)
    assert (row.planned_peak_bytes, row.host_bytes) == (moved.peak_nbytes, moved.slab_nbytes)
    assert row.stall_s == timeline.stall_s
    assert row.avg_bytes is not None
    assert moved.graph.fixed_nbytes < row.avg_bytes < moved.peak_nbytes < row.baseline_bytes


def test_a_measured_row_without_a_timeline_leaves_out_what_only_that_tells(moved: Schedule) -> None:
    row = measured(moved, "vdnn-all", (0.75, 0.5), step_s=0.016)
    assert (row.simulated, row.step_s, row.images_per_s) == (False, 0.016, 4000.0)
    assert (row.predicted_s, row.bound_s) == (0.002, 0.001)
    assert (row.loss, row.losses, row.peak_bytes) == (0.5, (0.75, 0.5), 2_900_000)
    assert (row.stall_s, row.overlap, row.avg_bytes) == (None, None, None)


def test_a_measured_timeline_gives_stall_and_overlap(moved: Schedule) -> None:
    spans = simulate(moved, COSTS).spans
    timeline = Timeline(spans, simulated=False, stall_s=0.25e-3)
    measurement = Measurement(0.01, 1, 0.5, timeline)
    row = measured_row(CASE, moved, measurement, FLOOR, predicted_s=None, bound_s=None)
    assert (row.stall_s, row.predicted_s) == (0.25e-3, None)
    assert row.overlap == pytest.approx(1 - 0.25e-3 / timeline.copy_s)


def test_an_infeasible_row_has_its_floor_and_nothing_else() -> None:
    row = infeasible_row(CASE, FLOOR, baseline_nbytes=7, simulated=False, reason="too small")
    values = row.to_json()
    unknown = {key for key in values if values[key] is None}
    assert unknown == STEP_KEYS | {"losses", "equal", "feedback", "first_step_s", "peaks_bytes"}
    assert (values["infeasible"], values["floor_bytes"], values["baseline_bytes"]) == (
        True,
        2 * MIB,
        7,
    )
    assert (values["floor_step"], values["reason"]) == ("conv grad_weight [0, 8)", "too small")


def test_json_has_every_key_and_survives_a_round_trip(kept: Schedule) -> None:
    values = measured(kept, "keep", (0.5,), step_s=0.01).to_json()
    others = {"floor_step", "losses", "equal", "lossy", "feedback", "tuned", "reason"}
    others |= {"first_step_s", "world", "peaks_bytes"}
    assert set(values) == KEYS | others
    assert json.loads(json.dumps(values)) == {**values, "losses": [0.5]}


def test_rows_are_set_against_keep(kept: Schedule, moved: Schedule) -> None:
    rows = against_keep(
        [
            measured(moved, "vdnn-all", (0.75, 0.5), step_s=0.03),
            measured(kept, "keep", (0.75, 0.5), step_s=0.01),
            measured(kept, "keep", (0.75, 0.5), step_s=0.02),
            measured(moved, "vdnn-conv", (0.75, math.nextafter(0.5, 1)), step_s=0.01),
            infeasible_row(CASE, FLOOR, baseline_nbytes=7, simulated=False),
        ]
    )
    assert [row.slowdown for row in rows] == [pytest.approx(3), 1, 2, 1, None]
    assert [row.equal for row in rows] == [True, True, True, False, None]


def test_losses_that_are_no_numbers_are_compared_by_their_bits(
    kept: Schedule, moved: Schedule
) -> None:
    rows = against_keep(
        [
            measured(kept, "keep", (math.nan,), step_s=0.01),
            measured(moved, "vdnn-all", (math.nan,), step_s=0.01),
            measured(moved, "vdnn-conv", (math.inf,), step_s=0.01),
        ]
    )
    assert [row.equal for row in rows] == [True, True, False]


def test_a_row_is_only_set_against_keep_on_the_same_subject(
    kept: Schedule, moved: Schedule
) -> None:
    other = replace(measured(kept, "keep", (0.5,), step_s=0.01), batch=32)
    case, timeline = replace(CASE, policy="keep"), simulate(kept, COSTS)
    simulated = simulated_row(case, kept, timeline, FLOOR, bound_s=None)
    row = against_keep([other, simulated, measured(moved, "vdnn-all", (0.5,), step_s=0.01)])[-1]
    assert (row.slowdown, row.equal) == (None, None)


# Maps


def test_every_map_has_a_decision(moved: Schedule, kept: Schedule) -> None:
    rows = {row.name: row for row in map_rows(moved)}
    offloaded = ["input", "0", "2", "3"]
    assert [name for name, row in rows.items() if row.decision == "offload"] == offloaded
    assert {row.name: row.sections_away for row in rows.values() if row.sections_away} == {
        name: moved.graph.buffers[name].num_sections for name in offloaded
    }
    assert rows["2"].why == "input of 3"
    assert rows["target"].decision == "keep"
    assert {row.decision for row in map_rows(kept)} == {"keep", "free"}


def test_a_map_that_backward_does_not_read_is_free(kept: Schedule) -> None:
    backward = [pass_ for pass_ in kept.graph.passes if pass_.direction.value != "forward"]
    reads = {use.buffer for pass_ in backward for use in pass_.reads}
    for row in map_rows(kept):
        assert (row.decision == "free") == (row.name not in reads), row


# Tables


def test_the_table_leaves_out_columns_without_content(moved: Schedule) -> None:
    row = measured(moved, "vdnn-all", (0.75, 0.5), step_s=0.016)
    lines = text(tables.rows_table([row], note="A note."))
    assert lines[0] == "lenet5(64) 32x32 fp32, measured on H200"
    assert lines[1] == (
        "policy budget floor step ms images/s planned peak measured peak baseline offloaded "
        "predicted ms bound ms loss"
    )
    peak = f"{moved.peak_nbytes / MIB:.2f} MiB"
    assert lines[3].startswith(f"vdnn-all 3.00 MiB 2.00 MiB 16.0 4,000 {peak} 2.77 MiB ")
    assert lines[3].endswith(" 2.08 MiB 2.0 1.0 0.5000")
    assert lines[-1] == "A note."


def test_the_table_marks_losses_and_what_is_infeasible(kept: Schedule, moved: Schedule) -> None:
    rows = against_keep(
        [
            measured(kept, "keep", (0.5,), step_s=0.01),
            measured(moved, "vdnn-all", (0.5,), step_s=0.01),
            measured(moved, "vdnn-conv", (0.25,), step_s=0.01),
            infeasible_row(CASE, FLOOR, baseline_nbytes=7, simulated=False),
        ]
    )
    lines = text(tables.rows_table(rows))[3:]
    assert [line.endswith("as keep") for line in lines] == [True, True, False, False]
    assert lines[2].endswith("DIFFER")
    assert lines[3].startswith("vdnn-all 3.00 MiB 2.00 MiB infeasible")


def test_a_long_network_is_folded_to_runs_of_like_maps() -> None:
    def row(number: int, width: int) -> MapRow:
        shape, name = (8, width), f"layer.{number}"
        return MapRow(name, "map", shape, "float32", MIB, 2, 2, 0, "offload", "why")

    many = [row(number, 16 if number < 50 else 32) for number in range(80)]
    lines = text(tables.maps_table(many))
    assert lines[0] == "80 feature maps"
    assert lines[3:] == [
        "layer.0 .. layer.49 50 of 8x16 50.00 MiB 100 offload why, ...",
        "layer.50 .. layer.79 30 of 8x32 30.00 MiB 60 offload why, ...",
    ]
    assert len(text(tables.maps_table(many[:60]))) == 63


@pytest.mark.parametrize(
    ("away", "coded", "decision", "expected"),
    [
        (3, 0, "offload", "offload 3 sections"),
        (0, 4, "bits", "bits"),
        (0, 2, "bits", "bits 2 sections"),
        (3, 4, "bits + offload", "bits + offload 3 sections"),
        (0, 2, "bits + recompute", "bits 2 sections + recompute"),
    ],
)
def test_a_map_says_of_how_many_sections_a_decision_is(
    away: int, coded: int, decision: str, expected: str
) -> None:
    row = MapRow("m", "map", (8, 4), "float32", 128, 4, away, coded, decision, "why")
    assert text(tables.maps_table([row]))[-1] == f"m 8x4 128 B 4 {expected} why"


# Charts


def test_bars_are_as_high_as_their_shares() -> None:
    assert charts.bars([0.0, 0.001, 0.5, 0.999, 1.0, 7.0]) == " ▁▄███"


def test_busy_shares_of_spans_that_cross_cells() -> None:
    spans = [Span(Lane.COMPUTE, 0, 0.0, 0.5), Span(Lane.COMPUTE, 1, 1.5, 4.0)]
    assert charts.busy_shares(spans, 4.0, 4) == [0.5, 0.5, 1.0, 1.0]
    assert charts.busy_shares([], 0.0, 2) == [0.0, 0.0]


def test_memory_levels_reach_what_is_held_at_most(moved: Schedule) -> None:
    timeline = simulate(moved, COSTS)
    levels = charts.memory_levels(moved, timeline, 30)
    held = charts.fullest(moved, timeline)
    assert max(levels) == moved.graph.fixed_nbytes + sum(held.values())
    assert min(levels) >= moved.graph.fixed_nbytes


def test_the_memory_table_adds_up_to_the_peak(moved: Schedule) -> None:
    timeline = simulate(moved, COSTS)
    held = charts.fullest(moved, timeline)
    assert sum(held.values()) <= moved.arena_nbytes
    lines = text(charts.memory_table(moved, timeline))
    shares = [float(line.split()[-1].rstrip("%")) for line in lines[3:]]
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares))
    assert lines[3].split()[:3] == ["parameters", "241.04", "KiB"]


def test_the_lanes_chart_has_a_line_a_lane(moved: Schedule) -> None:
    lines = text(charts.lanes_chart(moved, simulate(moved, COSTS)))
    assert [line.split()[0] for line in lines] == ["compute", "offload", "prefetch", "memory"]
    assert f"peak {moved.peak_nbytes / MIB:.2f} MiB" in lines[-1]
