"""Lane waits: no step runs before the steps that it waits for; segments of captured steps."""

import random
from collections import Counter
from collections.abc import Sequence
from math import ceil

import pytest

from tests.support.networks import vgg
from tests.support.simulated import planned
from tvdnn.graph import Graph
from tvdnn.ops import Settings, expand
from tvdnn.planner.ir.schedule import Lane, Schedule
from tvdnn.planner.lowering.lane_counters import cross_lane_waits, graph_segment_waits
from tvdnn.runtime import segments as cut


@pytest.fixture(scope="module")
def graph() -> Graph:
    return expand(vgg(8, (1, 1, 1, 1, 1), 64, 16), Settings("fp32", 64 << 10))


def run(schedule: Schedule, segments: Sequence[range], rng: random.Random) -> list[int]:
    """Steps in an order that lanes may take by their counts alone, two segments at a time."""
    steps = schedule.steps
    awaited = {**cross_lane_waits(steps, segments[0].start, segments[-1].stop)}
    for index, before in graph_segment_waits(steps, segments).items():
        awaited[index] = {**awaited[index], **before}
    queues = [
        {lane: [index for index in segment if steps[index].lane is lane] for lane in Lane}
        for segment in segments
    ]
    reached, ran = dict.fromkeys(Lane, segments[0].start), list[int]()
    while any(left := [each for each in queues if any(each.values())]):
        ready = [
            queue
            for each in left[:2]
            for queue in each.values()
            if queue and all(reached[other] >= n for other, n in awaited[queue[0]].items())
        ]
        ran.append(rng.choice(ready).pop(0))
        reached[steps[ran[-1]].lane] = ran[-1] + 1
    return ran


@pytest.mark.parametrize(("copies", "launches"), [(1, 3), (3, 1000), (1000, 5), (1000, 1000)])
@pytest.mark.parametrize(
    "policy", ["vdnn-all", "superneurons", "tvdnn-heuristic", "vdnn-all:p:sync"]
)
def test_lanes_run_no_step_before_what_it_waits_for(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, policy: str, copies: int, launches: int
) -> None:
    monkeypatch.setattr(cut, "SEGMENT_COPIES", copies)
    monkeypatch.setattr(cut, "SEGMENT_LAUNCHES", launches)
    keep = planned(graph, "keep", None)
    schedule = planned(graph, policy, round(0.7 * keep.peak_nbytes))
    steps, rng = schedule.steps, random.Random(0)
    assert any(step.lane is Lane.PREFETCH for step in steps)
    for _ in range(20):
        first = rng.choice([0, len(steps) // 2])
        segments = list(cut.segments_of(steps, first, len(steps)))
        ran = run(schedule, segments, rng)
        place = {index: n for n, index in enumerate(ran)}
        for index, step in enumerate(steps[first:], first):
            assert all(place[wait] < place[index] for wait in step.waits if wait >= first)
        for lane in Lane:
            own = [index for index in ran if steps[index].lane is lane]
            assert own == sorted(own)


def test_no_lane_waits_for_what_it_knows(graph: Graph) -> None:
    schedule = planned(graph, "vdnn-all", None)
    steps = schedule.steps
    awaited = cross_lane_waits(steps, 0, len(steps))
    for lane in Lane:
        for other in Lane:
            counts = [awaited[n].get(other, 0) for n, step in enumerate(steps) if step.lane is lane]
            told = [count for count in counts if count]
            assert told == sorted(set(told))
            assert all(steps[count - 1].lane is other for count in told)


def test_a_plan_without_copies_has_none(graph: Graph) -> None:
    steps = planned(graph, "keep", None).steps
    assert not any(cross_lane_waits(steps, 0, len(steps)).values())


@pytest.mark.parametrize(("copies", "launches"), [(1, 40), (3, 1000), (1000, 7), (1000, 1000)])
def test_windows_are_of_few_steps_and_as_long_as_these_allow(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, copies: int, launches: int
) -> None:
    monkeypatch.setattr(cut, "SEGMENT_COPIES", copies)
    monkeypatch.setattr(cut, "SEGMENT_LAUNCHES", launches)
    steps = planned(graph, "vdnn-all", None).steps
    first, end = len(steps) // 4, len(steps)
    segments = list(cut.segments_of(steps, first, end))
    assert [index for segment in segments for index in segment] == list(range(first, end))

    def count(segment: range) -> Counter[Lane]:
        return Counter(steps[index].lane for index in segment)

    every = count(range(first, end))[Lane.COMPUTE]
    evenly = ceil(every / ceil(every / launches))
    most = {Lane.COMPUTE: evenly, Lane.OFFLOAD: copies, Lane.PREFETCH: copies}
    assert launches / 2 < evenly <= launches or every <= launches
    assert all(number <= most[lane] for each in segments for lane, number in count(each).items())
    for segment in segments[:-1]:
        lane = steps[segment.stop].lane
        assert count(segment)[lane] == most[lane]


def test_without_copies_a_window_has_all_launches(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut, "SEGMENT_LAUNCHES", 3)
    steps = planned(graph, "keep", None).steps
    assert list(cut.segments_of(steps, 0, len(steps))) == [range(len(steps))]


@pytest.mark.parametrize(("launches", "few"), [(1, 1), (4, 1), (5, 2), (9, 3), (384, 96)])
def test_one_launch_in_four_is_few(launches: int, few: int) -> None:
    assert cut.low_water_of(launches) == few
