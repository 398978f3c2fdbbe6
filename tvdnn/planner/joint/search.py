"""The joint search: linear programs of orders, dives to whole maps, single changes, placement.

A linear program of each order tells how near a plan of it may come. The shares of the best ones are
rounded by dives. Single decisions are changed as long as the timetable gets shorter. What still
exceeds the memory leaves. The fastest choices are placed, and the simulator tells which is best.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter

import numpy as np

from ...placement.cuda_blocks import usable_nbytes
from ..ir.schedule import Schedule
from ..lowering.idle import IdleInterval
from ..lowering.launch_limits import MemoryLimit
from ..lowering.timetable import schedule_within
from ..offload.belady import belady_choice
from ..offload.fit import placed_before_ordering, under_tightened_limits
from ..offload.swap_problem import EvaluatedTrial, SwapProblem, best_of, placed_if_any
from ..problem import GraphProblem
from ..recompute.skeleton import Skeleton
from .dive import DiveRule, dive
from .lp import JointLP, Solution
from .orders import Choice, Order, orders

POLICY = "auto"
LIMITS = (0.97, 0.93, 0.88)  # shares of the arena for which programs are rounded; placement has the rest
RULES = (DiveRule(0.95, 0.5, 0.1, 0.35), DiveRule(0.93, 0.4, 0.05, 0.2))
MOST_ORDERS = 3  # whose programs are rounded
NEAR = 1.1  # times the least optimum: orders of more are left out
EVEN = 1.005  # times the least optimum: of these the order of most launches is first
WORK = 100_000  # sections of maps and passes in all plans that single changes make
MIN_GAIN = 1e-4  # of a step: less is no gain
HEADROOM = (0.96, 0.92, 0.88)  # shares of limits, for choices that are placed before ordering

Chooser = Callable[[MemoryLimit], Sequence[IdleInterval] | None]


@dataclass(frozen=True, slots=True)
class JointTrial:
    """A choice in an order, and the predicted seconds of its step."""

    order: Order
    choice: Choice
    skeleton: Skeleton
    seconds: float


@dataclass
class JointSearch:
    """The choices tried so far."""

    problem: GraphProblem
    left: int  # trials of single changes
    log: Callable[[str], None] = field(default=lambda text: None)
    tried: dict[tuple[Order, Choice], JointTrial | None] = field(default_factory=dict)

    @property
    def limit(self) -> int:
        """The most live bytes of a timetable."""
        arena = self.problem.budgets.arena
        assert arena is not None, "without a limit everything is kept"
        return round(LIMITS[0] * usable_nbytes(arena))

    def solved(self) -> list[tuple[Order, Solution]]:
        """The orders whose programs have a solution, the most promising first."""
        found = list[tuple[Order, Solution]]()
        for order in self.problem.once(orders):
            solution = self.program(order, LIMITS[0]).solve()
            found += [(order, solution)] if solution else []
            choice = order.skeleton.choice
            self.log(f"order {choice.rest.value} {choice.blocks[:1]} {choice.through} {solution and 1e3 * solution.step_s}")
        least_s = min((solution.step_s for _, solution in found), default=0.0)

        def promise(item: tuple[Order, Solution]) -> tuple[float, int]:
            launches = len(item[0].skeleton.program.launches)
            return max(EVEN * least_s, item[1].step_s), -launches

        return [each for each in sorted(found, key=promise) if each[1].step_s <= NEAR * least_s]

    def program(self, order: Order, share: float) -> JointLP:
        limit = round(share / LIMITS[0] * self.limit)
        return JointLP(order.columns, limit, self.problem.budgets.host)

    def take(self, order: Order, choice: Choice, below_s: float = inf) -> JointTrial | None:
        """The trial of a choice; None where its bytes are too many or it takes no less."""
        key = order, choice
        if key not in self.tried:
            self.tried[key] = self._trial(order, choice, below_s)
        return self.tried[key]

    def _trial(self, order: Order, choice: Choice, below_s: float) -> JointTrial | None:
        skeleton, costs = order.woven(choice), self.problem.costs
        if skeleton.compute_s(costs) >= below_s:
            return None
        offloaded = skeleton.outermost_idle(self.limit)
        if offloaded is None:
            return None
        plan = skeleton.offloading(offloaded)
        steps = schedule_within(self.problem.graph, plan, costs, self.limit)
        if steps is None or steps.seconds >= below_s:
            return None
        return JointTrial(order, choice, skeleton, steps.seconds)

    def rounded(self) -> Iterator[JointTrial]:
        """Trials of what dives make of the most promising programs."""
        for number, (order, first) in enumerate(self.solved()[:MOST_ORDERS]):
            for share in LIMITS[: 1 if number else None]:
                program = self.program(order, share)
                solution = first if share == LIMITS[0] else program.solve()
                for rule in RULES[: 1 if number else None] if solution else ():
                    found = dive(program, solution, rule)
                    trial = self.take(order, Choice.of(found)) if found else None
                    self.log(f"dive {number} {share} {rule.part} {1e3 * solution.step_s:.2f} {found and 1e3 * found.step_s} -> {trial and 1e3 * trial.seconds}")
                    yield from [trial] if trial else []

    def improved(self, best: JointTrial) -> Iterator[JointTrial]:
        """Trials, each faster than the one before, by changes of single decisions."""
        program = self.program(best.order, LIMITS[0])
        solution = program.solve()
        prices = np.zeros(len(best.order.columns.absent))
        if solution is not None:
            prices = np.abs(solution.prices)
        before: JointTrial | None = None
        while before is not best:
            before = best
            for choice in _single_changes(program, prices, best):
                if self.left <= 0:
                    return
                if (best.order, choice) in self.tried:
                    continue
                self.left -= 1
                trial = self.take(best.order, choice, (1 - MIN_GAIN) * best.seconds)
                if trial is not None:
                    best = trial
                    yield best


def _single_changes(program: JointLP, prices: np.ndarray, best: JointTrial) -> Iterator[Choice]:
    """Choices that differ in one decision, the dearest of those taken first."""
    taken, blocks = best.choice.absent, best.choice.blocks
    for column in sorted(taken, key=lambda each: (-prices[each], each)):
        yield Choice(taken - {column}, blocks)
    for number in range(len(program.columns.blocks)):
        yield Choice(taken, blocks ^ {number})
    others = (each for each in range(len(prices)) if each not in taken)
    for column in sorted(others, key=lambda each: (prices[each], each)):
        yield Choice(taken - program.conflicts[column] | {column}, blocks)


def fastest_found(
    problem: GraphProblem, log: Callable[[str], None] = lambda text: None
) -> Schedule | None:
    """The fastest schedule found within both budgets, as simulated; None where none is found."""
    search = JointSearch(problem, problem.affordable_plans(WORK), log)
    found = sorted(search.rounded(), key=attrgetter("seconds"))
    if not found:
        return None
    improved = [*search.improved(found[0])][-1:]
    log(f"improved {[1e3 * e.seconds for e in improved]}")
    best: EvaluatedTrial | None = None
    for trial in _shortlist([*improved, *found]):
        if best is None or trial.seconds < (1 - MIN_GAIN) * best.seconds:
            best = _placed(problem, trial, best, log)
    return best and best.schedule


def _shortlist(found: Sequence[JointTrial]) -> list[JointTrial]:
    """The best trials, and of each order the best."""
    firsts = {each.order: each for each in reversed(found)}
    return sorted({id(e): e for e in (*found[:3], *firsts.values())}.values(), key=attrgetter("seconds"))


def _placed(
    problem: GraphProblem, trial: JointTrial, best: EvaluatedTrial | None, log
) -> EvaluatedTrial | None:
    """The best schedule so far, or a faster one of the trial."""
    swap = SwapProblem(problem, trial.skeleton, POLICY)
    for choose in (trial.skeleton.outermost_idle, swap.greedy):
        for make in (placed_before_ordering, under_tightened_limits):
            if best is None or trial.seconds < (1 - MIN_GAIN) * best.seconds:
                f=make(swap, choose, best)
                log(f"placed {1e3*trial.seconds:.2f} {choose.__name__} {make.__name__} {[round(1e3 * e.seconds, 2) for e in f]}")
                best = best_of([best, *f])
        for share in HEADROOM:
            limit = int(share * swap.usable)
            headed = swap.trial(choose(limit), limit)
            if headed is not None and (best is None or headed.seconds < best.seconds):
                best = best_of([best, placed_if_any(swap.placed_before_ordering, headed)])
    log(f"best {best and 1e3 * best.seconds}")
    return best
