"""The checker on lossy codes: what sees rounded values, and what must not."""

from dataclasses import replace

import pytest

from tests.support.faults.changes import at, kept
from tests.support.faults.harm import assert_no_harm
from tests.support.faults.table import CODE_FAULTS, CODES_HARMFUL, HARMFUL, Fault
from tests.support.schedules.restored import restored_schedule
from tests.support.schedules.rounded import RIGHT, rounded_schedule
from tvdnn.errors import ScheduleError
from tvdnn.graph import FP8, FP10, FP16, Form, Kind, Need
from tvdnn.planner.ir.schedule import Action
from tvdnn.planner.verify.check import check

FORWARD = ("make", "use", "round", "bits", "square")
ROUNDED = "m, which a lossy code has rounded"
ORDERS = {
    "as planned": RIGHT,
    "bits before the rounding": ("make", "use", "bits", "round", "square", *RIGHT[5:]),
    "decoded twice": (*FORWARD, "decode", "decode", "weigh", "mask"),
    "rounded again": (*FORWARD, "decode", "round", "decode", "weigh", "mask"),
    "exact values beside": ("make", "use", "round", "square", "weigh", "mask by values"),
    "exact until the mask": (*FORWARD, "weigh", "decode", "mask"),
    "made again": (*FORWARD[:3], "square", "decode", "weigh", "make again", "mask by values"),
    "made again with a code": (
        *("make", "use", "bits", "square", "make again and round", "decode", "weigh", "mask"),
    ),
    "away meanwhile": (*FORWARD, "decode", "away", "weigh", "mask"),
    "exact code of rounded values": (*FORWARD, "decode", "tf32", "decode tf32", "weigh", "mask"),
}
# By fault, the order of the steps, and the checker's words.
FAULTS = {
    "code before the last forward use": (
        ("make", "round", "use", "bits", "square", "decode", "weigh", "mask"),
        "makes a lossy code before step 3, use .*, a forward use of the map",
    ),
    "code that a launch leaves before the last forward use": (
        ("make and round", "use", "bits", "square", "decode", "weigh", "mask"),
        "makes a lossy code before step 1, use .*, a forward use of the map",
    ),
    "signs of values whose code a launch left": (
        ("make", "use", "square", "make again and round", "decode", "weigh", "mask by values"),
        rf"mask .* reads {ROUNDED}, for its sign",
    ),
    "forward reads rounded values": (
        ("make", "round", "decode", "use", "square", "weigh", "make again", "mask by values"),
        "makes a lossy code before .*, a forward use of the map",
    ),
    "recompute of rounded values": (
        (*FORWARD, "decode", "use again", "weigh", "mask"),
        rf"use .* reads {ROUNDED}, in a recompute",
    ),
    "signs of rounded values": (
        ("make", "use", "round", "square", "decode", "weigh", "mask by values"),
        rf"mask .* reads {ROUNDED}, for its sign",
    ),
    "signs of rounded values of one section": (
        ("make", "use", "round", "square", "weigh", "decode half", "mask by section"),
        rf"mask .* reads {ROUNDED}, for its sign",
    ),
    "bits of rounded values": (
        ("make", "use", "round", "square", "decode", "bits", "weigh", "mask"),
        f"makes the bits of {ROUNDED}",
    ),
    "signs of rounded values behind an exact code": (
        (*FORWARD[:3], "square", "decode", "tf32", "decode tf32", "weigh", "mask by values"),
        rf"mask .* reads {ROUNDED}, for its sign",
    ),
    "signs of rounded values back from the host": (
        ("make", "use", "round", "square", "decode", "away", "weigh", "mask by values"),
        rf"mask .* reads {ROUNDED}, for its sign",
    ),
    "decode before encode": (
        ("make", "use", "decode", "round", "bits", "square", "weigh", "mask"),
        "recode m .* reads m .* but nothing is there",
    ),
    "no code": (
        ("make", "use", "bits", "square", "decode", "weigh", "mask"),
        "recode m .* reads m .* but nothing is there",
    ),
    "recompute, from a code before it": (
        (*FORWARD, "decode", "weigh", "use again", "mask"),
        rf"use .* reads {ROUNDED}, in a recompute",
    ),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_backward_may_read_rounded_values(order: tuple[str, ...]) -> None:
    check(rounded_schedule(*order))


@pytest.mark.parametrize(("order", "words"), FAULTS.values(), ids=FAULTS)
def test_checker_names_what_sees_rounded_values(order: tuple[str, ...], words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        check(rounded_schedule(*order))


def test_outputs_are_exact() -> None:
    check(rounded_schedule(*FORWARD, "weigh", "mask", outputs=("m", "h")))
    with pytest.raises(ScheduleError, match=r"output m .* a lossy code has rounded it"):
        check(rounded_schedule(*RIGHT, outputs=("m", "h")))


@pytest.mark.parametrize("form", [FP16, FP10, FP8], ids=str)
def test_codes_of_rounded_values_are_as_large_as_their_form(form: Form) -> None:
    """In a schedule of several sections, some of which are away."""
    check(restored_schedule(form))


@pytest.mark.parametrize("form", [FP16, FP10], ids=str)
def test_a_code_is_not_taken_for_another(form: Form) -> None:
    """The step says that its code has the other form, in bytes of that form or in its own."""
    schedule = rounded_schedule(*RIGHT)
    found = 0
    for index, step in enumerate(schedule.steps):
        if step.action is Action.RECODE and step.reads[0].form == FP8:
            nbytes = {FP16: 2, FP10: 1.5}[form] * step.reads[0].nbytes
            for size in (step.reads[0].nbytes, round(nbytes)):
                wrong = kept(schedule, index, reads=at(step.reads, 0, form=form, nbytes=size))
                with pytest.raises(ScheduleError):
                    check(wrong)
                found += 1
    assert found == 4


def test_no_launch_reads_a_lossy_code() -> None:
    schedule = rounded_schedule(*RIGHT)
    code = next(
        step.reads[0]
        for step in schedule.steps
        if step.action is Action.RECODE and step.reads[0].form == FP8
    )
    index = next(i for i in range(len(schedule.steps)) if "weigh" in schedule.step_name(i))
    whole = code._replace(stop=8, nbytes=2 * code.nbytes)
    reads = (whole, *schedule.steps[index].reads[1:])
    with pytest.raises(ScheduleError, match=r"weigh .* on m in form .*fp8"):
        check(kept(schedule, index, reads=reads))


@pytest.mark.parametrize("kind", [Kind.AUX, Kind.GRAD])
def test_only_maps_are_rounded(kind: Kind) -> None:
    schedule = rounded_schedule(*RIGHT)
    buffers = schedule.graph.buffers
    graph = replace(schedule.graph, buffers={**buffers, "m": replace(buffers["m"], kind=kind)})
    with pytest.raises(ScheduleError, match=r"m in form .*fp8.*, which does not fit it"):
        check(replace(schedule, graph=graph))


@pytest.mark.parametrize("need", [Need.SIGN, Need.ARGMAX])
def test_what_a_pass_needs_decides(need: Need) -> None:
    """The right schedule is wrong where `weigh` wants more than values."""
    schedule = rounded_schedule(*RIGHT)
    passes = tuple(
        replace(each, reads=(replace(each.reads[0], need=need), *each.reads[1:]))
        if each.name == "weigh"
        else each
        for each in schedule.graph.passes
    )
    wrong = replace(schedule, graph=replace(schedule.graph, passes=passes))
    with pytest.raises(ScheduleError, match=f"weigh .* reads {ROUNDED}, for its {need.value}"):
        check(wrong)


@pytest.mark.parametrize("form", [FP16, FP10, FP8], ids=str)
@pytest.mark.parametrize("fault", CODE_FAULTS, ids=lambda fault: fault.name)
def test_checker_refuses_the_faults_of_all_codes(fault: Fault, form: Form) -> None:
    """Codes and rows exchanged, moved, lost, cut and out of order."""
    schedule = restored_schedule(form)
    mutants = [fault.seed(schedule, seed) for seed in range(3)]
    for mutant in (each for each in mutants if each is not None):
        with pytest.raises(ScheduleError):
            check(mutant)


def test_most_faults_of_codes_find_a_victim() -> None:
    schedule = restored_schedule(FP10)
    assert sum(fault.seed(schedule, 0) is not None for fault in CODE_FAULTS) >= 25


@pytest.mark.parametrize("form", [FP16, FP10, FP8], ids=str)
def test_checker_accepts_no_harm_to_lossy_codes(form: Form) -> None:
    assert_no_harm(restored_schedule(form), (*HARMFUL, *CODES_HARMFUL))
