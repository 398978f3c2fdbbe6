"""Crossings: by them and the order of lanes no step runs before what it waits for; windows."""

import random

import pytest

from tests.networks import vgg
from tests.simulated import planned
from tvdnn.graph import Graph
from tvdnn.ops import Settings, expand
from tvdnn.planner.schedule import Lane, Schedule
from tvdnn.planner.simulate import COPY_LANES
from tvdnn.runtime import cuda
from tvdnn.runtime.crossings import crossings, joints


@pytest.fixture(scope="module")
def graph() -> Graph:
    return expand(vgg(8, (1, 1, 1, 1, 1), 64, 16), Settings("fp32", 64 << 10))


def run(schedule: Schedule, first: int, end: int, rng: random.Random) -> list[int]:
    """Steps in an order that the lanes may take by their counts alone."""
    steps, awaited = schedule.steps, crossings(schedule.steps, first, end)
    queues = {
        lane: [index for index in range(first, end) if steps[index].lane is lane] for lane in Lane
    }
    reached, ran = dict.fromkeys(Lane, first), list[int]()
    while any(queues.values()):
        ready = [
            lane
            for lane, queue in queues.items()
            if queue and all(reached[other] >= n for other, n in awaited[queue[0]].items())
        ]
        lane = rng.choice(ready)
        ran.append(queues[lane].pop(0))
        reached[lane] = ran[-1] + 1
    return ran


@pytest.mark.parametrize("policy", ["vdnn-all", "tvdnn-heuristic", "vdnn-all:p:sync"])
def test_lanes_run_no_step_before_what_it_waits_for(graph: Graph, policy: str) -> None:
    keep = planned(graph, "keep", None)
    schedule = planned(graph, policy, round(0.7 * keep.peak_nbytes))
    end, rng = len(schedule.steps), random.Random(0)
    assert any(step.lane is Lane.PREFETCH for step in schedule.steps)
    for _ in range(20):
        first = rng.choice([0, end // 2])
        place = {index: n for n, index in enumerate(run(schedule, first, end, rng))}
        for index, step in enumerate(schedule.steps[first:], first):
            assert all(place[wait] < place[index] for wait in step.waits if wait >= first)


def test_no_lane_waits_for_what_it_knows(graph: Graph) -> None:
    schedule = planned(graph, "vdnn-all", None)
    steps = schedule.steps
    awaited = crossings(steps, 0, len(steps))
    for lane in Lane:
        for other in Lane:
            counts = [awaited[n].get(other, 0) for n, step in enumerate(steps) if step.lane is lane]
            told = [count for count in counts if count]
            assert told == sorted(set(told))
            assert all(steps[count - 1].lane is other for count in told)


def test_a_plan_without_copies_has_none(graph: Graph) -> None:
    steps = planned(graph, "keep", None).steps
    assert not any(crossings(steps, 0, len(steps)).values())


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_windows_are_of_few_copies_and_as_long_as_these_allow(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(cuda, "WINDOW_COPIES", most)
    steps = planned(graph, "vdnn-all", None).steps
    first, end = len(steps) // 4, len(steps)
    windows = list(cuda.windows_of(steps, first, end))
    assert [index for window in windows for index in window] == list(range(first, end))

    def copies(window: range) -> int:
        return max(sum(steps[index].lane is lane for index in window) for lane in COPY_LANES)

    assert copies(range(first, end)) > 3
    assert all(copies(window) <= most for window in windows)
    longer = (range(window.start, window.stop + 1) for window in windows[:-1])
    assert all(copies(window) > most for window in longer)


def test_a_lane_waits_for_its_own_steps_in_windows_before(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "WINDOW_COPIES", 3)
    steps = planned(graph, "vdnn-all", None).steps
    windows = list(cuda.windows_of(steps, 0, len(steps)))
    found = joints(steps, windows)
    assert len(windows) > 3
    for window in windows:
        for lane in Lane:
            own = [index for index in window if steps[index].lane is lane]
            before = [n for n in range(window.start) if steps[n].lane is lane]
            joined = {index: found[index] for index in own if index in found}
            assert joined == ({own[0]: {lane: before[-1] + 1}} if own and before else {})


@pytest.mark.parametrize(("launches", "few"), [(1, 1), (16, 1), (17, 2), (33, 3), (1500, 94)])
def test_one_launch_in_sixteen_is_few(launches: int, few: int) -> None:
    assert cuda.few_of(launches) == few
