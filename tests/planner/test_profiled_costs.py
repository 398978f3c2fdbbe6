"""Measured costs: samples by forms, interpolated, and those of recodes."""

from dataclasses import replace
from itertools import permutations

import pytest

from tests.support.schedules.coded import (
    BATCH,
    CODE,
    CODE_NBYTES,
    MAP_NBYTES,
    coded_graph,
)
from tvdnn.graph import BITMAP, BITS, RAW, Buffer, Direction, Form, Kind, Pass, Use, with_share
from tvdnn.planner.ir.costs import Link, Profile, Roofline, form_choices, slowest
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.plan import HOST
from tvdnn.planner.timing.calibrate import CalibratedCosts, recode_name

LINK = Link(1.0, 1.0, 1.0, 1.0, 0.0)
TWO = (("a", BITS), ("b", BITS))
RECODE = (RAW, BITS, "float32")


def launch(reads: tuple[Use, ...], writes: tuple[Use, ...]) -> Pass:
    return Pass("p", "op", "forward", Direction.FORWARD, 12, 1, reads, writes)


def test_a_launch_takes_what_its_forms_took() -> None:
    samples = {
        frozenset(): ((1, 2.0), (5, 10.0)),
        frozenset({("a", BITS)}): ((1, 1.0), (5, 3.0)),
        frozenset(TWO): ((1, 4.0),),
    }
    costs, pass_ = Profile("by hand", LINK, {"p": samples}), launch((), ())
    assert [costs.launch_s(pass_, rows) for rows in (1, 3, 5, 10)] == [2.0, 6.0, 10.0, 20.0]
    assert [costs.launch_s(pass_, rows, TWO[:1]) for rows in (1, 3, 10)] == [1.0, 2.0, 6.0]
    assert {costs.launch_s(pass_, 2, forms) for forms in permutations(TWO)} == {8.0}
    with pytest.raises(KeyError):
        costs.launch_s(pass_, 1, TWO[1:])


def test_the_least_of_a_pass_is_in_any_of_its_forms() -> None:
    samples = {frozenset(): ((1, 2.0), (4, 4.0)), frozenset(CODE): ((1, 3.0), (4, 2.0))}
    assert Profile("by hand", LINK, {"p": samples}).min_pass_s(launch((), ())) == 6.0


def test_a_recode_is_interpolated_over_its_raw_bytes() -> None:
    """Fewer bytes than the least sample take as long as it does."""
    costs = Profile("by hand", LINK, {}, {RECODE: ((256, 1.0), (1024, 2.0))})
    buffer = Buffer("m", Kind.MAP, (64, 16), "float32", 4)
    taken = [costs.recode_s(buffer, rows, RAW, BITS) for rows in (1, 4, 10, 16, 64)]
    assert taken == [1.0, 1.0, 1.5, 2.0, 8.0]
    with pytest.raises(KeyError):
        costs.recode_s(buffer, 1, BITS, RAW)


def test_recodes_of_packed_codes_take_the_same_seconds_whatever_the_capacity() -> None:
    samples = {(BITMAP, RAW, "bfloat16"): ((256, 1.0),)}
    costs = CalibratedCosts(
        Profile("by hand", LINK, {}, samples), {recode_name(BITMAP, RAW): 3.0}, LINK
    )
    buffer = Buffer("m", Kind.MAP, (64, 16), "bfloat16", 8)
    forms = [with_share(BITMAP, share) for share in (0.0, 0.3, 1.0)]
    assert [costs.recode_s(buffer, 8, form, RAW) for form in forms] == [3.0] * 3


def test_a_data_sheet_counts_the_bytes_of_both_forms() -> None:
    hardware, graph = load("H200"), coded_graph()
    costs = Roofline(hardware, "fp32")
    rate = hardware.bandwidth * hardware.memory_efficiency
    taken_s = costs.recode_s(graph.buffers["m"], BATCH, RAW, BITS)
    assert taken_s == pytest.approx(hardware.launch_s + (MAP_NBYTES + CODE_NBYTES) / rate)
    mask = graph.passes[-1]
    saved_s = costs.launch_s(mask, BATCH) - costs.launch_s(mask, BATCH, CODE)
    assert saved_s == pytest.approx((MAP_NBYTES - CODE_NBYTES) / rate)
    assert costs.min_pass_s(mask) == costs.launch_s(mask, BATCH, CODE)


def test_every_choice_of_forms_comes_once_and_raw_first() -> None:
    reads = (Use("a", forms=(BITS,)), Use("a", forms=(BITS,), neighbour=1), Use("x"))
    writes = (Use("b", also=(BITS,)), Use("y"))
    a, b = TWO
    assert form_choices(launch(reads, writes)) == ((), (b,), (a,), (a, b))
    assert form_choices(launch((Use("x"),), (Use("y"),))) == ((),)
    several = launch((Use("a", forms=("one", "two")),), ())
    assert form_choices(several) == ((), (("a", "one"),), (("a", "two"),))


def test_machines_that_work_together_take_what_the_slowest_takes() -> None:
    raw, fast, slow = frozenset[tuple[str, Form]](), Link(2.0, 2.0, 2.0, 2.0, 0.0), LINK
    first = Profile("a", {HOST: fast}, {"p": {raw: ((1, 2.0), (4, 4.0))}, "q": {raw: ((1, 1.0),)}})
    other = Profile("b", {HOST: slow}, {"p": {raw: ((1, 1.0), (4, 9.0))}, "q": {raw: ((2, 5.0),)}})
    found = slowest([first, other])
    assert isinstance(found, Profile)
    assert found.samples == {"p": {raw: ((1, 2.0), (4, 9.0))}, "q": {raw: ((1, 1.0),)}}
    assert found.links == {HOST: slow}
    assert slowest([first]) == first
    sheet = Roofline(load("H200"), "bf16")
    assert slowest([sheet, replace(sheet, dtype="tf32")]) == sheet
