"""Paged arenas: the bits of keep, waits that order all that shares pages, and faults of pages."""

import random
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from tests.planner.test_auto import CLASSES, STEPS, stacked
from tests.support.examples import examples
from tests.support.running import random_batches, train
from tests.support.schedules.order import races
from tests.support.simulated import h200
from tvdnn.engine import training_graph
from tvdnn.errors import ScheduleError
from tvdnn.graph import Graph
from tvdnn.optim import SGD
from tvdnn.planner import make
from tvdnn.planner.ir.budgets import Budgets
from tvdnn.planner.ir.costs import Costs
from tvdnn.planner.ir.page_map import MOST_PAGES, PAGE_NBYTES, page_nbytes_for
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.make import Problem, make_schedule
from tvdnn.planner.offload.belady import skeletons
from tvdnn.planner.offload.paged_fit import placed_in_pages
from tvdnn.planner.offload.swap_problem import SwapProblem
from tvdnn.planner.problem import GraphProblem
from tvdnn.planner.recompute.skeleton import Skeleton
from tvdnn.planner.verify.check import check

PAGE = 4096
SMALL = {"batch": st.integers(4, 9), "sections": st.integers(2, 9), "share": st.floats(0.5, 0.9)}


def in_pages(
    graph: Graph, skeleton: Skeleton, share: float, page_nbytes: int | None = PAGE
) -> Schedule | None:
    """A schedule in so large a share of keep's arena, in pages; None where there is none."""
    costs = h200(graph)
    kept = make_schedule(graph, costs, policy="keep")
    arena = round(share * kept.arena_nbytes)
    limits = Budgets(graph.fixed_nbytes + arena, None, arena, page_nbytes)
    swap = SwapProblem(GraphProblem(graph, costs, limits), skeleton, "auto")
    found = placed_in_pages(swap, swap.greedy, None)
    return found and found.schedule


@cache
def paged() -> Schedule:
    """A schedule with many copies in a paged arena."""
    torch.manual_seed(0)
    net = stacked(random.Random(3), 3)
    x = torch.empty(8, 3, 16, 16)
    graph = training_graph(net, x, optimizer=SGD(momentum=0.9), sections=8)
    skeleton = next(iter(skeletons(graph, h200(graph))))
    found = in_pages(graph, skeleton, 0.7)
    assert found is not None
    return found


@pytest.mark.usefixtures("units_of_one")
@examples(12, **SMALL)
def test_steps_in_pages_have_the_bits_of_keep(
    seed: int, batch: int, sections: int, share: float
) -> None:
    torch.manual_seed(seed)
    net: nn.Module = stacked(random.Random(seed), 3)
    x = torch.empty(batch, 3, 16, 16)
    graph = training_graph(net, x, optimizer=SGD(momentum=0.9), sections=sections)
    found = in_pages(graph, random.Random(seed).choice([*skeletons(graph, h200(graph))]), share)
    if found is None:
        return
    assert found.pages is not None
    check(found)
    batches = random_batches(STEPS, tuple(x.shape), CLASSES, seed)
    kept = make_schedule(graph, h200(graph), policy="keep")
    outcome = train(net, found, batches, order_seed=seed)
    assert outcome.equals(train(net, kept, batches))
    assert outcome.touched_nbytes <= found.arena_nbytes


def test_there_are_more_addresses_than_bytes() -> None:
    schedule = paged()
    assert schedule.pages is not None
    assert schedule.addressed_nbytes > schedule.arena_nbytes == schedule.arena_nbytes // PAGE * PAGE
    assert schedule.peak_nbytes <= (schedule.budget_nbytes or 0)
    assert schedule.offloaded_nbytes > 0


def test_the_checker_misses_no_wait_between_steps_that_share_pages() -> None:
    schedule, rng, refused = paged(), random.Random(0), 0
    waiting = [index for index, step in enumerate(schedule.steps) if step.waits]
    for index in rng.sample(waiting, min(40, len(waiting))):
        step = schedule.steps[index]
        left = tuple(rng.sample(step.waits, len(step.waits) - 1))
        steps = list(schedule.steps)
        steps[index] = step._replace(waits=tuple(sorted(left)))
        mutant = replace(schedule, steps=tuple(steps))
        assert races(mutant)
        with pytest.raises(ScheduleError):
            check(mutant)
        refused += 1
    assert refused > 10


def test_the_checker_refuses_live_sections_in_one_page() -> None:
    schedule = paged()
    assert schedule.pages is not None
    table, refused = schedule.pages.table, 0
    rng = random.Random(1)
    stays = [each for each in schedule.residencies if each.nbytes >= PAGE]
    for _ in range(200):
        first, second = rng.sample(stays, 2)
        together = first.steps[0] < second.steps[0] < first.steps[-1]
        pages = -(-first.offset // PAGE), -(-second.offset // PAGE)
        if not together or pages[0] == pages[1]:
            continue
        spoiled = list(table)
        spoiled[pages[1]] = spoiled[pages[0]]
        mutant = replace(schedule, pages=schedule.pages._replace(table=tuple(spoiled)))
        with pytest.raises(ScheduleError):
            check(mutant)
        refused += 1
    assert refused > 5


@pytest.mark.parametrize("page", [-1, 10_000])
def test_the_checker_refuses_a_page_outside_the_arena(page: int) -> None:
    schedule = paged()
    assert schedule.pages is not None
    table = (page, *schedule.pages.table[1:])
    with pytest.raises(ScheduleError, match=r"virtual page 0 lies in page"):
        check(replace(schedule, pages=schedule.pages._replace(table=table)))


def test_the_checker_refuses_an_arena_of_no_whole_pages() -> None:
    schedule = paged()
    with pytest.raises(ScheduleError, match="are no number of pages"):
        check(replace(schedule, arena_nbytes=schedule.arena_nbytes + 1))


def test_nothing_is_placed_in_pages_where_a_device_maps_none() -> None:
    graph = paged().graph
    skeleton = next(iter(skeletons(graph, h200(graph))))
    assert in_pages(graph, skeleton, 0.7, page_nbytes=None) is None


@pytest.mark.parametrize(("maps", "page_nbytes"), [(True, PAGE_NBYTES), (False, None)])
def test_a_problem_says_whether_arenas_may_lie_in_pages(
    maps: bool, page_nbytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, found = paged().graph, set()

    def noted(graph: Graph, costs: Costs, budgets: Budgets, *others: object) -> GraphProblem:
        found.add(budgets.page_nbytes)
        return GraphProblem(graph, costs, budgets)

    monkeypatch.setattr(make, "GraphProblem", noted)
    problem = Problem(graph, h200(graph), paged=maps).within(paged().budget_nbytes)
    assert problem.schedule("vdnn-all").pages is None
    assert found == {page_nbytes}


def test_a_large_arena_has_large_pages() -> None:
    most = MOST_PAGES * PAGE_NBYTES
    found = [page_nbytes_for(nbytes) for nbytes in (0, most, most + 1, 2 * most, 2 * most + 1)]
    assert found == [PAGE_NBYTES, PAGE_NBYTES, 2 * PAGE_NBYTES, 2 * PAGE_NBYTES, 4 * PAGE_NBYTES]
    graph = paged().graph
    assert Budgets.of(graph, graph.fixed_nbytes + most + 1).page_nbytes == 2 * PAGE_NBYTES
