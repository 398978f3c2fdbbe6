"""Planning: from a policy's name, a graph and a budget to a checked schedule."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter

from ..errors import HostMemoryError, InputError
from ..gc_pause import without_collection
from ..graph import Direction, Graph
from ..units import MIB, Limit
from .ir.costs import Costs
from .ir.plan import Plan, prefetched_nbytes
from .ir.schedule import Schedule
from .lowering.estimate import estimate
from .lowering.floor import MinimumSchedule, floor_lower_bound
from .lowering.lower import lower, lower_with_prefetch
from .lowering.segments import PassGroup, Variant, pass_groups
from .offload.skeleton import moving_all
from .policies.auto import search
from .policies.keep import keep
from .policies.tvdnn import heuristic, optimal
from .policies.vdnn import ALL, CONV, vdnn
from .recompute.candidates import Recipes, recipes
from .recompute.draft import Choice, auto, leanest
from .timing.bound import LowerBound, lower_bound
from .timing.merge_syncs import merge_sync_points
from .timing.simulate import simulate
from .verify.check import check

SPARED_SHARE = 0.048  # of a budget: at most so much goes to maps that only save time
ROOM = 1.25  # times the least that a plan needs
DEFAULT_CHUNK_SIZE = 16 * MIB  # copies of it reach 54.9 of an H200 link's 55.4 GB/s, of 4 MiB 53.9

_STATIC = {"vdnn-all": ALL, "vdnn-conv": CONV}
_VARIANTS = {"m": Variant.MEMORY, "p": Variant.PERFORMANCE}
SWAPPING = {"tvdnn-ilp": optimal, "tvdnn-heuristic": heuristic}
POLICIES = (
    "keep",
    "vdnn-all",
    "vdnn-conv",
    "vdnn-dyn",
    *(f"{name}:sync" for name in _STATIC),
    *(f"{name}:{variant}" for name in _STATIC for variant in _VARIANTS),
    *(f"{name}:{variant}:sync" for name in _STATIC for variant in _VARIANTS),
    "vdnn-dyn:sync",
    *SWAPPING,
    "auto",
)


def fuses(policy: str) -> bool:
    """Whether `policy` plans over fused ops; vDNN's go by the layers of its paper.

    Raises InputError for an unknown policy.
    """
    return _parse(policy)[0] in ("keep", "auto", *SWAPPING)


def fitting(graph: Graph, limit: Limit) -> Graph:
    """The graph; or the lean one where what that spares is much of the budget, or hardly fits.

    At 4.3% of it, four tenths of what keep takes, ResNet-50 (256 images) is 1.5 ms faster with the
    signs of its maps by the roofline of an H200, and at 5.1%, where more has to leave, 1.0 slower.
    """
    if graph.lean is None or limit is None:
        return graph
    spared = sum(graph.buffers[name].nbytes for name in graph.spared)
    if limit == "min" or spared > SPARED_SHARE * limit:
        return graph.lean()
    least = auto(graph, Recipes((), ()), Choice(Variant.MEMORY, (), ())).leanest()
    return graph if ROOM * floor_lower_bound(graph, least)[0] <= limit else graph.lean()


def make_schedule(
    graph: Graph,
    costs: Costs,
    *,
    policy: str = "auto",
    budget: int | None = None,
    host_budget: int | None = None,
    lead: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Schedule:
    """The checked schedule of `policy` inside `budget` device and `host_budget` pinned bytes.

    With `lead` no prefetch is issued more slots ahead of its use, unless the plan then fits the
    budgets no more: a lead makes no floor higher. Raises InputError for an unknown policy and a
    `lead` below 0, BudgetError (with the floor) where the policy has no schedule that fits.
    """

    if lead is not None and lead < 0:
        raise InputError(f"lead is {lead}; a prefetch comes 0 or more slots ahead")
    if progress is not None:
        progress("planning", 0.0)
    with without_collection():
        schedule = _schedule(graph, costs, policy, budget, host_budget)
        plan = schedule.plan if lead is None else schedule.plan.with_prefetch_distance(lead)
        if plan.transfers != schedule.plan.transfers:
            led = _lowered(graph, plan, costs, budget=budget, host_budget=host_budget)
            schedule = led or schedule
        schedule = merge_sync_points(schedule, costs)
        check(schedule)
    if progress is not None:
        progress("planning", 1.0)
    network = graph.network
    outside = (
        *(op.name for op in network.ops if op.kind == "opaque"),
        *(param.name for param in network.params.values() if param.computed_from is not None),
    )
    return replace(schedule, plan=replace(schedule.plan, outside=outside)) if outside else schedule


def _schedule(
    graph: Graph, costs: Costs, policy: str, budget: int | None, host_budget: int | None
) -> Schedule:
    """The schedule of `policy`, not checked yet."""
    base, variant, sync = _parse(policy)
    budgets = {"budget": budget, "host_budget": host_budget}
    if base == "auto":
        return _searched(graph, costs, **budgets)
    if base in SWAPPING:
        return _swapped(graph, costs, policy, **budgets)
    if base == "vdnn-dyn":
        return _first_that_fits(graph, costs, policy, _dynamic(graph, policy, sync), **budgets)
    return lower(graph, _static_plan(graph, policy, base, variant, sync), costs, **budgets)


def _parse(policy: str) -> tuple[str, Variant, bool]:
    """What a policy's name says: its base, its variant, and whether it synchronises layers."""
    if policy not in POLICIES:
        raise InputError(f"policy {policy!r} is not known; choose one of {', '.join(POLICIES)}")
    base, *suffixes = policy.split(":")
    variants = (_VARIANTS[suffix] for suffix in suffixes if suffix in _VARIANTS)
    return base, next(variants, Variant.PERFORMANCE), "sync" in suffixes


def _static_plan(graph: Graph, policy: str, base: str, variant: Variant, sync: bool) -> Plan:
    if base == "keep":
        return keep(graph)
    return vdnn(graph, _STATIC[base], name=policy, default=variant, sync=sync)


def _first_that_fits(
    graph: Graph,
    costs: Costs,
    policy: str,
    plans: Iterable[Plan],
    *,
    budget: int | None,
    host_budget: int | None,
) -> Schedule:
    """The schedule of the first plan that has one within both budgets, or the one at the floor.

    Raises BudgetError with the floor where none fits the device, HostMemoryError where those that
    do take too much of the host.
    """
    host_error: HostMemoryError | None = None
    for plan in plans:
        try:
            schedule = lower_with_prefetch(
                graph, plan, costs, budget=budget, host_budget=host_budget
            )
        except HostMemoryError as error:
            host_error = error
        else:
            if schedule is not None:
                return schedule
    if host_error is not None:
        raise host_error
    return _floor(graph, costs, policy).schedule(budget=budget, host_budget=host_budget)


def _swapped(
    graph: Graph, costs: Costs, policy: str, *, budget: int | None, host_budget: int | None
) -> Schedule:
    """keep's schedule where it fits, else what the search of `policy` finds, else the leanest."""
    if budget is None:
        return lower(graph, keep(graph), costs)
    kept = _kept(graph, costs, budget=budget, host_budget=host_budget)
    if kept is not None:
        return kept
    found = SWAPPING[policy](graph, costs, budget=budget, host_budget=host_budget)
    if found is not None:
        return found
    plans = (keep(graph), *moving_all(graph, costs, policy))
    return _first_that_fits(graph, costs, policy, plans, budget=budget, host_budget=host_budget)


def _searched(
    graph: Graph, costs: Costs, *, budget: int | None, host_budget: int | None
) -> Schedule:
    """keep's schedule where it fits, else the fastest of what search finds and of vDNN's trials."""
    if budget is None:
        return lower(graph, keep(graph), costs)
    budgets = {"budget": budget, "host_budget": host_budget}
    kept = _kept(graph, costs, budget=budget, host_budget=host_budget)
    if kept is not None:
        return kept
    best = search(graph, costs, budget=budget, host_budget=host_budget)
    if best is None:
        swapped = heuristic(graph, costs, budget=budget, host_budget=host_budget)
        if swapped is not None:
            return replace(swapped, plan=replace(swapped.plan, policy="auto"))
        return _first_that_fits(graph, costs, "auto", _leanest(graph, costs, "auto"), **budgets)
    best_s = simulate(best, costs).step_s
    for kinds in (CONV, ALL):
        plan = vdnn(graph, kinds, name="auto", default=Variant.PERFORMANCE)
        if _may_take_less(graph, plan, costs, budget, best_s):
            other = _lowered(graph, plan, costs, **budgets)
            other_s = simulate(other, costs).step_s if other else best_s
            if other and other_s < best_s:
                best, best_s = other, other_s
    return best


def _may_take_less(graph: Graph, plan: Plan, costs: Costs, budget: int, below_s: float) -> bool:
    """Whether the plan's order is predicted to take less than so many seconds."""
    if prefetched_nbytes(graph, plan) / costs.link.to_device >= below_s:
        return False
    room = budget - graph.fixed_nbytes
    found = estimate(graph, plan, costs, room, capacity=room, below_s=below_s)
    return found is not None and found.seconds < below_s


def _kept(graph: Graph, costs: Costs, *, budget: int, host_budget: int | None) -> Schedule | None:
    """keep's schedule, None where it has none within both budgets.

    Most often what forward leaves to backward is too much by itself, which is told at once.
    """
    if graph.fixed_nbytes + _left_nbytes(graph) > budget:
        return None
    return _lowered(graph, keep(graph), costs, budget=budget, host_budget=host_budget)


def _left_nbytes(graph: Graph) -> int:
    """Bytes that forward writes and what comes after it only reads."""
    forward = [pass_ for pass_ in graph.passes if pass_.direction is Direction.FORWARD]
    after = [pass_ for pass_ in graph.passes if pass_.direction is not Direction.FORWARD]
    left = {use.buffer for pass_ in forward for use in pass_.writes}
    left &= {use.buffer for pass_ in after for use in pass_.reads}
    left -= {use.buffer for pass_ in after for use in pass_.writes}
    return sum(graph.buffers[name].nbytes for name in left)


def _lowered(
    graph: Graph, plan: Plan, costs: Costs, *, budget: int | None, host_budget: int | None
) -> Schedule | None:
    """The plan's schedule, None where it has none within both budgets."""
    try:
        return lower_with_prefetch(graph, plan, costs, budget=budget, host_budget=host_budget)
    except HostMemoryError:
        return None


def _dynamic(graph: Graph, policy: str, sync: bool) -> Iterator[Plan]:
    """vDNN's dynamic policy: its trials, fastest first, and what its test of trainability runs.

    The paper makes that test first; whether it passes is the same when it comes last.
    """
    yield keep(graph)
    for kinds in (CONV, ALL):
        yield vdnn(graph, kinds, name=policy, default=Variant.PERFORMANCE, sync=sync)
    for kinds in (CONV, ALL):
        yield from _downgrades(graph, kinds, policy, sync)
    for kinds in (CONV, ALL):
        yield vdnn(graph, kinds, name=policy, default=Variant.MEMORY, sync=sync)


def _downgrades(graph: Graph, kinds: frozenset[str], name: str, sync: bool) -> Iterator[Plan]:
    """Plans that give the layer which sets the floor less workspace, layer after layer."""
    members = pass_groups(graph)
    default, variants = Variant.PERFORMANCE, dict[int, Variant]()
    while True:
        plan = vdnn(graph, kinds, name=name, default=default, variants=variants, sync=sync)
        if variants:
            yield plan
        layer = _layer_of(graph, members, floor_lower_bound(graph, plan)[1])
        if layer is None or layer.index in variants:
            return
        variants[layer.index] = Variant.MEMORY


def _layer_of(graph: Graph, members: Sequence[PassGroup], step: str) -> PassGroup | None:
    """The layer with the pass that the step named `step` launches."""
    name = step.rsplit(" [", 1)[0]
    return next((m for m in members if any(graph.passes[i].name == name for i in m.passes)), None)


@without_collection()
def floor_of(graph: Graph, costs: Costs, policy: str) -> tuple[int, str]:
    """The least device bytes in which `policy` has a schedule, and the step that sets them.

    It has one in all budgets from there on. Raises InputError for an unknown policy.
    """
    return _floor(graph, costs, policy).floor


def _floor(graph: Graph, costs: Costs, policy: str) -> MinimumSchedule:
    """The plan of the policy that has the lowest floor."""
    base, variant, sync = _parse(policy)
    if base in ("auto", "vdnn-dyn", *SWAPPING):
        plans = [*_leanest(graph, costs, policy), keep(graph)]
    else:
        plans = [_static_plan(graph, policy, base, variant, sync)]
    demands = [(floor_lower_bound(graph, plan)[0], plan) for plan in plans]
    best: MinimumSchedule | None = None
    for nbytes, plan in sorted(demands, key=itemgetter(0)):
        if best is None or nbytes < best.floor[0]:
            found = MinimumSchedule.of(graph, replace(plan, policy=policy), costs)
            best = found if best is None else min(best, found, key=attrgetter("floor"))
    assert best is not None
    return best


def _leanest(graph: Graph, costs: Costs, policy: str) -> Iterator[Plan]:
    """Plans one of which sets the floor of a policy that has several."""
    base, _, sync = _parse(policy)
    if base == "vdnn-dyn":
        yield from _dynamic(graph, policy, sync)
        return
    if base == "auto":
        yield from leanest(graph, recipes(graph, costs))
    yield from moving_all(graph, costs, policy)
    if base == "auto":
        for kinds in (ALL, CONV):
            yield vdnn(graph, kinds, name=policy, default=Variant.MEMORY)


def bound_of(
    graph: Graph,
    costs: Costs,
    policy: str,
    *,
    budget: int | None = None,
    host_budget: int | None = None,
) -> LowerBound | None:
    """What no schedule by the means of `policy` beats: only `auto` makes maps again.

    Raises InputError for an unknown policy.
    """
    recompute = _parse(policy)[0] == "auto"
    return lower_bound(graph, costs, budget=budget, host_budget=host_budget, recompute=recompute)
