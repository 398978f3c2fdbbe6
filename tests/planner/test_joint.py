"""The joint planner: the bits of keep, its linear programs below all plans, dives to whole maps."""

import random

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from tests.planner.test_auto import CLASSES, STEPS, residual, stacked
from tests.support.drawn_chains import random_costs
from tests.support.examples import examples
from tests.support.lowered import lower
from tests.support.running import random_batches, train
from tests.support.simulated import h200, planned, step_s
from tvdnn.engine import training_graph
from tvdnn.graph import Graph
from tvdnn.optim import SGD
from tvdnn.planner.ir.budgets import Budgets
from tvdnn.planner.joint import linear_program
from tvdnn.planner.joint.dive import dive
from tvdnn.planner.joint.lp import JointLP
from tvdnn.planner.joint.orders import JointChoice, Order, orders, staged_orders
from tvdnn.planner.joint.plan import joint_schedule
from tvdnn.planner.joint.ranked import NEAR_SEGMENTS, RankedColumns
from tvdnn.planner.joint.search import JointSearch, fastest_joint, fastest_ranked
from tvdnn.planner.lowering.timetable import schedule_within
from tvdnn.planner.make import Problem, make_schedule
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.problem import GraphProblem
from tvdnn.planner.verify.check import check

SMALL = {"batch": st.integers(2, 9), "sections": st.integers(2, 9), "fuse": st.booleans()}


def small_graph(seed: int, batch: int, sections: int, *, fuse: bool) -> tuple[nn.Module, Graph]:
    """A random network of convolutions and normalizations, and its training step."""
    torch.manual_seed(seed)
    net = stacked(random.Random(seed), 3)
    x = torch.empty(batch, 3, 12, 12)
    return net, training_graph(net, x, optimizer=SGD(momentum=0.9), sections=sections, fuse=fuse)


def drawn(rng: random.Random, order: Order) -> JointChoice:
    """Any absent columns, whether or not they go together, and any recomputes by block."""
    absent = (n for n in range(len(order.columns.absent)) if rng.random() < 0.5)
    blocks = (n for n in range(len(order.columns.blocks)) if rng.random() < 0.5)
    coded = (n for n in range(len(order.columns.coded)) if rng.random() < 0.5)
    firsts = ((n, order.columns.first_coded(n, rng.uniform(0.1, 1.0))) for n in coded)
    some = frozenset(each for each in firsts if each[1] >= 0)
    return JointChoice(frozenset(absent), frozenset(blocks), some, once=rng.random() < 0.5)


@pytest.fixture(scope="module")
def normalized() -> Graph:
    """A residual chain of which every map can be made again."""
    layers = [nn.Conv2d(3, 16, 3, padding=1)]
    layers += [nn.Sequential(residual(16), nn.ReLU()) for _ in range(6)]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))
    x = torch.empty(64, 3, 32, 32)
    return training_graph(net, x, optimizer=SGD(momentum=0.9), sections=4, fuse=True)


@pytest.fixture(scope="module")
def order(normalized: Graph) -> Order:
    return orders(normalized, h200(normalized))[0]


def test_less_memory_takes_no_less_and_all_of_it_only_the_launches(order: Order) -> None:
    most = int(order.skeleton.required.max())
    seconds = []
    for share in (1.0, 0.8, 0.6, 0.5):
        solution = JointLP(order.columns, round(share * most)).solve()
        assert solution is not None
        seconds.append(solution.step_s)
    assert seconds == sorted(seconds)
    assert seconds[0] == pytest.approx(order.skeleton.compute_s(order.columns.costs))
    assert seconds[0] < seconds[-1]


def test_a_host_without_room_leaves_only_recompute(order: Order) -> None:
    limit = round(0.6 * order.skeleton.required.max())
    solution = JointLP(order.columns, limit, host_budget=0).solve()
    assert solution is not None
    assert solution.away.max() < 1e-6
    assert solution.absent.max() > 0.5


def test_less_of_the_link_takes_no_less(order: Order) -> None:
    limit = round(0.5 * order.skeleton.required.max())
    program, solutions = JointLP(order.columns, limit), []
    for share in (1.0, 0.1):
        program.limit(limit, link_share=share)
        solutions.append(program.solve())
    assert solutions[0] is not None
    assert solutions[1] is not None
    assert solutions[0].step_s <= solutions[1].step_s


def test_a_program_under_changed_limits_has_the_optimum_of_a_new_one(order: Order) -> None:
    most = int(order.skeleton.required.max())
    program = JointLP(order.columns, most)
    for share in (0.9, 0.5, 0.7, 0.45, 1.0, 0.6):
        program.limit(round(share * most))
        again, new = program.solve(), JointLP(order.columns, round(share * most)).solve()
        assert again is not None
        assert new is not None
        assert again.step_s == pytest.approx(new.step_s, rel=1e-5)


def test_no_optimum_is_above_the_seconds_that_are_asked_for(order: Order) -> None:
    program = JointLP(order.columns, round(0.5 * order.skeleton.required.max()))
    first = program.solve()
    assert first is not None
    assert program.solve(most_s=0.99 * first.step_s) is None
    assert dive(program, first, most_part=0.2, most_s=0.99 * first.step_s) is None
    found = program.solve(most_s=1.01 * first.step_s)
    assert found is not None
    assert found.step_s == pytest.approx(first.step_s)


def test_a_run_without_progress_ends_and_leaves_the_program_as_it_was(
    order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = JointLP(order.columns, round(0.5 * order.skeleton.required.max()))
    first = program.solve()
    assert first is not None
    with monkeypatch.context() as patched:
        patched.setattr(linear_program, "MOST_IDLE_CALLS", -(10**9))
        program.limit(round(0.4 * order.skeleton.required.max()))
        assert program.solve() is None
    program.limit(round(0.5 * order.skeleton.required.max()))
    again = program.solve()
    assert again is not None
    assert again.step_s == pytest.approx(first.step_s)


def test_a_dive_takes_whole_maps_that_fit(order: Order) -> None:
    limit = round(0.5 * order.skeleton.required.max())
    program = JointLP(order.columns, limit)
    first = program.solve()
    assert first is not None
    found = dive(program, first, most_part=0.2)
    assert found is not None
    assert np.abs(found.absent - found.absent.round()).max() < 1e-3
    assert found.step_s >= first.step_s * (1 - 1e-9)
    choice = JointChoice.of(found, order.columns)
    assert choice.absent
    for column in choice.absent:
        assert not program.conflicts[column] & choice.absent
    woven = order.woven(choice)
    assert woven.required.max() < order.skeleton.required.max()
    assert woven.compute_s(order.columns.costs) > order.skeleton.compute_s(order.columns.costs)


def test_the_plan_is_no_slower_and_tells_what_binds_and_what_is_next_best(
    normalized: Graph,
) -> None:
    costs = h200(normalized)
    kept = planned(normalized, "keep", None)
    budget = normalized.fixed_nbytes + round(0.55 * kept.arena_nbytes)
    problem = GraphProblem(normalized, costs, Budgets.of(normalized, budget))
    slow = make_schedule(normalized, costs, policy="tvdnn-heuristic", budget=budget)
    found = joint_schedule(problem, "auto")
    assert found is not None
    check(found)
    assert found.peak_nbytes <= budget
    assert step_s(found) < 0.98 * step_s(slow)
    report = found.plan.optimality
    assert report is not None
    assert report.bound_s <= report.step_s == pytest.approx(step_s(found))
    assert next(iter(report.sensitivities.values())) > 0
    assert report.alternatives
    assert all(seconds >= -1e-12 for _, seconds in report.alternatives.values())
    assert "next best: " in str(found.plan)


def test_single_changes_make_no_choice_slower(normalized: Graph) -> None:
    kept = planned(normalized, "keep", None)
    budget = normalized.fixed_nbytes + round(0.45 * kept.arena_nbytes)
    problem = GraphProblem(normalized, h200(normalized), Budgets.of(normalized, budget))
    search = JointSearch(problem, "auto")
    solved = search.solved()
    search.limit = search.limits[0]
    trials = [*filter(None, (search.trial(*each) for each in search.rounded(solved)))]
    assert trials
    for trial in trials[:2]:
        assert search.improved(trial, dict(solved)[trial.order]).seconds <= trial.seconds
    assert fastest_joint(search, solved) is not None


def test_ranked_columns_go_together_and_take_more_seconds_a_byte_the_later(order: Order) -> None:
    ranked, columns = RankedColumns(order), order.columns
    prices = [each.seconds / each.nbytes for each in ranked.columns]
    assert len(prices) > 5
    assert prices == sorted(prices)
    taken = {columns.absent[each.number].buffer: each.number for each in ranked.columns}
    for number in taken.values():
        column = columns.absent[number]
        for name, _ in columns.runs[column.run].takes:
            if name in taken:
                assert columns.absent[taken[name]].point <= column.point + NEAR_SEGMENTS
    seconds = [
        order.woven(ranked.choice(count)).compute_s(columns.costs)
        for count in range(0, len(prices) + 1, 4)
    ]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[-1]


def test_ranked_columns_alone_plan_a_network(normalized: Graph, order: Order) -> None:
    """As they do for networks too deep for programs."""
    kept = planned(normalized, "keep", None)
    budget = normalized.fixed_nbytes + kept.arena_nbytes // 2
    problem = GraphProblem(normalized, h200(normalized), Budgets.of(normalized, budget))
    found = fastest_ranked(JointSearch(problem, "auto"), order)
    assert found is not None
    check(found.schedule)
    assert found.schedule.peak_nbytes <= budget
    slow = make_schedule(normalized, h200(normalized), policy="tvdnn-heuristic", budget=budget)
    assert found.seconds < step_s(slow)


def test_no_map_of_barrier_stages_is_made_again_for_the_whole_batch(normalized: Graph) -> None:
    found = staged_orders(normalized, h200(normalized))
    counts = [len(each.skeleton.choice.stages) for each in found]
    assert counts == sorted(set(counts))
    assert counts[0] == 1
    for each in found:
        stages = each.skeleton.candidates.stages
        inner = {name for n in each.skeleton.choice.stages for name, _ in stages[n].made}
        assert inner
        for run in each.columns.runs:
            assert inner.isdisjoint(run.supply.buffers | run.supply.takes)


def test_auto_is_within_a_tenth_of_the_optimum_in_half_of_the_memory(normalized: Graph) -> None:
    kept = planned(normalized, "keep", None)
    budget = normalized.fixed_nbytes + kept.arena_nbytes // 2
    schedule = Problem(normalized, h200(normalized), budget).schedule("auto")
    report = schedule.plan.optimality
    assert report is not None
    assert report.gap < 0.1


# From here on units are of one sample, until the end of the module.


@pytest.mark.usefixtures("units_of_one")
@examples(8, **SMALL)
def test_any_choice_has_the_bits_of_keep(seed: int, batch: int, sections: int, fuse: bool) -> None:
    net, graph = small_graph(seed, batch, sections, fuse=fuse)
    rng, costs = random.Random(seed), random_costs(random.Random(seed))
    batches = random_batches(STEPS, (batch, 3, 12, 12), CLASSES, seed)
    order = rng.choice([*orders(graph, costs), *staged_orders(graph, costs)])
    skeleton = order.woven(drawn(rng, order))
    kept = lower(graph, keep(graph), costs)
    limit = round(rng.random() * kept.arena_nbytes)
    plan = skeleton.plan_within(limit) or skeleton.plan_within(4 * kept.arena_nbytes)
    assert plan is not None
    schedule = lower(graph, plan, costs)
    check(schedule)
    assert train(net, schedule, batches, order_seed=seed).equals(train(net, kept, batches))


@pytest.mark.usefixtures("units_of_one")
@examples(8, **SMALL, share=st.floats(0.3, 1.0))
def test_no_timetable_of_an_order_is_faster_than_its_program(
    seed: int, batch: int, sections: int, fuse: bool, share: float
) -> None:
    """Where only copies are free to choose, and of choices of the columns without ingredients."""
    _, graph = small_graph(seed, batch, sections, fuse=fuse)
    costs = random_costs(random.Random(seed))
    for order in orders(graph, costs):
        limit = round(share * order.skeleton.required.max())
        solution = JointLP(order.columns, limit).solve()
        plan = order.skeleton.plan_within(limit)
        steps = schedule_within(graph, plan, costs, limit) if plan else None
        if steps is not None:
            assert solution is not None
            assert solution.step_s <= steps.seconds * (1 + 1e-6)
