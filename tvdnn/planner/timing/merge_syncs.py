"""Merging of sync points: launches and copies synchronise at as few places as suffice.

On a GPU a sync point is one kernel between two launches, whatever the number of waits it serves.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from ..ir.costs import Costs
from ..ir.schedule import Lane, Schedule
from ..ir.timeline import Timeline
from ..lowering.lane_counters import cross_lane_waits
from ..lowering.waits import with_waits
from .simulate import simulate

# Share of the step by which a step that others wait for is predicted to have ended. Without it,
# where costs are 3% off, VGG-16(256) in 4.3 GiB would take 0.3 ms more of 60.
SLACK = 0.01


class _SyncNeed(NamedTuple):
    """Launches and a copy that must synchronise before one of the launches [first, last]."""

    first: int
    last: int
    copy: int
    copy_waits: bool  # for the launches before; else that launch waits for the copy


def merge_sync_points(schedule: Schedule, costs: Costs) -> Schedule:
    """The schedule with waits that synchronise its lanes less often, in the same time.

    A copy may wait for later launches if it is predicted to start later still. A launch may wait
    for a copy that is predicted to end long before it. Both can then use the sync points of other
    waits.
    """
    if all(step.lane is Lane.COMPUTE for step in schedule.steps):
        return schedule
    timeline = simulate(schedule, costs)
    before = [set(step.waits) for step in schedule.steps]
    split, end = schedule.phase_split, len(schedule.steps)
    for phase in (range(split), range(split, end)):
        launches = [index for index in phase if schedule.steps[index].lane is Lane.COMPUTE]
        for number, needs in _sync_points(_needs(schedule, timeline, phase, launches)):
            for need in needs:
                if need.copy_waits:
                    before[need.copy].add(launches[number - 1])
                else:
                    before[launches[number]].add(need.copy)
    return replace(schedule, steps=with_waits(schedule.steps, before))


def _needs(
    schedule: Schedule, timeline: Timeline, phase: range, launches: list[int]
) -> Iterator[_SyncNeed]:
    """The sync needs of a phase, where waits name earlier steps."""
    spans, slack_s = timeline.spans, SLACK * timeline.step_s
    starts_s = [spans[index].start_s for index in launches]
    ends_s = [spans[index].end_s for index in launches]
    for index, awaited in cross_lane_waits(schedule.steps, phase.start, phase.stop).items():
        number = bisect_left(launches, index)
        for lane, count in awaited.items():
            other = count - 1
            if Lane.REDUCE in (lane, schedule.steps[index].lane):
                continue  # to wait earlier for another process would cost more than a sync point
            if lane is Lane.COMPUTE:
                first = bisect_right(launches, other)
                last = min(number, bisect_right(ends_s, spans[index].start_s - slack_s))
                yield _SyncNeed(first, max(first, last), index, True)
            elif schedule.steps[index].lane is Lane.COMPUTE:
                first = bisect_left(starts_s, spans[other].end_s + slack_s)
                first = max(first, bisect_left(launches, other))
                yield _SyncNeed(min(first, number), number, other, False)


def _sync_points(needs: Iterable[_SyncNeed]) -> Iterator[tuple[int, list[_SyncNeed]]]:
    """The fewest launches before which all needs are met, each with the needs that it meets."""
    met: list[_SyncNeed] = []
    for need in sorted(needs, key=attrgetter("last")):
        if met and need.first > met[0].last:
            yield _position(met), met
            met = []
        met.append(need)
    if met:
        yield _position(met), met


def _position(met: list[_SyncNeed]) -> int:
    """The first launch that meets all needs if copies wait, to delay them least; else the last."""

    copies_wait = any(need.copy_waits for need in met)
    return max(need.first for need in met) if copies_wait else met[0].last
