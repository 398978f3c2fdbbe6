"""tvDNN's policies over budgets of small networks: from a floor that is true, never slower by more.

A plan is as near to the best as exhaustive search tells: so it is no further from those in less
memory, each of which is one in more as well.
"""

from math import inf

import numpy as np
import pytest

from tests.support.exhaustive import floor_found, small_case
from tests.support.lowered import lower
from tvdnn.errors import BudgetError
from tvdnn.graph import Graph
from tvdnn.placement import ALIGNMENT
from tvdnn.planner.ir.budgets import Budgets
from tvdnn.planner.ir.costs import Costs
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.lowering.lower import lower_with_prefetch
from tvdnn.planner.make import Problem
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.timing.memory_profile import memory_profile
from tvdnn.planner.timing.simulate import simulate

pytestmark = pytest.mark.usefixtures("units_of_one")

POLICIES = ("tvdnn-ilp", "tvdnn-heuristic")
BUDGETS = 50
NEAR = 1.01
SWEPT = {"tvdnn-ilp": 22, "tvdnn-heuristic": 4}  # seeds of networks
FLOORS = (("tvdnn-ilp", 1), ("tvdnn-ilp", 4), ("tvdnn-heuristic", 0), ("tvdnn-heuristic", 20))
TRUE = (  # seeds of networks: the floors of 157 and 393 take random orders
    ("tvdnn-ilp", (0, 157)),
    ("tvdnn-heuristic", (13, 393)),
    ("auto", (2, 157)),
    ("vdnn-dyn", (0, 13)),
    ("superneurons", (0, 13)),
    ("superneurons:memory:lru", (2, 157)),
)


@pytest.mark.parametrize("policy", POLICIES)
def test_fifty_budgets(policy: str) -> None:
    """Nothing planned or simulated passes its budget, and more memory costs no time."""
    graph, costs, _ = known_case(SWEPT[policy])
    kept = lower(graph, keep(graph), costs)
    problem, best_s = Problem(graph, costs), inf
    ends = problem.floor(policy)[0], kept.peak_nbytes
    for budget in np.ceil(np.linspace(*ends, BUDGETS)).astype(int).tolist():
        schedule = problem.within(budget).schedule(policy)
        assert resident_nbytes(schedule, costs) <= schedule.peak_nbytes <= budget
        step_s = simulate(schedule, costs).step_s
        assert step_s <= NEAR * best_s
        best_s = min(best_s, step_s)
    assert best_s == simulate(kept, costs).step_s


@pytest.mark.parametrize(("policy", "seed"), FLOORS)
def test_no_plan_is_below_the_floor(policy: str, seed: int) -> None:
    """From the floor on there are plans; a unit less has none, nor does a search find one there."""
    graph, costs, _ = known_case(seed)
    problem = Problem(graph, costs)
    floor, step = problem.floor(policy)
    for budget in (floor, floor + ALIGNMENT // 2):
        assert problem.within(budget).schedule(policy).peak_nbytes <= budget
    with pytest.raises(BudgetError) as raised:
        problem.within(floor - ALIGNMENT).schedule(policy)
    assert (raised.value.floor_nbytes, raised.value.step) == (floor, step)
    assert floor_found(graph, costs, floor) > floor - ALIGNMENT


@pytest.mark.parametrize(("policy", "seeds"), TRUE)
def test_floors_of_many_networks_are_true(policy: str, seeds: tuple[int, ...]) -> None:
    """Each has a plan, with a lead and no host memory to spare too; a little less has none."""
    for seed in seeds:
        graph, costs, _ = known_case(seed)
        problem = Problem(graph, costs)
        floor, _ = problem.floor(policy)
        plain = problem.within(floor).schedule(policy)
        with_host = problem.within(floor, plain.slab_nbytes)
        led = with_host.schedule(policy, lead=1)
        assert max(plain.peak_nbytes, led.peak_nbytes) <= floor
        for less in (1, 2 * ALIGNMENT):
            with pytest.raises(BudgetError):
                problem.within(floor - less).schedule(policy)


@pytest.mark.parametrize("seed", [1, 7])
def test_a_lead_makes_no_floor_higher(seed: int) -> None:
    """The plan at the floor stays: with all prefetches at the last moment it finds no place."""
    graph, costs, _ = known_case(seed)
    policy = "tvdnn-heuristic"
    problem = Problem(graph, costs)
    floor, _ = problem.floor(policy)
    plain, led = (problem.within(floor).schedule(policy, lead=lead) for lead in (None, 1))
    assert led.peak_nbytes <= floor
    late, budgets = plain.plan.with_prefetch_distance(1), Budgets.of(graph, floor)
    assert lower_with_prefetch(graph, late, costs, budgets) is None
    assert led.plan == plain.plan


def known_case(seed: int) -> tuple[Graph, Costs, int]:
    """A small network whose plans are few."""
    case = small_case(seed)
    assert case is not None
    return case


def resident_nbytes(schedule: Schedule, costs: Costs) -> int:
    """The most bytes on the device while the step is simulated, and those outside the arena."""
    profile = memory_profile(schedule, simulate(schedule, costs))
    return schedule.graph.fixed_nbytes + max(sum(held.values()) for _, held in profile)
