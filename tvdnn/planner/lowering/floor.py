"""Floor: the fewest device bytes in which a plan has a schedule, and the schedule there.

Sections are then there from their first use to their last, and no copy comes ahead of its use.
"""

from dataclasses import dataclass

from ...errors import BudgetError
from ...graph import Graph
from ...units import format_bytes
from ..ir.costs import Costs
from ..ir.plan import Plan
from ..ir.schedule import Schedule
from .arena import MANY_TRIALS, Arena, place_arena
from .emit import assembled
from .list_scheduler import demand
from .program import Program, program
from .timetable import Ordered

SHUFFLES = 150  # of few extents, without gain


@dataclass(frozen=True, slots=True)
class AtFloor:
    """A plan's steps in an order that has the fewest bytes at every launch, and their arena.

    `floor` are the device bytes from which on the plan has a schedule, and the step that sets them.
    """

    graph: Graph
    steps: Ordered
    arena: Arena
    floor: tuple[int, str]

    @classmethod
    def of(cls, graph: Graph, plan: Plan, costs: Costs) -> "AtFloor":
        prog = program(graph, plan)
        steps = Ordered.under(graph, plan, prog, costs, demand(prog))
        arena = place_arena(graph, steps, trials=MANY_TRIALS, shuffles=SHUFFLES)
        floor = graph.fixed_nbytes + arena.nbytes, _tight_step(graph, prog)
        return cls(graph, steps, arena, floor)

    def schedule(self, *, budget: int | None, host_budget: int | None) -> Schedule:
        """The plan's schedule in the fewest bytes.

        Raises BudgetError with the floor where that is above the budget, HostMemoryError where
        copies do not fit.
        """
        nbytes, step = self.floor
        if budget is not None and nbytes > budget:
            raise BudgetError(
                f"budget {format_bytes(budget)} is below the floor {format_bytes(nbytes)} "
                f"({nbytes:,} bytes) of {self.steps.plan.policy}, set by {step}; raise the budget, "
                "lower chunk_size or the batch, or choose a policy that offloads more",
                floor_nbytes=nbytes,
                step=step,
            )
        return assembled(self.graph, self.steps, self.arena, budget=budget, host_budget=host_budget)


def demand_nbytes(graph: Graph, plan: Plan) -> tuple[int, str]:
    """A bound from below of the plan's floor, its bytes without their placement, and its step."""
    prog = program(graph, plan)
    return graph.fixed_nbytes + int(demand(prog).max(initial=0)), _tight_step(graph, prog)


def _tight_step(graph: Graph, prog: Program) -> str:
    """The launch that needs the most bytes at once."""
    needed = demand(prog)
    if not needed.size:
        return "no step"
    launch = prog.launches[int(needed.argmax())]
    return f"{graph.passes[launch.pass_index].name} [{launch.start}, {launch.stop})"
