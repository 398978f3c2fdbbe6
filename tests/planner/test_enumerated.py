"""auto beside the fastest of all plans of small networks, gap by gap."""

from math import inf

import pytest

from tests.support.drawn_networks import budgets_of, drawn_case
from tests.support.enumerated import Enumeration
from tvdnn.planner.make import make_schedule
from tvdnn.planner.timing.simulate import simulate

pytestmark = pytest.mark.usefixtures("units_of_one")

SEEDS = (0, 1, 3, 4, 5, 10)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_combination_of_means_is_faster(seed: int) -> None:
    case = drawn_case(seed)
    enumeration = Enumeration(case.graph, case.costs)
    for capacity in budgets_of(case, enumeration):
        budget = case.graph.fixed_nbytes + capacity
        schedule = make_schedule(case.graph, case.costs, budget=budget)
        assert schedule.peak_nbytes <= budget
        seconds = simulate(schedule, case.costs).step_s
        best = enumeration.fastest(capacity, seconds / 1.02)
        assert best.complete
        assert best.schedule is None, best.decisions
        assert seconds < inf
