"""Sync points: fewer of them, in the same time, and none earlier than its waits allow."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.networks import vgg
from tests.support.searching import few_trials
from tests.support.simulated import h200, planned
from tvdnn.graph import Graph
from tvdnn.ops import Settings, expand
from tvdnn.planner import make as planning
from tvdnn.planner.ir.schedule import Lane, Schedule
from tvdnn.planner.lowering.lane_counters import cross_lane_waits
from tvdnn.planner.timing.merge_syncs import SLACK, _sync_points, _SyncNeed, merge_sync_points
from tvdnn.planner.timing.simulate import simulate
from tvdnn.planner.verify.check import check


@pytest.fixture(scope="module")
def graph() -> Graph:
    return expand(vgg(32, (1, 1, 1, 1, 1), 64, 16), Settings("fp32", 256 << 10))


def by_hazards(graph: Graph, policy: str, share: float) -> Schedule:
    """The schedule in a share of keep's peak. Its lanes meet for each wait."""
    budget = round(share * planned(graph, "keep", None).peak_nbytes)
    with pytest.MonkeyPatch.context() as patch, few_trials():
        patch.setattr(planning, "merge_sync_points", lambda schedule, costs: schedule)
        return planned(graph, policy, budget)


def num_meetings(schedule: Schedule) -> int:
    """Launches before which the compute lane tells how far it has come, or waits for a copy."""
    steps, places = schedule.steps, set[int]()
    launches = [index for index, step in enumerate(steps) if step.lane is Lane.COMPUTE]
    for first, end in ((0, schedule.phase_split), (schedule.phase_split, len(steps))):
        for index, awaited in cross_lane_waits(steps, first, end).items():
            for lane, count in awaited.items():
                if lane is Lane.COMPUTE:
                    places.add(launches.index(count - 1) + 1)
                elif steps[index].lane is Lane.COMPUTE:
                    places.add(launches.index(index))
    return len(places)


@pytest.mark.parametrize("share", [0.6, 0.8])
@pytest.mark.parametrize("policy", ["vdnn-all", "tvdnn-heuristic", "vdnn-all:p:sync", "auto"])
def test_lanes_meet_less_often_in_the_same_time(graph: Graph, policy: str, share: float) -> None:
    before, costs = by_hazards(graph, policy, share), h200(graph)
    assert any(step.lane is Lane.PREFETCH for step in before.steps)
    after = merge_sync_points(before, costs)
    check(after)
    assert num_meetings(after) <= num_meetings(before)
    assert policy.endswith("sync") or num_meetings(after) < num_meetings(before)
    assert sum(len(step.waits) for step in after.steps) <= sum(len(s.waits) for s in before.steps)
    assert simulate(after, costs).spans == simulate(before, costs).spans


def test_what_waits_sooner_or_longer_has_slack(graph: Graph) -> None:
    before, costs = by_hazards(graph, "tvdnn-heuristic", 0.6), h200(graph)
    timeline = simulate(before, costs)
    moved = 0
    for step, old, span in zip(
        merge_sync_points(before, costs).steps, before.steps, timeline.spans, strict=True
    ):
        for wait in {*step.waits} - {*old.waits}:
            moved += 1
            assert timeline.spans[wait].end_s + SLACK * timeline.step_s <= span.start_s
    assert moved > 0


def test_schedules_are_made_with_few_meetings(graph: Graph) -> None:
    before, costs = by_hazards(graph, "tvdnn-heuristic", 0.6), h200(graph)
    with few_trials():
        made = planned(graph, "tvdnn-heuristic", before.budget_nbytes)
    assert made.steps == merge_sync_points(before, costs).steps


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=6))
def test_no_fewer_meetings_would_do(found: Sequence[tuple[int, int, bool]]) -> None:
    needs = [_SyncNeed(min(a, b), max(a, b), 0, waits) for a, b, waits in found]
    meetings = list(_sync_points(needs))
    for place, met in meetings:
        assert all(need.first <= place <= need.last for need in met)
    assert sorted(need for _, met in meetings for need in met) == sorted(needs)
    least = next(
        count
        for count in range(8)
        for places in combinations(range(7), count)
        if all(any(need.first <= place <= need.last for place in places) for need in needs)
    )
    assert len(meetings) == least
