"""Floor: the fewest device bytes with which a plan has a schedule, and that schedule.

At the floor a section is live from its first use to its last, and no prefetch is issued early.
"""

from dataclasses import dataclass

from ...errors import BudgetError, HostMemoryError
from ...graph import Graph
from ...units import format_bytes
from ..ir.budgets import Budgets
from ..ir.costs import Costs
from ..ir.plan import Plan
from ..ir.schedule import Schedule, counts_nbytes
from .arena_layout import MANY_TRIALS, ArenaLayout, place_arena
from .build_program import build_program
from .emit import emit_schedule
from .list_scheduler import required_nbytes
from .program import Program
from .spill import SPILL_SHARES, with_spills
from .timetable import Timetable

# Random orders without gain after which the search for the smallest arena ends.
RESTARTS = 150


@dataclass(frozen=True, slots=True)
class MinimumSchedule:
    """The timetable of a plan with the fewest live bytes at every launch, and its arena."""

    timetable: Timetable
    arena: ArenaLayout
    floor: tuple[int, str]  # device bytes, and the step that sets them
    costs: Costs

    @classmethod
    def of(cls, graph: Graph, plan: Plan, costs: Costs) -> "MinimumSchedule":
        prog = build_program(graph, plan)
        timetable = Timetable.within(prog, costs, required_nbytes(prog))
        arena = place_arena(timetable, trials=MANY_TRIALS, restarts=RESTARTS)
        outside = graph.fixed_nbytes + counts_nbytes(len(prog.counts))
        return cls(timetable, arena, (outside + arena.nbytes, _fullest(prog)[1]), costs)

    def schedule(self, budgets: Budgets) -> Schedule:
        """The schedule at the floor.

        Raises BudgetError with the floor where it exceeds the device's budget, HostMemoryError
        where the host copies exceed theirs.
        """
        budget, (nbytes, step) = budgets.device, self.floor
        policy = self.timetable.program.plan.policy
        if budget is not None and nbytes > budget:
            raise BudgetError(
                f"budget {format_bytes(budget)} is below the floor {format_bytes(nbytes)} "
                f"({nbytes:,} bytes) of {policy}, set by {step}; raise the budget, "
                "lower chunk_size or the batch, or choose a policy that offloads more",
                floor_nbytes=nbytes,
                step=step,
            )
        if len(budgets.tiers.order) == 1:
            return emit_schedule(self.timetable, self.arena, budgets)
        return self._with_spills(budgets)

    def _with_spills(self, budgets: Budgets) -> Schedule:
        """The schedule with what a tier cannot hold in the next. It has the same live bytes."""
        prog, costs = self.timetable.program, self.costs
        for share in SPILL_SHARES:
            plan = with_spills(prog.graph, prog.plan, budgets, share)
            least = self if plan == prog.plan else MinimumSchedule.of(prog.graph, plan, costs)
            try:
                return emit_schedule(least.timetable, least.arena, budgets)
            except HostMemoryError:
                if share == SPILL_SHARES[-1]:
                    raise
        raise AssertionError


def floor_lower_bound(graph: Graph, plan: Plan) -> tuple[int, str]:
    """A lower bound in bytes on the plan's floor, and the step that sets it."""
    prog = build_program(graph, plan)
    nbytes, step = _fullest(prog)
    return graph.fixed_nbytes + counts_nbytes(len(prog.counts)) + nbytes, step


def _fullest(prog: Program) -> tuple[int, str]:
    """The most bytes that a launch requires, and its name."""
    required = required_nbytes(prog)
    if not required.size:
        return 0, "no step"
    return int(required.max()), prog.launch_name(int(required.argmax()))
