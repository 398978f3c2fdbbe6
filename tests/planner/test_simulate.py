"""The simulator's times, stalls and bytes, against arithmetic done by hand."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from tests.support.schedules.coded import CODE_NBYTES, MAP_NBYTES, Rest, coded_schedule
from tests.support.schedules.example import example_schedule
from tests.support.schedules.maker import FIXED_NBYTES, ScheduleMaker, buffer, graph_of, launchable
from tvdnn.errors import ScheduleError
from tvdnn.graph import BITS, RAW, Buffer, Form, Graph, Kind, Pass, Use
from tvdnn.planner.ir.costs import Forms, Link, Links
from tvdnn.planner.ir.plan import HOST
from tvdnn.planner.ir.schedule import Lane, Schedule
from tvdnn.planner.ir.timeline import Timeline, recode_s
from tvdnn.planner.timing.memory_profile import average_nbytes, memory_profile
from tvdnn.planner.timing.simulate import simulate
from tvdnn.planner.verify.check import check

RECODED_ROW_S, CODE_S = 0.125, 0.25


@dataclass(frozen=True, slots=True)
class HandCosts:
    """A launch takes its pass's seconds a row, one by default, and `CODE_S` a code."""

    links: Links
    row_s: Mapping[str, float]
    hardware: str = "by hand"
    measured: bool = False

    def launch_s(self, pass_: Pass, rows: int, forms: Forms = ()) -> float:
        return rows * self.row_s.get(pass_.name, 1.0) + len(forms) * CODE_S

    def recode_s(self, buffer: Buffer, rows: int, source: Form, target: Form) -> float:
        assert (source, target) == (RAW, BITS)
        return rows * RECODED_ROW_S

    def min_pass_s(self, pass_: Pass) -> float:
        return self.launch_s(pass_, pass_.domain)


EVEN = HandCosts({HOST: Link(64, 64, 32, 32, 0.0)}, {})
UNEVEN = HandCosts({HOST: Link(64, 128, 32, 64, 0.25)}, {})
HALF_HOLD = HandCosts({HOST: Link(64, 64, 32, 32, 0.0)}, {"hold": 0.5})


def graph() -> Graph:
    """p (64 bytes) and q (128) are made and used, r is the caller's and is held; one row each."""
    sizes = {"p": 16, "q": 32, "r": 16}
    kinds = {"p": Kind.MAP, "q": Kind.GRAD, "r": Kind.INPUT}
    whole = {name: Use(name) for name in sizes}
    return graph_of(
        [buffer(name, 1, width, 1, kinds[name]) for name, width in sizes.items()],
        (
            launchable("make_p", 1, 1, (), (whole["p"],)),
            launchable("make_q", 1, 1, (), (whole["q"],)),
            launchable("hold", 1, 1, (whole["r"],), ()),
            launchable("use_p", 1, 1, (whole["p"],), ()),
            launchable("use_q", 1, 1, (whole["q"],), ()),
        ),
        inputs=("r",),
        outputs=(),
    )


def schedule(*, hold_first: bool) -> Schedule:
    """p leaves and returns, q leaves meanwhile; p returns over r where r is not held first."""
    maker = ScheduleMaker(graph(), arena_nbytes=256, slab_nbytes=192)
    maker.place("p", 0)
    maker.place("q", 64)
    maker.place("r", 192)
    if hold_first:
        maker.launch("hold", 0, 1)
    maker.launch("make_p", 0, 1)
    maker.offload("p", 0, 0)
    maker.launch("make_q", 0, 1)
    if not hold_first:
        maker.launch("hold", 0, 1)
    maker.offload("q", 0, 64)
    maker.prefetch("p", 0, 0, 192)
    maker.launch("use_p", 0, 1)
    maker.launch("use_q", 0, 1)
    made = maker.build()
    check(made)
    return made


def times(timeline: Timeline, made: Schedule) -> dict[str, tuple[float, float]]:
    """Start and end of every step by its name, without rows."""
    names = (made.step_name(span.step).rsplit(" [", 1)[0] for span in timeline.spans)
    return dict(zip(names, ((s.start_s, s.end_s) for s in timeline.spans), strict=True))


def test_what_lives_at_once_and_the_rest_of_the_arena() -> None:
    """q beside r, which is there from the start, or beside p, which is back: 192 of 256 bytes."""
    for hold_first in (False, True):
        made = schedule(hold_first=hold_first)
        assert made.max_live_nbytes == 192
        assert made.fragmentation == 0.25


def test_duplex_rate_until_the_other_copy_ends() -> None:
    made = schedule(hold_first=True)
    timeline = simulate(made, HandCosts(EVEN.links, {"hold": 0.0}))
    assert times(timeline, made) == {
        "hold": (0, 0),
        "make_p": (0, 1),
        "offload p": (1, 2),  # 64 bytes alone at 64
        "make_q": (1, 2),
        "offload q": (2, 5),  # 64 bytes at 32, then 64 at 64
        "prefetch p": (2, 4),  # 64 bytes at 32
        "use_p": (4, 5),
        "use_q": (5, 6),
    }
    assert timeline.simulated
    assert timeline.step_s == 6
    assert timeline.stall_s == 2
    assert timeline.copy_s == 6
    assert timeline.overlap == pytest.approx(2 / 3)


def test_duplex_rate_from_when_the_other_copy_starts() -> None:
    made = schedule(hold_first=False)
    timeline = simulate(made, HALF_HOLD)
    found = times(timeline, made)
    assert found["hold"] == (2, 2.5)
    assert found["prefetch p"] == (2.5, 4.5)  # r is read there until 2.5; then 64 bytes at 32
    assert found["offload q"] == (2, 5)  # 32 bytes at 64, 64 at 32, 32 at 64
    assert timeline.stall_s == 2


def test_latency_and_uneven_rates() -> None:
    made = schedule(hold_first=True)
    timeline = simulate(made, HandCosts(UNEVEN.links, {"hold": 0.0}))
    found = times(timeline, made)
    assert found["offload p"] == (1, 2.25)
    assert found["prefetch p"] == (2.25, 3.5)  # latency, then 64 bytes at 64
    assert found["offload q"] == (2.25, 5.0)  # latency, 32 bytes at 32, 96 at 64
    assert timeline.stall_s == 1.5
    assert timeline.step_s == 5.5


def test_launches_alone_have_no_stall_and_no_overlap() -> None:
    maker = ScheduleMaker(graph(), arena_nbytes=256)
    for name, offset in (("p", 0), ("q", 64), ("r", 192)):
        maker.place(name, offset)
    for name in ("make_p", "make_q", "hold", "use_p", "use_q"):
        maker.launch(name, 0, 1)
    timeline = simulate(maker.build(), HALF_HOLD)
    assert timeline.step_s == 4.5
    assert timeline.stall_s == 0
    assert timeline.overlap is None


def test_second_half_waits_for_the_first_ones_copies() -> None:
    made = schedule(hold_first=True)
    early = replace(made, phase_split=len(made.steps) - 1)  # use_q alone in the second half
    timeline = simulate(early, HandCosts(EVEN.links, {"hold": 0.0, "use_p": 0.25}))
    found = times(timeline, early)
    assert found["use_p"] == (4, 4.25)
    assert found["use_q"] == (5, 6)  # offload q ends at 5
    assert timeline.stall_s == 2.75


def test_wait_that_cannot_end_is_named() -> None:
    made = schedule(hold_first=True)
    steps = list(made.steps)
    steps[0] = steps[0]._replace(waits=(2,))
    with pytest.raises(ScheduleError, match=r"no lane can go on: hold \[0, 1\) waits"):
        simulate(replace(made, steps=tuple(steps)), EVEN)


@pytest.mark.parametrize(
    ("rest", "recoded_s", "codes"), [(Rest.STAYS, 0, 0), (Rest.LEFT, 0, 4), (Rest.RECODED, 1, 2)]
)
def test_recodes_and_codes_take_their_seconds(rest: Rest, recoded_s: float, codes: int) -> None:
    """Four passes of eight rows, a second a row, and an eighth of a second a row recoded."""
    made = coded_schedule(rest)
    timeline = simulate(made, EVEN)
    assert timeline.step_s == 32 + recoded_s + codes * CODE_S
    assert recode_s(made, timeline) == recoded_s
    assert timeline.stall_s == 0


def test_a_code_that_is_away_is_copied_by_its_own_bytes() -> None:
    """Two offloads of 4 bytes at 64 a second, the second at 32 beside the first prefetch."""
    made = coded_schedule(Rest.AWAY)
    copies = [span for span in simulate(made, EVEN).spans if span.lane is Lane.OFFLOAD]
    assert [(span.start_s, span.end_s) for span in copies] == [(8.5, 8.5625), (8.5625, 8.6875)]
    assert made.step_name(copies[0].step) == "offload bits of m [0, 2)"
    assert made.offloaded_nbytes == CODE_NBYTES // 2


def test_memory_holds_codes_beside_maps() -> None:
    """m ends with its recodes, where its bytes become z's. Its code rests until the masks."""
    made = coded_schedule(Rest.RECODED)
    found = dict(memory_profile(made, simulate(made, EVEN)))
    assert found[16.5][Kind.MAP] == MAP_NBYTES + MAP_NBYTES // 2 + CODE_NBYTES
    assert found[17.0][Kind.MAP] == 2 * MAP_NBYTES + CODE_NBYTES
    assert made.max_live_nbytes == 2 * MAP_NBYTES + CODE_NBYTES


def test_a_code_of_what_the_caller_holds_lives_between_its_uses() -> None:
    """An input that is an output, too, lives all the time, its code of two bytes does not."""
    held, other = buffer("x", 2, 8, 2, Kind.INPUT), buffer("z", 2, 8, 2)
    passes = (
        launchable("make", 2, 2, (), (Use("z"),)),
        launchable("look", 2, 2, (Use("x", forms=(BITS,)),), ()),
        launchable("again", 2, 2, (), (Use("z"),)),
    )
    maker = ScheduleMaker(graph_of([held, other], passes, ("x",), ("x",)), arena_nbytes=194)
    maker.place("x", 192, form=BITS)
    maker.place("x", 0)
    for number, name in enumerate(("make", "look", "again")):
        if name == "look":
            maker.recode("x", 0, 2, RAW, BITS)
        else:
            maker.place("z", 64 + 32 * number)
        maker.launch(name, 0, 2, (("x", BITS),) if name == "look" else ())
    made = maker.build()
    assert made.max_live_nbytes == 128
    levels = [sum(kinds.values()) for _, kinds in memory_profile(made, simulate(made, EVEN))]
    assert levels == [128, 66, 128, 0]


def test_no_steps_take_no_time() -> None:
    empty = ScheduleMaker(graph(), arena_nbytes=0).build()
    timeline = simulate(empty, EVEN)
    assert timeline.step_s == 0
    assert average_nbytes(empty, timeline) == FIXED_NBYTES
    assert memory_profile(empty, timeline) == ()


def test_bytes_over_time() -> None:
    made = schedule(hold_first=False)
    timeline = simulate(made, HALF_HOLD)
    assert memory_profile(made, timeline) == (
        (0.0, {Kind.INPUT: 64, Kind.MAP: 64, Kind.GRAD: 0}),
        (1.0, {Kind.INPUT: 64, Kind.MAP: 64, Kind.GRAD: 128}),
        (2.0, {Kind.INPUT: 64, Kind.MAP: 0, Kind.GRAD: 128}),  # p has left
        (2.5, {Kind.INPUT: 0, Kind.MAP: 64, Kind.GRAD: 128}),  # and returns over r
        (5.5, {Kind.INPUT: 0, Kind.MAP: 0, Kind.GRAD: 128}),
        (6.5, {Kind.INPUT: 0, Kind.MAP: 0, Kind.GRAD: 0}),
    )
    held = 64 * 2.5 + 64 * 2 + 64 * 3 + 128 * 5.5  # r, p, p again, q
    assert average_nbytes(made, timeline) == pytest.approx(FIXED_NBYTES + held / 6.5)


def test_the_example_keeps_lanes_waits_and_arena() -> None:
    made = example_schedule()
    timeline = simulate(made, UNEVEN)
    ends = dict.fromkeys(Lane, 0.0)
    for step, span in zip(made.steps, timeline.spans, strict=True):
        ready = [timeline.spans[wait].end_s for wait in step.waits]
        assert span.start_s == max([ends[step.lane], *ready])
        ends[step.lane] = span.end_s
    levels = [sum(kinds.values()) for _, kinds in memory_profile(made, timeline)]
    assert max(levels) <= made.arena_nbytes
    assert levels[-1] == 0
    assert min(levels) >= 0
