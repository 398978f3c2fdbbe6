"""The joint search: linear programs of orders, dives to whole maps, single changes, placement.

The linear program of an order tells how near a plan of it may come. Shares of the best programs are
rounded by dives. Single decisions are changed as long as the timetable gets shorter. What still
exceeds the memory leaves, outermost maps first. The fastest choices are placed and simulated.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter

from ...placement.cuda_blocks import usable_nbytes
from ..lowering.segments import Variant
from ..lowering.timetable import schedule_within
from ..offload.fit import placed_before_ordering, under_tightened_limits, with_headroom
from ..offload.paged_fit import placed_in_pages
from ..offload.swap_problem import Chooser, EvaluatedTrial, SwapProblem, best_of
from ..problem import GraphProblem
from ..recompute.skeleton import Skeleton
from .dive import FAST, SLOW, dive
from .lp import JointLP, Solution
from .orders import JointChoice, Order, orders

LIMIT = 0.92  # share of the arena that live bytes may take in a trial; placement has the rest
LIMIT_IN_PAGES = 0.985  # of a paged arena
MANY_PAGES = 512  # of a paged arena from which on sections waste little of their last pages
# Dives into the program of the best order: shares of arena and link, and a rule. Copies wait for
# places, and plans that leave the link idle for some time lose less by it.
DIVES = ((0.97, 1.0, FAST), (0.93, 0.6, FAST), (0.97, 0.6, SLOW))
MOST_ORDERS = 2  # whose programs are rounded
NEAR = 1.1  # times the least optimum: orders of more are left out
EVEN = 1.01  # times the least optimum: of these the order of most launches is first
WORK = 45_000  # sections of maps and passes in all plans that single changes make
MIN_GAIN = 1e-4  # of a step: less is no gain
MOST_PLACED = 3  # choices of dives, and besides the best of each order
MOST_FITTED = 2  # schedules of a choice under tightened limits
NEARLY = 1.002  # times its timetable's seconds: a schedule hardly waits for its places
HEADROOM = (0.96, 0.92)  # shares of limits, under which more is offloaded than must be


@dataclass(frozen=True, slots=True)
class JointTrial:
    """A choice in an order, and the predicted seconds of its step."""

    order: Order
    choice: JointChoice
    skeleton: Skeleton
    seconds: float


@dataclass
class JointSearch:
    """The choices tried so far."""

    problem: GraphProblem
    policy: str
    left: int = 0  # trials of single changes
    tried: dict[tuple[Order, JointChoice], JointTrial | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arena = self.problem.budgets.arena
        assert arena is not None, "without a limit everything is kept"
        self.left, self._usable = self.problem.affordable_plans(WORK), usable_nbytes(arena)
        page_nbytes = self.problem.budgets.page_nbytes
        self._in_pages = page_nbytes is not None and arena >= MANY_PAGES * page_nbytes
        self._limit = round((LIMIT_IN_PAGES if self._in_pages else LIMIT) * self._usable)

    def solved(self) -> list[tuple[Order, Solution]]:
        """The orders whose programs have a solution in the whole arena, the most promising first.

        Blocks of other sizes are tried of the best kind of order alone. Orders whose optimum is far
        above the least are left out.
        """
        known = self.problem.once(orders)
        firsts = [order for order in known if order.skeleton.choice.rest is Variant.PERFORMANCE]
        solved = [*self._solutions(firsts)]
        best = min(solved, key=lambda item: item[1].step_s)[0] if solved else firsts[0]
        others = (order for order in known if order not in firsts)
        solved += self._solutions(order for order in others if order.kind == best.kind)
        least_s = min((solution.step_s for _, solution in solved), default=0.0)

        def promise(item: tuple[Order, Solution]) -> tuple[float, int]:
            num_launches = len(item[0].skeleton.program.launches)
            return max(EVEN * least_s, item[1].step_s), -num_launches

        ranked = sorted(solved, key=promise)
        return [item for item in ranked if item[1].step_s <= NEAR * least_s]

    def _solutions(self, known: Iterable[Order]) -> Iterator[tuple[Order, Solution]]:
        for order in known:
            solution = self._program(order, 1.0).solve()
            if solution is not None:
                yield order, solution

    def rounded(self, solved: Sequence[tuple[Order, Solution]]) -> Iterator[JointTrial]:
        """Trials of what dives make of the most promising programs."""
        for order, _ in solved[:MOST_ORDERS]:
            for share, link_share, rule in DIVES:
                program = self._program(order, share, link_share)
                solution = program.solve()
                found = dive(program, solution, rule) if solution else None
                trial = self._take(order, JointChoice.of(found), inf) if found else None
                yield from [trial] if trial else []

    def improved(self, best: JointTrial, solution: Solution) -> JointTrial:
        """The best trial that changes of single decisions make of this one.

        They are ordered by the prices of the order's solution.
        """
        program = self._program(best.order, 1.0)
        before: JointTrial | None = None
        while before is not best:
            before = best
            for choice in _single_changes(program, solution, best.choice):
                if self.left > 0 and (best.order, choice) not in self.tried:
                    self.left -= 1
                    trial = self._take(best.order, choice, (1 - MIN_GAIN) * best.seconds)
                    best = trial or best
        return best

    def placed(self, trial: JointTrial, best: EvaluatedTrial | None) -> EvaluatedTrial | None:
        """The best schedule so far, or a faster one of the trial.

        Ways to place it go from the fastest to make to the slowest, until a schedule hardly waits
        for places.
        """
        swap = SwapProblem(self.problem, trial.skeleton, self.policy)
        for choose in (trial.skeleton.outermost_idle, swap.greedy):
            first = swap.trial(choose(swap.usable), swap.usable)
            if first is None or (best and first.seconds >= (1 - MIN_GAIN) * best.seconds):
                continue
            enough_s = NEARLY * first.seconds
            for place in (_tightened, placed_before_ordering, _in_pages, _with_headroom):
                best = best_of([best, *place(swap, choose, best)])
                if best and best.seconds <= enough_s:
                    break
        return best

    def _program(self, order: Order, share: float, link_share: float = 1.0) -> JointLP:
        limit, host = round(share * self._usable), self.problem.budgets.host
        return JointLP(order.columns, limit, host, link_share=link_share)

    def _take(self, order: Order, choice: JointChoice, below_s: float) -> JointTrial | None:
        """The trial of a choice; None where its bytes are too many or it takes no less."""
        key = order, choice
        if key not in self.tried:
            self.tried[key] = self._trial(order, choice, below_s)
        return self.tried[key]

    def _trial(self, order: Order, choice: JointChoice, below_s: float) -> JointTrial | None:
        graph, costs = self.problem.graph, self.problem.costs
        skeleton, limit = order.woven(choice), self._limit
        if skeleton.compute_s(costs) >= below_s:
            return None
        plan = skeleton.plan_within(limit)
        if plan is None:
            return None
        steps = schedule_within(graph, plan, costs, limit, patient=self._in_pages)
        if steps is None or steps.seconds >= below_s:
            return None
        return JointTrial(order, choice, skeleton, steps.seconds)


def _tightened(
    swap: SwapProblem, choose: Chooser, best: EvaluatedTrial | None
) -> Iterable[EvaluatedTrial]:
    return under_tightened_limits(swap, choose, best, most=MOST_FITTED)


def _in_pages(
    swap: SwapProblem, choose: Chooser, best: EvaluatedTrial | None
) -> Iterable[EvaluatedTrial]:
    found = placed_in_pages(swap, choose, best)
    return [found] if found else []


def _with_headroom(
    swap: SwapProblem, choose: Chooser, best: EvaluatedTrial | None
) -> Iterable[EvaluatedTrial]:
    if best is not None and best.schedule.pages:
        return []
    return with_headroom(swap, choose, HEADROOM, best)


def _single_changes(
    program: JointLP, solution: Solution, choice: JointChoice
) -> Iterator[JointChoice]:
    """Choices that differ in one decision: columns left out, the dearest first, and others taken.

    Of these the cheapest come first.
    """
    prices = abs(solution.prices[program.first_absent :])
    for column in sorted(choice.absent, key=lambda each: (-prices[each], each)):
        yield JointChoice(choice.absent - {column}, choice.blocks)
    for number in range(len(program.columns.blocks)):
        yield JointChoice(choice.absent, choice.blocks ^ {number})
    others = (each for each in range(len(prices)) if each not in choice.absent)
    for column in sorted(others, key=lambda each: (prices[each], each)):
        yield JointChoice(choice.absent - program.conflicts[column] | {column}, choice.blocks)


def fastest_joint(
    search: JointSearch, solved: Sequence[tuple[Order, Solution]], below_s: float
) -> EvaluatedTrial | None:
    """The fastest schedule found of the solved orders; None where none takes fewer seconds."""
    found = sorted(search.rounded(solved), key=attrgetter("seconds"))
    if not found:
        return None
    firsts = {trial.order: trial for trial in reversed(found)}
    improved = search.improved(found[0], dict(solved)[found[0].order])
    chosen = dict.fromkeys((improved, *found[:MOST_PLACED], *firsts.values()))
    best: EvaluatedTrial | None = None
    for trial in sorted(chosen, key=attrgetter("seconds")):
        if trial.seconds < (1 - MIN_GAIN) * min(below_s, best.seconds if best else inf):
            best = search.placed(trial, best)
    return best if best and best.seconds < below_s else None
