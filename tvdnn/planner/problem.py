"""Problem of planning one graph: its costs, the bytes to plan inside; and what a policy is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import HostMemoryError
from ..graph import Graph
from .ir.costs import Costs
from .ir.plan import Plan
from .ir.schedule import Schedule
from .lowering.lower import lower_with_prefetch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes to plan inside; None where there is no limit."""

    device: int | None = None
    host: int | None = None  # pinned
    arena: int | None = None  # what the graph's fixed bytes leave of the device's

    @classmethod
    def of(cls, graph: Graph, device: int | None, host: int | None = None) -> "Limits":
        """The limits of a graph on a device."""
        return cls(device, host, None if device is None else device - graph.fixed_nbytes)


class GraphProblem:
    """One graph to plan, the costs of its passes and the bytes to plan inside.

    `known` holds what was found of the graph and its costs alone, whatever the limits.
    """

    def __init__(
        self, graph: Graph, costs: Costs, limits: Limits, known: dict[object, Any] | None = None
    ) -> None:
        self.graph, self.costs, self.limits = graph, costs, limits
        self._known = {} if known is None else known

    def once(self, find: Callable[[Graph, Costs], T]) -> T:
        """What `find` gives for the graph and its costs; it is called once."""
        if find not in self._known:
            self._known[find] = find(self.graph, self.costs)
        found: T = self._known[find]
        return found

    def lowered(self, plan: Plan) -> Schedule | None:
        """The plan's schedule, None where it has none within both budgets."""
        try:
            return self._lowered(plan)
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
                schedule = self._lowered(plan)
            except HostMemoryError as error:
                host_error = error
            else:
                if schedule is not None:
                    return schedule
        if host_error is not None:
            raise host_error
        return None

    def _lowered(self, plan: Plan) -> Schedule | None:
        limits = self.limits
        return lower_with_prefetch(
            self.graph, plan, self.costs, budget=limits.device, host_budget=limits.host
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to plan."""

    name: str
    schedule: Callable[[GraphProblem], Schedule | None]  # None where only the leanest may fit
    leanest: Callable[[GraphProblem], Iterable[Plan]]  # plans one of which has the lowest floor
    fused: bool = True  # plans over fused ops
    recomputes: bool = False  # may make maps again
    searches: bool = False  # tries many plans and takes the fastest
