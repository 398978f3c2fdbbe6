"""The joint search: linear programs of orders, ranked columns, dives, single changes, placement.

The linear program of an order tells how near a plan of it may come. Shares of the best programs are
rounded by dives. Single decisions are changed as long as the timetable gets shorter. What still
exceeds the memory leaves, outermost maps first. The fastest choices are placed and simulated. In
small networks single decisions are changed once more, and each change is placed and simulated.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import attrgetter

from ...graph import Graph
from ...placement.cuda_blocks import usable_nbytes
from ..ir.costs import Costs
from ..lowering.segments import Variant
from ..lowering.spill import with_spills
from ..lowering.timetable import schedule_within
from ..offload.swap_problem import EvaluatedTrial, SwapProblem, best_of
from ..problem import GraphProblem
from ..recompute.skeleton import Skeleton
from .changes import single_changes
from .dive import dive
from .lp import JointLP, Solution
from .orders import JointChoice, Order, orders, staged_orders
from .placing import ways_to_place
from .ranked import RankedColumns

# Shares of the arena that live bytes may take in trials; placement has the rest. The next one is
# tried where schedules take NEAR_TRIAL times longer than their trials.
LIMITS = (0.97, 0.92, 0.87)
LIMITS_IN_PAGES = (0.985, 0.95, 0.91)  # of a paged arena
NEAR_TRIAL = 1.005
MANY_PAGES = 512  # of a paged arena from which on sections waste little of their last pages
# Dives into the program of an order: shares of arena and link, and the part of the fractions that a
# round fixes at most. Copies wait for places, and plans that leave the link idle for some time lose
# less by it. Which dive finds the fastest plan is chance: without the third, quarters of U-Net and
# ResNet-50 take 12 and 3% longer on an H100's costs, without the second, one of GoogLeNet 6% on the
# data sheet's of an H200 (2026-11-27).
DIVES = ((0.97, 1.0, 0.2), (0.93, 0.6, 0.2), (0.97, 1.0, 0.05))
MOST_ORDERS = 2  # whose programs are rounded
NEAR = 1.1  # times the least optimum: orders of more are left out
TIGHT = 1.5  # times the launches: if the least optimum is more, layers go in barrier stages
ALIKE = 1 + 1e-9  # times the least optimum: kinds of order of no more are as good as the best
EVEN = 1.01  # times the least optimum: of these the order of most launches is first
LEAST_RANKED, MOST_RANKED = 3, 7  # trials of ranked columns of the deepest network, of others
# The first step between numbers of ranked columns is one part in so many of all. Where trials are
# few, the first guess is close.
STEPS, STEPS_OF_FEW = 16, 64
WORK = 60_000  # sections of maps and passes in all plans that single changes make
CLOSE = 1.003  # times the least optimum: trials so near need no single changes
NEAR_DIVE = 2.0  # times the least seconds of trials and dives: dives that take more are given up
CLOSE_ENOUGH = 1.01  # times the least optimum: ranked columns so near need no dives
MOST_CHANGES = 40  # trials of single changes under one limit
# Times an order's optimum with codes of maps: where it is no more without them, they are no means.
# Rounded, small gains are none, and planning takes twice as long (VGG-16 and AlexNet, 2026-11-26).
# Where maps may be rounded, a plan without codes is known already.
WORTH_CODES = 1.05
ALIKE_TRIAL = 1e-6  # of a step: trials that differ by less are the same
MIN_GAIN = 1e-4  # of a step: less is no gain
# Of a step: schedules take longer than their trials. Only the best trial of a limit is placed for
# less, and limits whose best trial promises less are left out.
PLACED_GAIN = 0.02
# Changes of the fastest schedule's choice that are placed, where WORK affords SMALL plans or more.
# Of 20 drawn problems that took 7 to 33% longer than the fastest plan, 24 changes bring 14 within
# 2% of it. 60 changes bring 16, in 1.4 times the time (bench/enumerated.py, 2026-11-27).
MOST_PLACED_CHANGES, SMALL = 24, 300
MOST_PLACED = 3  # choices of dives, and besides the best of each order


@dataclass(frozen=True, slots=True)
class JointTrial:
    """A choice in an order, and the predicted seconds of its step."""

    order: Order
    choice: JointChoice
    skeleton: Skeleton
    seconds: float
    waits: bool  # for copies


@dataclass
class JointSearch:
    """The choices tried so far."""

    problem: GraphProblem
    policy: str
    skeletons: dict[tuple[Order, JointChoice], Skeleton] = field(default_factory=dict)
    rankings: dict[Order, RankedColumns] = field(default_factory=dict)
    done: set[tuple[Order, JointChoice]] = field(default_factory=set)  # placed
    programs: dict[Order, JointLP] = field(default_factory=dict)
    uncoded: set[Order] = field(default_factory=set)  # orders in which no map is encoded
    limit: int = 0  # live bytes of trials
    fastest: JointTrial | None = None  # the trial of the fastest schedule

    def __post_init__(self) -> None:
        arena = self.problem.budgets.arena
        assert arena is not None, "without a limit everything is kept"
        self._usable = usable_nbytes(arena)
        page_nbytes = self.problem.budgets.page_nbytes
        self._in_pages = page_nbytes is not None and arena >= MANY_PAGES * page_nbytes

    @property
    def limits(self) -> list[int]:
        """The limits on live bytes of trials, one after the other."""
        shares = LIMITS_IN_PAGES if self._in_pages else LIMITS
        return [round(share * self._usable) for share in shares]

    def solved(self) -> list[tuple[Order, Solution]]:
        """The orders whose programs have a solution in the whole arena, the most promising first.

        Blocks of other sizes are tried of the best kind of order alone, and of kinds as good.
        Orders whose optimum is far above the least are left out.
        """
        known = self._orders(orders)
        firsts = [order for order in known if order.skeleton.choice.rest is Variant.PERFORMANCE]
        solved = [*self._solutions(firsts)]
        least_s = min((solution.step_s for _, solution in solved), default=inf)
        best = [order.kind for order, found in solved if found.step_s <= ALIKE * least_s]
        others = (order for order in known if order not in firsts)
        solved += self._solutions(o for o in others if o.kind in (best or [firsts[0].kind]))
        least_s = min((solution.step_s for _, solution in solved), default=inf)
        if least_s > TIGHT * firsts[0].skeleton.compute_s(self.problem.costs):
            solved += self._solutions(self._orders(staged_orders))
            least_s = min((solution.step_s for _, solution in solved), default=inf)

        def promise(item: tuple[Order, Solution]) -> tuple[float, int]:
            num_launches = len(item[0].skeleton.program.launches)
            return max(EVEN * least_s, item[1].step_s), -num_launches

        ranked = sorted(solved, key=promise)
        near = [item for item in ranked if item[1].step_s <= NEAR * least_s]

        def repeats(item: tuple[Order, Solution]) -> bool:
            """Whether an order has much the plans of the first, and promises no more."""
            (first, least), (order, found) = near[0], item
            return order is not first and order.like(first) and found.step_s >= least.step_s

        return sorted(near, key=repeats)

    def _orders(self, find: Callable[[Graph, Costs], list[Order]]) -> list[Order]:
        """The orders found of the graph, in which maps may be rounded as the problem allows."""
        known, lossy = self.problem.once(find), self.problem.lossy
        return [replace(order, lossy=lossy) for order in known] if lossy else known

    def _solutions(self, known: Iterable[Order]) -> Iterator[tuple[Order, Solution]]:
        for order in known:
            solution = self._program(order).solve()
            if solution is not None and solution.coded.any():
                without = self._program(order, with_codes=False).solve()
                worth = 1.0 if self.problem.lossy else WORTH_CODES
                if without is not None and without.step_s <= worth * solution.step_s:
                    solution = without
                    self.uncoded.add(order)
            if solution is not None:
                yield order, solution

    def rounded(
        self, solved: Sequence[tuple[Order, Solution]], known_s: float = inf
    ) -> Iterator[tuple[Order, JointChoice]]:
        """What dives make of the most promising programs, where a choice of `known_s` is known."""
        for order, _ in solved[:MOST_ORDERS]:
            for share, link_share, most_part in DIVES:
                program, most_s = self._program(order, share, link_share), NEAR_DIVE * known_s
                solution = program.solve(most_s=most_s)
                found = dive(program, solution, most_part, most_s) if solution else None
                if found is not None:
                    known_s = min(known_s, found.step_s)
                    yield order, JointChoice.of(found, order.columns)

    def ranked(self, order: Order) -> Iterator[JointTrial]:
        """Trials of the first ranked columns: more where a step waits for copies, else fewer.

        Changes of the number double until one is too large. Then they halve.
        """
        most = max(LEAST_RANKED, min(MOST_RANKED, self.problem.affordable_plans(WORK)))
        if order not in self.rankings:
            self.rankings[order] = RankedColumns(order)
        columns = self.rankings[order]
        low, high = 0, len(columns.columns)
        count = columns.most_overlapped(self._usable)
        step = 1 + high // (STEPS_OF_FEW if most == LEAST_RANKED else STEPS)
        seen: set[bool] = set()
        for _ in range(most):
            if low > high:
                return
            count = (low + high) // 2 if len(seen) == 2 else min(max(low, count), high)
            trial = self.trial(order, columns.choice(count))
            yield from [trial] if trial else []
            waits = trial is None or trial.waits
            low, high = (count + 1, high) if waits else (low, count - 1)
            count += step if waits else -step
            step *= 2
            seen.add(waits)

    def improved(self, best: JointTrial, solution: Solution) -> JointTrial:
        """The best trial that changes of single decisions make of this one.

        They are ordered by the prices of the order's solution.
        """
        program, tried = self._program(best.order), {best.choice}
        left = min(MOST_CHANGES, self.problem.affordable_plans(WORK))
        before: JointTrial | None = None
        while before is not best:
            before = best
            for choice in single_changes(program, solution, best.choice):
                longer = not best.waits and choice.absent > best.choice.absent
                if left > 0 and choice not in tried and not longer:
                    left -= 1
                    tried.add(choice)
                    trial = self.trial(best.order, choice, (1 - MIN_GAIN) * best.seconds)
                    best = trial or best
        return best

    def fastest_placed(
        self, trials: Iterable[JointTrial], best: EvaluatedTrial | None
    ) -> EvaluatedTrial | None:
        """The best schedule so far, or a faster one of these trials. None is placed twice."""
        gain, tried_s = MIN_GAIN, 0.0
        for trial in trials:
            known = trial.order, trial.choice
            faster = best is None or trial.seconds < (1 - gain) * best.seconds
            if faster and known not in self.done and trial.seconds > (1 + ALIKE_TRIAL) * tried_s:
                self.done.add(known)
                before, best = best, self.placed(trial, best)
                self.fastest = self.fastest if best is before else trial
                gain, tried_s = PLACED_GAIN, trial.seconds
        return best

    def improved_in_places(
        self, best: EvaluatedTrial, solutions: Mapping[Order, Solution]
    ) -> EvaluatedTrial:
        """The fastest schedule that single changes of the fastest trial lead to.

        Each is placed that is predicted to take less than the best schedule so far.
        """
        left, before = MOST_PLACED_CHANGES, None
        self.limit = self._usable
        while before is not self.fastest and self.fastest is not None:
            before = self.fastest
            program, solution = self._program(before.order), solutions[before.order]
            for choice in single_changes(program, solution, before.choice):
                known = before.order, choice
                if left == 0 or known in self.done:
                    continue
                trial = self.trial(*known, (1 - MIN_GAIN) * best.seconds)
                if trial is None:
                    continue
                left -= 1
                self.done.add(known)
                found = self.placed(trial, best)
                if found is not None and found.seconds < (1 - MIN_GAIN) * best.seconds:
                    best, self.fastest = found, trial
        return best

    def placed(self, trial: JointTrial, best: EvaluatedTrial | None) -> EvaluatedTrial | None:
        """The best schedule so far, or a faster one of the trial.

        Ways to place it follow each other until a schedule hardly waits for places.
        """
        swap = SwapProblem(self.problem, trial.skeleton, self.policy)
        nearly, ways = ways_to_place(trial.skeleton)
        for choose in (trial.skeleton.outermost_idle, swap.greedy):
            first = swap.trial(choose(swap.usable), swap.usable)
            if first is None or (best and first.seconds >= (1 - MIN_GAIN) * best.seconds):
                continue
            enough_s = nearly * first.seconds
            for place in ways:
                best = best_of([best, *place(swap, choose, best)])
                if best and best.seconds <= enough_s:
                    break
            if best and best.seconds <= nearly * trial.seconds:
                break
        return best

    def _program(
        self, order: Order, share: float = 1.0, link_share: float = 1.0, *, with_codes: bool = True
    ) -> JointLP:
        """The program of an order in a share of the arena, with codes unless the order has none."""
        limit, codes = round(share * self._usable), with_codes and order not in self.uncoded
        if order not in self.programs:
            self.programs[order] = JointLP(order.columns, limit, self.problem.budgets.away)
        program = self.programs[order]
        program.limit(limit, link_share=link_share, with_codes=codes)
        return program

    def trial(self, order: Order, choice: JointChoice, below_s: float = inf) -> JointTrial | None:
        """The trial of a choice; None where its bytes are too many or it takes no less."""
        graph, costs, limit = self.problem.graph, self.problem.costs, self.limit
        key = order, choice
        if key not in self.skeletons:
            self.skeletons[key] = order.woven(choice)
        skeleton = self.skeletons[key]
        if skeleton.compute_s(costs) >= below_s:
            return None
        plan = skeleton.plan_within(limit)
        if plan is None:
            return None
        plan = with_spills(graph, plan, self.problem.budgets)
        steps = schedule_within(graph, plan, costs, limit, patient=self._in_pages)
        if steps is None or steps.seconds >= below_s:
            return None
        return JointTrial(order, choice, skeleton, steps.seconds, steps.waits)


def fastest_joint(
    search: JointSearch, solved: Sequence[tuple[Order, Solution]]
) -> EvaluatedTrial | None:
    """The fastest schedule found of the solved orders; None where none finds places."""
    solutions, choices = dict(solved), dict[tuple[Order, JointChoice], None]()
    enough_s = CLOSE_ENOUGH * min(solution.step_s for solution in solutions.values())
    best: EvaluatedTrial | None = None
    for limit in search.limits:
        search.limit = limit
        trials = [trial for order, _ in solved[:MOST_ORDERS] for trial in search.ranked(order)]
        known_s = min((each.seconds for each in trials), default=inf)
        if not choices and known_s > enough_s:
            choices = dict.fromkeys(search.rounded(solved, known_s))
        trials += filter(None, (search.trial(*each) for each in choices))
        found = sorted(trials, key=attrgetter("seconds"))
        if not found or (best and found[0].seconds >= (1 - PLACED_GAIN) * best.seconds):
            continue
        improved = found[0]
        if improved.seconds > CLOSE / CLOSE_ENOUGH * enough_s:
            improved = search.improved(improved, solutions[improved.order])
        choices[improved.order, improved.choice] = None
        best = search.fastest_placed((improved, *found[:MOST_PLACED]), best)
        if best and best.seconds <= NEAR_TRIAL * improved.seconds:
            break
    small = search.problem.affordable_plans(WORK) >= SMALL
    if best and small and best.seconds > enough_s:
        best = search.improved_in_places(best, solutions)
    return best


def fastest_ranked(search: JointSearch, order: Order) -> EvaluatedTrial | None:
    """The fastest schedule found of ranked columns alone; None where none finds places."""
    for limit in search.limits:
        search.limit = limit
        found = sorted(search.ranked(order), key=attrgetter("seconds"))
        best = search.fastest_placed(found[:1], None)
        if best:
            return best
    return None
