"""Problem of planning one graph: its costs, the bytes to plan inside; and what a policy is."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import HostMemoryError
from ..graph import Form, Graph, Rewrites
from .ir.budgets import Budgets
from .ir.costs import Costs
from .ir.plan import Plan
from .ir.schedule import Schedule
from .lowering.lower import lower_with_prefetch

T = TypeVar("T")


class GraphProblem:
    """One graph to plan, the costs of its passes and the bytes to plan inside.

    `known` holds what was found of the graph and its costs alone, whatever the budgets. `lossy` are
    the codecs that may round maps, by map, and `exact` a schedule without them, where it is known.
    """

    def __init__(
        self,
        graph: Graph,
        costs: Costs,
        budgets: Budgets,
        known: dict[object, Any] | None = None,
        lossy: Mapping[str, Form] | None = None,
        exact: Schedule | None = None,
    ) -> None:
        self.graph, self.costs, self.budgets = graph, costs, budgets
        self.lossy, self.exact = lossy or {}, exact
        self._known = {} if known is None else known

    def without_rounding(self) -> "GraphProblem":
        """The problem in which no map may be rounded."""
        return GraphProblem(self.graph, self.costs, self.budgets, self._known)

    def affordable_plans(self, work: int) -> int:
        """How many plans may be tried whose sections and passes are `work` in all."""
        sections = sum(buffer.num_sections for buffer in self.graph.buffers.values())
        return work // (sections + len(self.graph.passes))

    def once(self, find: Callable[[Graph, Costs], T]) -> T:
        """What `find` gives for the graph and its costs; it is called once."""
        if find not in self._known:
            self._known[find] = find(self.graph, self.costs)
        found: T = self._known[find]
        return found

    def lowered(self, plan: Plan, limit: int | None = None) -> Schedule | None:
        """The plan's schedule, None where it has none within both budgets.

        `limit` is the most live bytes in the first attempt.
        """
        try:
            return lower_with_prefetch(self.graph, plan, self.costs, self.budgets, limit)
        except HostMemoryError:
            return None

    def first_that_fits(self, plans: Iterable[Plan]) -> Schedule | None:
        """The schedule of the first plan that has one within both budgets.

        None where none fits the device. Raises HostMemoryError where those that do take too much of
        the host.
        """
        host_error: HostMemoryError | None = None
        for plan in plans:
            try:
                schedule = lower_with_prefetch(self.graph, plan, self.costs, self.budgets)
            except HostMemoryError as error:
                host_error = error
            else:
                if schedule is not None:
                    return schedule
        if host_error is not None:
            raise host_error
        return None


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to plan."""

    name: str
    schedule: Callable[[GraphProblem], Schedule | None]  # None where only the leanest may fit
    leanest: Callable[[GraphProblem], Iterable[Plan]]  # plans one of which has the lowest floor
    fused: bool = True  # plans over fused ops
    coded_pools: bool = False  # plans over ops that are not fused, and poolings that leave codes
    recomputes: bool = False  # may make maps again
    remakes_maps: bool = False  # plans over convolutions that make maps as they load them
    lossy: bool = False  # rounds what backward reads: gradients are not those of `keep`
    searches: bool = False  # tries many plans and takes the fastest
    # Plans of more and more of its means, by the means that each adds. None: it has no such plans.
    ladder: Callable[[GraphProblem], Iterable[tuple[str, Plan]]] | None = None

    def rewrites(self, *, may_round: bool = False) -> Rewrites:
        """The rewrites that the policy plans over; with `may_round` it rounds maps on request.

        Where maps may be rounded, ReLUs behind normalizations mask by signs, and weight gradients
        make no maps again: of rounded inputs these would be others than forward's.
        """
        by_signs = self.fused and (self.lossy or may_round)
        remakes = self.remakes_maps and not by_signs
        return Rewrites(self.fused, self.coded_pools and not self.fused, by_signs, remakes)
