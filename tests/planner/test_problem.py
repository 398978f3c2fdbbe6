"""Problem: graphs by variant, floors found once, policies as values, and a machine's memory."""

from collections.abc import Iterator
from itertools import product

import pytest

from tests.support.networks import vgg
from tests.support.simulated import h200
from tvdnn.errors import InputError
from tvdnn.experiment.request import make_problem, make_request
from tvdnn.experiment.simulate_request import Outcome, simulated
from tvdnn.graph import Graph, GraphVariants, Rewrites
from tvdnn.ops import Settings
from tvdnn.ops.expand import expand, graph_variants
from tvdnn.optim import SGD
from tvdnn.planner import make
from tvdnn.planner.ir.budgets import Budgets
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.plan import Plan
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.lowering.segments import Variant, segments
from tvdnn.planner.make import Problem
from tvdnn.planner.policies import POLICIES, policy_named
from tvdnn.planner.problem import GraphProblem, Policy
from tvdnn.units import MIB

SETTINGS = Settings("bf16", MIB, optimizer=SGD(momentum=0.9))
NETWORK = vgg(8)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return expand(NETWORK, SETTINGS)


def test_variants_are_expanded_once() -> None:
    asked: list[Rewrites] = []
    variants = graph_variants(NETWORK, SETTINGS)

    def expanded(rewrites: Rewrites) -> Graph:
        asked.append(rewrites)
        return variants.graph(rewrites)

    fused = variants.graph(Rewrites(fused=True))
    problem = Problem(GraphVariants(expanded), h200(fused), "min")
    assert problem.graph("keep") is fused
    unfused = problem.graph("vdnn-all")
    coded = problem.graph("gist-lossless")
    assert len(fused.network.ops) < len(unfused.network.ops) == len(coded.network.ops)
    assert problem.within(None).graph("keep") is problem.graph("tvdnn-ilp") is fused
    assert problem.graph("gist-lossless:fused") is fused
    assert problem.graph("gist-lossy:fused:fp8") is not fused
    assert problem.graph("auto") is problem.within(None).graph("auto") is not fused
    expected = [*product([False], [False, True]), (True, False)]
    signs, remade = (True, False, True, False), (True, False, False, True)
    assert sorted(asked) == [*((*each, False, False) for each in expected), remade, signs]


def test_a_floor_is_found_once_for_all_budgets(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(problem: GraphProblem, policy: Policy) -> make.MinimumSchedule:
        calls.append(policy.name)
        return lowest(problem, policy)

    lowest = make._lowest
    monkeypatch.setattr(make, "_lowest", counted)
    problem = Problem(graph, h200(graph))
    floor, step = problem.floor("vdnn-all:m")
    inside = problem.within("min")
    assert inside.budget_nbytes("vdnn-all:m") == floor
    assert inside.schedule("vdnn-all:m").peak_nbytes <= floor
    assert "[" in step
    assert calls == ["vdnn-all:m"]


def test_budgets_leave_the_arena_what_is_not_fixed(graph: Graph) -> None:
    assert Budgets.of(graph, None) == Budgets(None, None, None)
    assert Budgets.of(graph, 10**9, 5) == Budgets(10**9, 5, 10**9 - graph.fixed_nbytes)


def test_a_policy_is_a_value(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs a name, a schedule and its leanest plans; all else follows from the registry."""

    def plans(problem: GraphProblem) -> Iterator[Plan]:
        yield Plan("by-sample", segments(problem.graph, {}, Variant.MEMORY))

    def schedule(problem: GraphProblem) -> Schedule | None:
        return problem.first_that_fits(plans(problem))

    monkeypatch.setitem(POLICIES, "by-sample", Policy("by-sample", schedule, plans))
    problem = Problem(graph, h200(graph), "min")
    assert problem.schedule("by-sample").peak_nbytes == problem.floor("by-sample")[0]
    bound = problem.bound("by-sample")
    assert bound is not None
    assert bound.recompute_s == 0.0


def test_policies_by_what_they_may_do() -> None:
    names = {name for name, policy in POLICIES.items() if policy.searches}
    assert names == {"tvdnn-ilp", "tvdnn-heuristic", "auto"}
    recomputing = {name.partition(":")[0] for name, each in POLICIES.items() if each.recomputes}
    assert recomputing == {"superneurons", "auto"}
    unfused = {name for name, policy in POLICIES.items() if not policy.fused}
    coded = {name for name, policy in POLICIES.items() if policy.coded_pools}
    paper = {name for name in POLICIES if name.startswith(("vdnn", "superneurons"))}
    assert unfused == paper | coded
    lossy = {name for name, policy in POLICIES.items() if policy.lossy}
    assert lossy == {
        f"gist-lossy{f}:{form}" for f in ("", ":fused") for form in ("fp16", "fp10", "fp8")
    }
    single = {name for name in lossy if ":fused" not in name}
    assert coded == {"gist-lossless", "gist-lossless:tf32"} | single
    with pytest.raises(InputError, match="policy 'vdnn' is not known; choose one of keep, vdnn-"):
        policy_named("vdnn")


def test_without_a_budget_a_plan_keeps_to_the_machines_memory() -> None:
    """A plan that takes more is made anew inside it, one that takes less is as without a limit."""
    request = make_request("lenet5", 512, None, "fp32", "64KiB", None)
    problem = make_problem(request, Roofline(load("K40c"), "fp32"))

    def planned(policy: str, memory: int | None) -> Outcome:
        return simulated(request, problem, policy, None, lambda *_: None, memory_nbytes=memory)

    kept = planned("keep", None).row
    assert kept.planned_peak_bytes is not None
    less = (problem.floor("vdnn-all")[0] + kept.planned_peak_bytes) // 2
    assert planned("keep", kept.planned_peak_bytes).row == kept
    assert planned("keep", less).row.infeasible
    found = planned("tvdnn-heuristic", less)
    assert found.row.budget_bytes == less
    assert found.schedule is not None
    assert found.schedule.peak_nbytes <= less < kept.planned_peak_bytes
