"""Floor: the fewest device bytes with which a plan has a schedule, and that schedule.

At the floor a section is live from its first use to its last, and no prefetch is issued early.
"""

from dataclasses import dataclass

from ...errors import BudgetError
from ...graph import Graph
from ...units import format_bytes
from ..ir.costs import Costs
from ..ir.plan import Plan
from ..ir.schedule import Schedule
from .arena import MANY_TRIALS, ArenaLayout, place_arena
from .emit import emit_schedule
from .list_scheduler import required_nbytes
from .program import Program, build_program
from .timetable import Timetable

# Random orders without gain after which the search for the smallest arena ends.
RESTARTS = 150


@dataclass(frozen=True, slots=True)
class MinimumSchedule:
    """The timetable of a plan with the fewest live bytes at every launch, and its arena."""

    graph: Graph
    timetable: Timetable
    arena: ArenaLayout
    floor: tuple[int, str]  # device bytes, and the step that sets them

    @classmethod
    def of(cls, graph: Graph, plan: Plan, costs: Costs) -> "MinimumSchedule":
        prog = build_program(graph, plan)
        timetable = Timetable.within(graph, plan, prog, costs, required_nbytes(prog))
        arena = place_arena(graph, timetable, trials=MANY_TRIALS, restarts=RESTARTS)
        floor = graph.fixed_nbytes + arena.nbytes, _largest_step(graph, prog)
        return cls(graph, timetable, arena, floor)

    def schedule(self, *, budget: int | None, host_budget: int | None) -> Schedule:
        """The schedule at the floor. Budgets are in bytes.

        Raises BudgetError with the floor where it exceeds `budget`, HostMemoryError where the host
        copies exceed `host_budget`.
        """
        nbytes, step = self.floor
        if budget is not None and nbytes > budget:
            raise BudgetError(
                f"budget {format_bytes(budget)} is below the floor {format_bytes(nbytes)} "
                f"({nbytes:,} bytes) of {self.timetable.plan.policy}, set by {step}; raise the "
                "budget, lower chunk_size or the batch, or choose a policy that offloads more",
                floor_nbytes=nbytes,
                step=step,
            )
        budgets = {"budget": budget, "host_budget": host_budget}
        return emit_schedule(self.graph, self.timetable, self.arena, **budgets)


def floor_lower_bound(graph: Graph, plan: Plan) -> tuple[int, str]:
    """A lower bound in bytes on the plan's floor, and the step that sets it."""

    prog = build_program(graph, plan)
    nbytes = int(required_nbytes(prog).max(initial=0))
    return graph.fixed_nbytes + nbytes, _largest_step(graph, prog)


def _largest_step(graph: Graph, prog: Program) -> str:
    """The name of the launch that requires the most bytes."""
    required = required_nbytes(prog)
    if not required.size:
        return "no step"
    launch = prog.launches[int(required.argmax())]
    return f"{graph.passes[launch.pass_index].name} [{launch.start}, {launch.stop})"
