"""Making schedules: from a step and a policy's name to a checked schedule inside a budget."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from ..errors import InputError
from ..gc_pause import without_collection
from ..graph import Form, Graph, GraphVariants
from ..units import Limit
from .ir.budgets import NO_TIERS, Budgets, TierBudgets
from .ir.costs import Costs
from .ir.schedule import Schedule
from .lowering.floor import MinimumSchedule, floor_lower_bound
from .policies import POLICIES, policy_named
from .problem import GraphProblem, Policy
from .timing.merge_syncs import merge_sync_points
from .timing.step_bound import LowerBound, lower_bound
from .verify.check import check


class Rung(NamedTuple):
    """The peak of a plan of some of a policy's means: those of the rungs before and one more."""

    means: str
    nbytes: int  # of the device
    step: str  # that sets them


class Problem:
    """A step to plan on a machine inside a budget, under any policy.

    `step` is its graph, or its graphs, of which each policy takes the one that suits it. `budget`
    are device bytes, "min" for each policy's floor, None without a limit; `host_budget` are pinned
    bytes; `tiers` are the budgets of other tiers. Without `paged` no arena lies in pages. `lossy`
    are the codecs that may round maps in plans of auto, by map; `exact` is auto's schedule without
    them, where it is known. What is found of a graph, whatever the budget, is found once.
    """

    def __init__(
        self,
        step: Graph | GraphVariants,
        costs: Costs,
        budget: Limit = None,
        host_budget: int | None = None,
        tiers: TierBudgets = NO_TIERS,
        *,
        paged: bool = True,
        lossy: Mapping[str, Form] | None = None,
        exact: Schedule | None = None,
    ) -> None:
        self.costs, self.budget, self.host_budget, self.tiers = costs, budget, host_budget, tiers
        self._step, self._paged, self._exact = step, paged, exact
        self.lossy: Mapping[str, Form] = lossy or {}
        self._known: dict[int, dict[object, Any]] = {}  # by the id of a graph that `_step` holds

    def within(self, budget: Limit, host_budget: int | None = None) -> "Problem":
        """The problem inside another budget, and inside another of the host where one is given."""
        host = self.host_budget if host_budget is None else host_budget
        limits = budget, host, self.tiers
        other = Problem(self._step, self.costs, *limits, paged=self._paged, lossy=self.lossy)
        other._known = self._known
        return other

    def rounding(self, lossy: Mapping[str, Form], exact: Schedule | None = None) -> "Problem":
        """The problem in which these codecs may round maps; `exact` is its schedule without."""
        limits = self.budget, self.host_budget, self.tiers
        other = Problem(
            self._step, self.costs, *limits, paged=self._paged, lossy=lossy, exact=exact
        )
        other._known = self._known
        return other

    def graph(self, policy: str) -> Graph:
        """The graph that the policy plans."""
        step = self._step
        return step if isinstance(step, Graph) else step.graph(policy_named(policy).rewrites())

    def budget_nbytes(self, policy: str) -> int | None:
        """The bytes of the budget; of "min" the policy's floor."""
        return self.floor(policy)[0] if self.budget == "min" else self.budget

    def schedule(
        self,
        policy: str = "auto",
        *,
        lead: int | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> Schedule:
        """The checked schedule of the policy inside the budgets.

        With `lead` no prefetch is issued more slots ahead of its use, unless the plan then fits the
        budgets no more: a lead makes no floor higher. Raises InputError for an unknown policy and a
        `lead` below 0, BudgetError (with the floor) and HostMemoryError where nothing fits.
        """
        if lead is not None and lead < 0:
            raise InputError(f"lead is {lead}; a prefetch comes 0 or more slots ahead")
        if progress is not None:
            progress("planning", 0.0)
        with without_collection():
            schedule = self._schedule(policy_named(policy), lead)
            schedule = merge_sync_points(schedule, self.costs)
            check(schedule)
        if progress is not None:
            progress("planning", 1.0)
        return _naming_eager_parts(schedule)

    @without_collection()
    def floor(self, policy: str) -> tuple[int, str]:
        """The least device bytes in which the policy has a schedule, and the step that sets them.

        It has one in all budgets from there on.
        """
        return self._at_floor(policy_named(policy)).floor

    def bound(self, policy: str) -> LowerBound | None:
        """What no schedule by the means of the policy beats; None where nothing fits."""
        recompute = policy_named(policy).recomputes
        away = Budgets(None, self.host_budget, tiers=self.tiers).away
        budgets = {"budget": self.budget_nbytes(policy), "host_budget": away}
        return lower_bound(self.graph(policy), self.costs, **budgets, recompute=recompute)

    def baseline_nbytes(self, policy: str) -> int:
        """Bytes of network-wide allocation: every buffer at its own address."""
        return self.graph(policy).baseline_nbytes

    @without_collection()
    def ladder(self, policy: str) -> tuple[Rung, ...]:
        """The least peaks of plans of more and more means of a policy, checked.

        The first is that of network-wide allocation. Raises InputError for a policy without a
        ladder.
        """
        named = policy_named(policy)
        if named.ladder is None:
            known = (each.name for each in POLICIES.values() if each.ladder is not None)
            raise InputError(f"{policy} has no ladder of peaks; choose one of {', '.join(known)}")
        problem = self._of(named, None)
        rungs = [Rung("none", problem.graph.baseline_nbytes, "every buffer at its own address")]
        for means, plan in named.ladder(problem):
            least = MinimumSchedule.of(problem.graph, plan, self.costs)
            check(least.schedule(problem.budgets))
            rungs.append(Rung(means, *least.floor))
        return tuple(rungs)

    def _schedule(self, policy: Policy, lead: int | None) -> Schedule:
        """The schedule of the policy, not checked yet."""
        problem = self._of(policy, self.budget_nbytes(policy.name))
        schedule = policy.schedule(problem)
        if schedule is None:
            schedule = self._at_floor(policy).schedule(problem.budgets)
        plan = schedule.plan if lead is None else schedule.plan.with_prefetch_distance(lead)
        if plan.bridges == schedule.plan.bridges:
            return schedule
        return problem.lowered(plan) or schedule

    def _of(self, policy: Policy, budget: int | None) -> GraphProblem:
        graph = self.graph(policy.name)
        limits = budget, self.host_budget, self.tiers
        budgets = Budgets.of(graph, *limits, paged=self._paged)
        known = self._known.setdefault(id(graph), {})
        return GraphProblem(graph, self.costs, budgets, known, self.lossy, self._exact)

    def _at_floor(self, policy: Policy) -> MinimumSchedule:
        """The plan of the policy that has the lowest floor."""
        known = self._known.setdefault(id(self.graph(policy.name)), {})
        if policy.name not in known:
            known[policy.name] = _lowest(self._of(policy, None), policy)
        floor: MinimumSchedule = known[policy.name]
        return floor


def _lowest(problem: GraphProblem, policy: Policy) -> MinimumSchedule:
    graph, costs = problem.graph, problem.costs
    demands = [(floor_lower_bound(graph, plan)[0], plan) for plan in policy.leanest(problem)]
    best: MinimumSchedule | None = None
    for nbytes, plan in sorted(demands, key=itemgetter(0)):
        if best is None or nbytes < best.floor[0]:
            found = MinimumSchedule.of(graph, replace(plan, policy=policy.name), costs)
            best = found if best is None else min(best, found, key=attrgetter("floor"))
    assert best is not None
    return best


def _naming_eager_parts(schedule: Schedule) -> Schedule:
    """The schedule, its plan told which ops and parameters torch computes outside of it."""
    network = schedule.graph.network
    outside = (
        *(op.name for op in network.ops if op.kind == "opaque"),
        *(param.name for param in network.params.values() if param.computed_from is not None),
    )
    return replace(schedule, plan=replace(schedule.plan, outside=outside)) if outside else schedule


def make_schedule(
    graph: Graph,
    costs: Costs,
    *,
    policy: str = "auto",
    budget: int | None = None,
    host_budget: int | None = None,
    tiers: TierBudgets = NO_TIERS,
    lead: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Schedule:
    """The checked schedule of `policy` for one graph: see `Problem.schedule`."""
    problem = Problem(graph, costs, budget, host_budget, tiers)
    return problem.schedule(policy, lead=lead, progress=progress)
