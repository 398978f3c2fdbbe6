"""Reports of schedules in which a map rests as sign bits."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.test_report import CASE, COSTS, FLOOR, text
from tests.support.schedules.coded import CODE_NBYTES, MAP_NBYTES, Rest, coded_schedule
from tests.support.schedules.rounded import RIGHT, rounded_schedule
from tvdnn.graph import BITS, FP8, RAW
from tvdnn.planner.ir.plan import Bridge, Plan
from tvdnn.planner.ir.schedule import Lane, Schedule
from tvdnn.planner.timing.simulate import simulate
from tvdnn.report import figures, tables
from tvdnn.report.maps import map_rows
from tvdnn.report.rows import Row, simulated_row
from tvdnn.report.traces import Held, Work, chrome_trace, moments


def row_of(schedule: Schedule) -> Row:
    return simulated_row(CASE, schedule, simulate(schedule, COSTS), FLOOR, bound_s=None)


@pytest.mark.parametrize(
    ("rest", "decision", "away", "coded"),
    [
        (Rest.STAYS, "keep", 0, 0),
        (Rest.LEFT, "bits", 0, 4),
        (Rest.RECODED, "bits", 0, 4),
        (Rest.AWAY, "bits + offload", 2, 4),
    ],
)
def test_a_map_is_told_by_how_it_rests(rest: Rest, decision: str, away: int, coded: int) -> None:
    schedule = coded_schedule(rest)
    (found,) = (row for row in map_rows(schedule) if row.name == "m")
    assert (found.decision, found.sections_away, found.sections_coded) == (decision, away, coded)
    assert row_of(schedule).coded_bytes == (MAP_NBYTES if coded else 0)


def test_a_code_beside_its_map_is_no_decision() -> None:
    """Where the raw sections last as long as their codes, the map is kept."""
    schedule = coded_schedule(Rest.LEFT)
    end = len(schedule.steps) - 1
    longer = (
        stay._replace(steps=(*stay.steps, end)) if (stay.buffer, stay.form) == ("m", RAW) else stay
        for stay in schedule.residencies
    )
    both = replace(schedule, residencies=tuple(longer))
    (found,) = (row for row in map_rows(both) if row.name == "m")
    assert (found.decision, found.sections_coded) == ("keep", 0)
    assert row_of(both).coded_bytes == 0


def test_rows_show_codes_and_recodes_where_there_are_any() -> None:
    schedule = coded_schedule(Rest.RECODED)
    row = row_of(schedule)
    assert row.recode_s == pytest.approx(
        2 * COSTS.recode_s(schedule.graph.buffers["m"], 4, RAW, BITS)
    )
    heads, *_ = text(tables.rows_table([row]))[1:]
    assert "coded recode ms" in heads
    kept = row_of(coded_schedule(Rest.STAYS))
    assert kept.recode_s == 0
    heads, *_ = text(tables.rows_table([kept]))[1:]
    assert "recode" not in heads
    assert "coded" not in heads


def test_a_trace_names_recodes_and_forms() -> None:
    schedule = coded_schedule(Rest.AWAY)
    events = chrome_trace(schedule, simulate(schedule, COSTS), title="a step")["traceEvents"]
    by_name = {event["name"]: event for event in events if event["ph"] == "X"}
    recodes = [event for event in by_name.values() if event["cat"] == Work.RECODE.value]
    assert [event["name"] for event in recodes] == [
        "recode m [0, 4) from raw to bits",
        "recode m [4, 8) from raw to bits",
    ]
    assert {event["tid"] for event in recodes} == {Lane.COMPUTE}
    assert by_name["offload bits of m [0, 2)"]["args"]["bytes"] == CODE_NBYTES // 4
    assert by_name["mask [0, 4)"]["args"]["forms"] == "bits of m"
    assert "forms" not in by_name["make [0, 4)"]["args"]


def test_memory_shows_codes_apart_from_maps() -> None:
    """A code that is copied is in flight, as a map is."""
    schedule = coded_schedule(Rest.AWAY)
    found = list(moments(schedule, simulate(schedule, COSTS)))
    most = {held: max(moment.nbytes[held.value] for moment in found) for held in Held}
    assert most[Held.MAPS_CODED] == most[Held.MAPS_IN_FLIGHT] == CODE_NBYTES // 2
    assert most[Held.MAPS_KEPT] >= 2 * MAP_NBYTES


def test_a_figure_of_recodes_is_written(tmp_path: Path) -> None:
    schedule, path = coded_schedule(Rest.AWAY), tmp_path / "step.svg"
    figures.draw(schedule, simulate(schedule, COSTS), path, title="a step", kept_nbytes=None)
    assert b"</svg>" in path.read_bytes()


def test_a_plan_tells_codes_from_what_leaves() -> None:
    bridges = (
        Bridge("m", 0, 2, 1, 3, 3, BITS),
        Bridge("m", 2, 2, 1, 3, 3, BITS, None),
        Bridge("n", 0, 1, 1, 3, 3),
    )
    plan = Plan("p", (), bridges, reasons={"m": "idle", "o": "1 ms for 1 MiB"})
    assert str(plan).splitlines() == [
        "p: 2 maps leave the device, 1 have a code",
        "  m: sections 0 to 1 as bits (idle)",
        "  m: sections 2 to 3 as bits on the device",
        "  n: sections 0 to 0 (planned so)",
        "  o: recomputed (1 ms for 1 MiB)",
    ]
    assert str(Plan("p", ())) == "p: no maps leave the device"


def test_reports_say_that_a_plan_is_lossy() -> None:
    both = (Bridge("m", 0, 4, 1, 3, 3, FP8, None), Bridge("m", 0, 4, 1, 4, 4, BITS, None))
    schedule = rounded_schedule(*RIGHT)
    schedule = replace(schedule, plan=replace(schedule.plan, bridges=both))
    assert str(schedule.plan).splitlines()[0] == (
        "hand: no maps leave the device, 1 have a code, 1 of them lossy: gradients are rounded"
    )
    (found,) = (row for row in map_rows(schedule) if row.name == "m")
    assert (found.decision, found.sections_coded) == ("bits + fp8 (lossy)", 2)
    row = row_of(schedule)
    assert row.lossy
    heads, _, line, *_ = text(tables.rows_table([row]))[1:]
    assert (heads.split()[-1], line.split()[-1]) == ("losses", "lossy")
    assert not row_of(coded_schedule(Rest.RECODED)).lossy
