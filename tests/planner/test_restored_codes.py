"""Bridges by codes that are decoded: the steps, the bytes and the seconds that they become."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.support.lowered import lower
from tests.support.schedules.maker import launchable
from tests.support.schedules.restored import (
    BATCH,
    MAP_NBYTES,
    SECTION,
    SECTIONS,
    restored_graph,
)
from tvdnn.errors import ScheduleError
from tvdnn.graph import BITS, RAW, TF32, Direction, Form, Need, Use
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.plan import HOST, Bridge, Plan, Segment, Slot, transfer_nbytes
from tvdnn.planner.ir.schedule import Action, Schedule
from tvdnn.planner.lowering.build_program import build_program
from tvdnn.planner.timing.simulate import seconds_alone, simulate
from tvdnn.planner.verify.check import check

GRAPH, COSTS = restored_graph(), Roofline(load("H200"), "fp32")
SEGMENTS = tuple(Segment((Slot(index),)) for index in range(len(GRAPH.passes)))


def bridge(form: Form, tier: str | None, sections: int = SECTIONS) -> Bridge:
    return Bridge("m", 0, sections, 1, 3, 3, form, tier)


def planned(*bridges: Bridge) -> Plan:
    return Plan("by hand", SEGMENTS, bridges)


def lowered(*bridges: Bridge) -> Schedule:
    schedule = lower(GRAPH, planned(*bridges), COSTS)
    check(schedule)
    return schedule


@pytest.mark.parametrize("tier", [None, HOST])
@pytest.mark.parametrize("sections", [1, SECTIONS])
def test_sections_are_encoded_and_decoded_one_by_one(tier: str | None, sections: int) -> None:
    schedule = lowered(bridge(TF32, tier, sections))
    kinds = Counter(
        (step.action, step.reads[0].form, step.writes[0].form)
        for step in schedule.steps
        if step.action is not Action.LAUNCH
    )
    copies = {(Action.COPY, TF32, TF32): 2 * sections} if tier else {}
    recodes = {(Action.RECODE, RAW, TF32): sections, (Action.RECODE, TF32, RAW): sections}
    assert kinds == recodes | copies
    assert schedule.offloaded_nbytes == (
        transfer_nbytes(GRAPH, bridge(TF32, tier, sections)) if tier else 0
    )


def test_a_code_takes_eighteen_of_thirty_two_bits() -> None:
    (code,) = {sum(s.nbytes for s in lowered(bridge(TF32, None)).residencies if s.form == TF32)}
    assert code * 32 == MAP_NBYTES * 18


def test_a_recode_takes_a_launch_and_the_bytes_of_both_forms() -> None:
    schedule = lowered(bridge(TF32, None))
    timeline, hardware = simulate(schedule, COSTS), load("H200")
    for span in timeline.spans:
        step = schedule.steps[span.step]
        if step.action is Action.RECODE:
            nbytes = step.reads[0].nbytes + step.writes[0].nbytes
            rate = hardware.bandwidth * hardware.memory_efficiency
            expected = hardware.launch_s + nbytes / rate
            assert seconds_alone(GRAPH, step, COSTS) == pytest.approx(expected, rel=1e-12)
            assert span.end_s - span.start_s == pytest.approx(expected, rel=1e-6)


def test_raw_values_that_have_left_return_for_a_code_to_be_made() -> None:
    """A reader takes the map's signs while the map is away; a code is made behind that reader."""
    signs = Use("m", need=Need.SIGN, forms=(BITS,))
    mask = launchable("mask", BATCH, SECTION, (signs,), (Use("y"),), Direction.BACKWARD)
    mask = replace(mask, form_nbytes={("m", BITS): 0.0})
    *forward, weigh = GRAPH.passes
    passes = (*forward, mask, weigh)
    graph = replace(GRAPH, passes=passes, phase_split=len(passes))
    segments = tuple(Segment((Slot(index),)) for index in range(len(graph.passes)))
    rows = "m", 0, SECTIONS
    away, left = Bridge(*rows, 1, 3, 3), Bridge(*rows, 1, 3, 3, BITS, None)
    plan = Plan("by hand", segments, (away, left, Bridge(*rows, 3, 4, 4, TF32, None)))
    schedule = lower(graph, plan, COSTS)
    check(schedule)
    moves = [step for step in schedule.steps if step.action is not Action.LAUNCH]
    forms = Counter((step.action, step.reads[0].form, step.writes[0].form) for step in moves)
    assert forms == {
        (Action.RECODE, RAW, BITS): 1,
        (Action.COPY, RAW, RAW): 2 * SECTIONS,
        (Action.RECODE, RAW, TF32): SECTIONS,
        (Action.RECODE, TF32, RAW): SECTIONS,
    }


def test_a_code_that_none_has_left_is_an_error() -> None:
    """The plan names a slot that does not use the map."""
    wrong = Bridge("m", 0, SECTIONS, 2, 3, 3, TF32, None)
    with pytest.raises(ScheduleError, match=r"tf32 of m section 0 .* slot 3, which none has left"):
        build_program(GRAPH, planned(wrong))
