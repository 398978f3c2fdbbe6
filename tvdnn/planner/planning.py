"""Planning: from a policy's name, a graph and a budget to a checked schedule."""

from collections.abc import Callable, Sequence

from ..errors import BudgetError, InputError
from ..graph import Graph
from ..units import MIB
from .check import check
from .costs import Costs
from .lower import floor_nbytes, lower
from .plan import Plan
from .policies.keep import keep
from .policies.vdnn import ALL, CONV, vdnn
from .schedule import Schedule
from .segments import Layer, Variant, layers

DEFAULT_CHUNK_SIZE = 16 * MIB  # copies of it reach 54.9 of an H200 link's 55.4 GB/s, of 4 MiB 53.9

_STATIC = {"vdnn-all": ALL, "vdnn-conv": CONV}
_VARIANTS = {"m": Variant.MEMORY, "p": Variant.PERFORMANCE}
POLICIES = (
    "keep",
    "vdnn-all",
    "vdnn-conv",
    "vdnn-dyn",
    *(f"{name}:sync" for name in _STATIC),
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
    """The checked schedule of `policy` inside `budget` device and `host_budget` pinned bytes.

    Raises InputError for an unknown policy, BudgetError (with the floor) where the policy has no
    schedule that fits.
    """

    def make(plan: Plan) -> Schedule:
        if progress is not None:
            progress("planning", 0.0)
        return lower(graph, plan, costs, budget=budget, host_budget=host_budget)

    schedule = _policy(graph, policy, make)
    check(schedule)
    if progress is not None:
        progress("planning", 1.0)
    return schedule


def _policy(graph: Graph, policy: str, make: Maker) -> Schedule:
    base, variant, sync = _parse(policy)
    if base == "keep":
        return make(keep(graph))
    if base == "auto":
        return _auto(graph, make)
    if base == "vdnn-dyn":
        return _dyn(graph, make, sync)
    return make(vdnn(graph, _STATIC[base], name=policy, default=variant, sync=sync))


def _parse(policy: str) -> tuple[str, Variant, bool]:
    """What a policy's name says: its base, its variant, and whether it synchronises layers."""
    if policy not in POLICIES:
        raise InputError(f"policy {policy!r} is not known; choose one of {', '.join(POLICIES)}")
    base, *suffixes = policy.split(":")
    variants = (_VARIANTS[suffix] for suffix in suffixes if suffix in _VARIANTS)
    return base, next(variants, Variant.PERFORMANCE), "sync" in suffixes


def _auto(graph: Graph, make: Maker) -> Schedule:
    """Keep everything where it fits, else vDNN's dynamic policy."""
    try:
        return make(keep(graph))
    except BudgetError:
        return _dyn(graph, make, sync=False)


def _dyn(graph: Graph, make: Maker, sync: bool) -> Schedule:
    """vDNN's dynamic policy: test trainability, then take the first that fits, fastest first."""
    name = "vdnn-dyn:sync" if sync else "vdnn-dyn"

    def static(kinds: frozenset[str], variant: Variant) -> Plan:
        return vdnn(graph, kinds, name=name, default=variant, sync=sync)

    smallest = make(static(ALL, Variant.MEMORY))
    trials: tuple[Callable[[], Schedule], ...] = (
        lambda: make(keep(graph)),
        lambda: make(static(CONV, Variant.PERFORMANCE)),
        lambda: make(static(ALL, Variant.PERFORMANCE)),
        lambda: _downgrade(graph, CONV, name, make, sync),
        lambda: _downgrade(graph, ALL, name, make, sync),
        lambda: make(static(CONV, Variant.MEMORY)),
    )
    for trial in trials:
        try:
            return trial()
        except BudgetError:
            continue
    return smallest


def _downgrade(graph: Graph, kinds: frozenset[str], name: str, make: Maker, sync: bool) -> Schedule:
    """Give the layer that sets the floor less workspace, layer after layer, until the plan fits."""
    members = layers(graph)
    default, variants = Variant.PERFORMANCE, dict[int, Variant]()
    while True:
        plan = vdnn(graph, kinds, name=name, default=default, variants=variants, sync=sync)
        try:
            return make(plan)
        except BudgetError as error:
            layer = _layer_of(graph, members, error.step)
            if layer is None or layer.index in variants:
                raise
            variants[layer.index] = Variant.MEMORY


def _layer_of(graph: Graph, members: Sequence[Layer], step: str) -> Layer | None:
    """The layer with the pass that the step named `step` launches."""
    name = step.rsplit(" [", 1)[0]
    return next((m for m in members if any(graph.passes[i].name == name for i in m.passes)), None)


def floor_of(graph: Graph, costs: Costs, policy: str) -> tuple[int, str]:
    """The least device bytes at which `policy` has a schedule, and the step that sets them.

    Raises InputError for an unknown policy.
    """
    base, variant, _ = _parse(policy)
    if base == "keep":
        return floor_nbytes(graph, keep(graph), costs)
    if base in ("auto", "vdnn-dyn"):
        variant = Variant.MEMORY
    plan = vdnn(graph, _STATIC.get(base, ALL), name=policy, default=variant)
    return floor_nbytes(graph, plan, costs)
