"""Planning: from a policy's name, a graph and a budget to a checked schedule."""

from collections.abc import Callable

from ..errors import BudgetError, InputError
from ..graph import Graph
from .check import check
from .costs import Costs
from .lower import floor_nbytes, lower
from .plan import Plan
from .policies.keep import keep
from .policies.vdnn import ALL, CONV, vdnn
from .schedule import Schedule
from .segments import Variant, layers

DEFAULT_CHUNK_SIZE = 16 * 2**20  # copies of 16 MiB reach 54.9 of an H200 link's 55.4 GB/s, of 4 MiB 53.9

_STATIC = {"vdnn-all": ALL, "vdnn-conv": CONV}
_VARIANTS = {"m": Variant.MEMORY, "p": Variant.PERFORMANCE}
POLICIES = (
    "keep",
    "vdnn-all",
    "vdnn-conv",
    "vdnn-dyn",
    *(f"{name}:{variant}" for name in _STATIC for variant in _VARIANTS),
    *(f"{name}:{variant}:sync" for name in _STATIC for variant in _VARIANTS),
    "vdnn-dyn:sync",
    "auto",
)

Maker = Callable[[Plan], Schedule]


def make_schedule(
    graph: Graph,
    costs: Costs,
    *,
    policy: str = "auto",
    budget: int | None = None,
    host_budget: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Schedule:
    """The schedule of `policy` inside `budget` device bytes and `host_budget` pinned bytes, checked.

    Raises InputError for an unknown policy, BudgetError (with the floor) where the policy has no schedule that fits.
    """

    def make(plan: Plan) -> Schedule:
        if progress is not None:
            progress("planning", 0.0)
        return lower(graph, plan, costs, budget=budget, host_budget=host_budget)

    schedule = _policy(graph, costs, policy, make)
    check(schedule)
    if progress is not None:
        progress("planning", 1.0)
    return schedule


def _policy(graph: Graph, costs: Costs, policy: str, make: Maker) -> Schedule:
    base, *suffixes = policy.split(":")
    sync = "sync" in suffixes
    if policy not in POLICIES and f"{base}:p:sync" != f"{policy.removesuffix(':sync')}:p:sync":
        raise InputError(f"policy {policy!r} is not known; choose one of {', '.join(POLICIES)}")
    if base == "keep":
        return make(keep(graph))
    if base == "auto":
        return _auto(graph, costs, make)
    if base == "vdnn-dyn":
        return _dyn(graph, costs, make, sync)
    variant = next((_VARIANTS[suffix] for suffix in suffixes if suffix in _VARIANTS), Variant.PERFORMANCE)
    return make(vdnn(graph, _STATIC[base], name=policy, default=variant, sync=sync))


def _auto(graph: Graph, costs: Costs, make: Maker) -> Schedule:
    """Keep everything where it fits, else vDNN's dynamic policy."""
    try:
        return make(keep(graph))
    except BudgetError:
        return _dyn(graph, costs, make, sync=False)


def _dyn(graph: Graph, costs: Costs, make: Maker, sync: bool) -> Schedule:
    """vDNN's dynamic policy: the trainability test, then from fastest to smallest; the first that fits."""
    name = "vdnn-dyn:sync" if sync else "vdnn-dyn"

    def static(kinds: frozenset[str], variant: Variant) -> Plan:
        return vdnn(graph, kinds, name=name, default=variant, sync=sync)

    smallest = make(static(ALL, Variant.MEMORY))
    trials: tuple[Callable[[], Schedule], ...] = (
        lambda: make(keep(graph)),
        lambda: make(static(CONV, Variant.PERFORMANCE)),
        lambda: make(static(ALL, Variant.PERFORMANCE)),
        lambda: _downgrade(graph, costs, CONV, name, make, sync),
        lambda: _downgrade(graph, costs, ALL, name, make, sync),
        lambda: make(static(CONV, Variant.MEMORY)),
    )
    for trial in trials:
        try:
            return trial()
        except BudgetError:
            continue
    return smallest


def _downgrade(
    graph: Graph, costs: Costs, kinds: frozenset[str], name: str, make: Maker, sync: bool
) -> Schedule:
    """Give the layer that sets the floor less workspace, one layer after another, until the plan fits."""
    members = layers(graph)
    variants: dict[int, Variant] = {}
    while True:
        plan = vdnn(graph, kinds, name=name, default=Variant.PERFORMANCE, variants=variants, sync=sync)
        try:
            return make(plan)
        except BudgetError as error:
            tight = error.step.rsplit(" [", 1)[0]
            layer = next((m for m in members if any(graph.passes[i].name == tight for i in m.passes)), None)
            if layer is None or layer.index in variants:
                raise
            variants[layer.index] = Variant.MEMORY


def floor_of(graph: Graph, costs: Costs, policy: str) -> tuple[int, str]:
    """The least device bytes at which `policy` has a schedule, and the step that sets them."""
    base, *suffixes = policy.split(":")
    if base == "keep":
        return floor_nbytes(graph, keep(graph), costs)
    kinds = _STATIC.get(base, ALL)
    small = base in ("auto", "vdnn-dyn") or "m" in suffixes
    variant = Variant.MEMORY if small else Variant.PERFORMANCE
    return floor_nbytes(graph, vdnn(graph, kinds, name=policy, default=variant), costs)
