"""The search for auto's plan: which maps to recompute, in which blocks, by predicted time.

A recomputed map frees memory and costs seconds. Plans recompute the candidates of the fewest
seconds a byte, from none to all of them, and offload what else must leave. Then single decisions of
the best plan are changed as long as that helps. The order of its steps predicts the time of each.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf
from operator import attrgetter

from ...errors import HostMemoryError
from ...graph import Direction
from ..ir.plan import Plan, prefetched_nbytes, transfer_nbytes
from ..ir.schedule import Schedule
from ..lowering.arena_layout import place_arena, place_arena_within
from ..lowering.emit import emit_schedule
from ..lowering.launch_limits import Array
from ..lowering.segments import Variant
from ..lowering.timetable import schedule_within
from ..problem import GraphProblem
from ..recompute.candidates import Candidates, find_candidates
from ..recompute.modes import (
    RecomputeCandidate,
    RecomputeMode,
    compatible,
    ranked_candidates,
    with_item,
)
from ..recompute.regions import MAPS
from ..recompute.skeleton import RecomputeChoice, skeleton_of
from ..timing.simulate import simulate

WORK = 60_000  # sections of maps and passes in all plans that are tried: 45 of VGG-16, 2 s
LEAST_TRIALS = 4  # of the largest networks, and of each stage of the search of the others
MIN_GAIN = 0.02  # of a step: numbers of candidates that differ by less are not told apart
STEPS = 16  # the first step between numbers of candidates is one part in so many of all
LIMITS = (0.97, 0.9, 0.82)  # shares of the arena that live bytes may take; placement has the rest
MOST_UNPLACED = 2  # choices whose bytes found no place, that are placed under tighter limits
MODES = ((0.2, False), (0.0, False), (0.0, True))  # (share of the arena, memory-centric)
COUNTS_COMPARED = 6  # numbers of candidates of which the one that copies least is tried
TRIALS_PER_SHORTLISTED = 20  # to make and simulate a schedule takes as long as eight trials


@dataclass(frozen=True, slots=True)
class PlannedChoice:
    """A choice and its plan under a limit on live bytes, with the predicted seconds of a step."""

    plan: Plan
    choice: RecomputeChoice
    limit: int
    seconds: float


@dataclass(slots=True)
class RecomputeSearch:
    """The choices tried so far."""

    problem: GraphProblem
    candidates: Candidates
    ranked: Sequence[RecomputeCandidate]  # all candidates, the fewest seconds a byte first
    capacity: int  # bytes of the arena
    left: int  # trials
    found_overlapped: bool = False  # a choice whose copies all hide behind launches
    tried: set[RecomputeChoice] = field(default_factory=set)
    found: list[PlannedChoice] = field(default_factory=list)  # each better than all before
    unplaced: list[PlannedChoice] = field(default_factory=list)  # better, but bytes find no place

    @property
    def best(self) -> PlannedChoice | None:
        return self.found[-1] if self.found else None

    @property
    def choice(self) -> RecomputeChoice:
        """The best choice, where one is found."""
        return self.found[-1].choice

    def take(self, choices: Iterable[RecomputeChoice]) -> None:
        """Try the choices that were not tried before, as long as trials are left."""
        for choice in choices:
            if self.left <= 0:
                return
            if choice not in self.tried:
                self.is_copy_bound(choice)

    def is_copy_bound(self, choice: RecomputeChoice) -> bool:
        """Try the choice. Whether its step waits for copies, or its bytes are too many."""
        self.tried.add(choice)
        below_s = self.best.seconds if self.best else inf
        graph, costs = self.problem.graph, self.problem.costs
        skeleton = skeleton_of(graph, self.candidates, choice)
        if skeleton.compute_s(costs) >= below_s:
            return False
        for share in LIMITS:
            limit = round(share * self.capacity)
            plan = skeleton.plan_within(limit)
            if plan is None or self._overflows_host(plan):
                return True
            self.left -= 1
            steps = schedule_within(graph, plan, costs, limit)
            if steps is None:
                return True
            if steps.seconds >= below_s:
                return steps.waits
            planned = PlannedChoice(plan, choice, limit, steps.seconds)
            if place_arena(steps, target=self.capacity).nbytes <= self.capacity:
                self.found.append(planned)
                return steps.waits
            self.unplaced.append(planned)
        return True

    def _overflows_host(self, plan: Plan) -> bool:
        """Whether more bytes are offloaded at one time than the host may hold."""
        host = self.problem.budgets.host
        if host is None:
            return False
        change: Counter[int] = Counter()
        for transfer in plan.transfers:
            nbytes = transfer_nbytes(self.problem.graph, transfer)
            change.update({transfer.after: nbytes, transfer.needed_by: -nbytes})
        offloaded = accumulate(change[slot] for slot in sorted(change))
        return max(offloaded, default=0) > host


def fastest_found(problem: GraphProblem) -> Schedule | None:
    """The fastest schedule found within both budgets, as simulated; None where none is found."""
    known, capacity = problem.once(find_candidates), problem.budgets.arena
    assert capacity is not None, "without a limit everything is kept"
    most = max(LEAST_TRIALS, problem.affordable_plans(WORK))
    search = RecomputeSearch(problem, known, ranked_candidates(known), capacity, most)
    mode, count = _best_mode(search)
    if not search.found_overlapped and most > LEAST_TRIALS:
        mode, count = _best_stages(search, mode, count)
    for block in (Variant.KEEP, Variant.MEMORY):
        if most > LEAST_TRIALS:  # else none is left for ResNet-50 in sections of 8 MiB
            search.left = max(search.left, LEAST_TRIALS)
        count = _bisect(search, mode, block, count)
    if search.best is None or not search.found_overlapped:
        search.is_copy_bound(_least_copied(search, mode))
    best = None
    while search.best is not best:  # None where nothing is found
        best = search.best
        search.take(_single_changes(search))
    shortlist = search.found[-1 - most // TRIALS_PER_SHORTLISTED :]
    schedules = [*filter(None, (problem.lowered(each.plan, each.limit) for each in shortlist))]
    if most > LEAST_TRIALS or not schedules:
        for each in _worth_filling(search):
            schedules += _filled(search, each)
    if len(schedules) < 2:
        return next(iter(schedules), None)
    return min(schedules, key=lambda s: simulate(s, problem.costs).step_s)


def _best_mode(search: RecomputeSearch) -> tuple[RecomputeMode, int]:
    """The mode with the best plan, and the number of its candidates that was tried last."""
    ended: dict[RecomputeMode, int] = {}
    best: RecomputeMode | None = None
    for share, memory_centric in MODES if search.left > LEAST_TRIALS else MODES[:1]:
        together = tuple(compatible(search.candidates, search.ranked, share * search.capacity))
        mode = RecomputeMode(together, memory_centric and not all(e.in_region for e in together))
        if mode not in ended:
            before = search.best
            count = _most_overlapped(search, together)
            ended[mode] = _bisect(search, mode, Variant.PERFORMANCE, count)
            best = mode if best is None or search.best is not before else best
    assert best is not None
    return best, ended[best]


def _best_stages(
    search: RecomputeSearch, mode: RecomputeMode, count: int
) -> tuple[RecomputeMode, int]:
    """The mode, or a better one in which the layers of the largest maps go in barrier stages.

    And the number of its candidates that was tried last. Each trial has twice as many layers in
    stages as the one before. They do not count as trials of the search.
    """
    known, left, buffers = search.candidates, search.left, search.problem.graph.buffers
    sizes = [max(buffers[name].nbytes for name in s.recompute.buffers) for s in known.stages]
    largest = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    search.left = max(left, LEAST_TRIALS)
    doubled = (1 << number for number in range(len(largest).bit_length()))
    for most in sorted({*doubled, len(largest)} - {0}):
        stages = frozenset(largest[:most])
        taken = known.passes_of_stages(stages)
        others = (each for each in search.ranked if taken.isdisjoint(each.passes(known)))
        other = RecomputeMode(tuple(compatible(known, others, 0.0)), False, stages)
        before, found_overlapped = search.best, search.found_overlapped
        first = _most_overlapped(search, other.ranked)
        ended = _bisect(search, other, Variant.PERFORMANCE, first)
        if search.best is before:
            search.found_overlapped = found_overlapped
        else:
            mode, count = other, ended
    search.left = left
    return mode, count


def _most_overlapped(search: RecomputeSearch, ranked: Sequence[RecomputeCandidate]) -> int:
    """How many candidates leave no more bytes to copy than forward has time for."""
    graph, costs = search.problem.graph, search.problem.costs
    forward = (pass_ for pass_ in graph.passes if pass_.direction is Direction.FORWARD)
    hidden = costs.link.to_host * sum(costs.launch_s(pass_, pass_.domain) for pass_ in forward)
    maps = sum(buffer.nbytes for buffer in graph.buffers.values() if buffer.kind in MAPS)
    left = accumulate((-each.recompute.nbytes for each in ranked), initial=maps)
    return sum(nbytes > search.capacity + hidden for nbytes in left)


def _bisect(search: RecomputeSearch, mode: RecomputeMode, block: Variant, count: int) -> int:
    """Try to recompute `count` candidates, more where the step waits for copies, else fewer.

    Changes of the number double until one is too large. Then they halve until the candidates
    between take few seconds. Returns the last number.
    """
    ranked = mode.ranked
    low, high, step = 0, len(ranked), 1 + len(ranked) // STEPS
    seen: set[bool] = set()
    while low <= high and search.left > 0:
        between_s = sum(each.recompute.seconds for each in ranked[low : high + 1])
        if len(seen) == 2 and search.best and between_s < MIN_GAIN * search.best.seconds:
            break
        count = (low + high) // 2 if len(seen) == 2 else min(max(low, count), high)
        copy_bound = search.is_copy_bound(mode.choice(search.candidates, block, count))
        low, high = (count + 1, high) if copy_bound else (low, count - 1)
        count += step if copy_bound else -step
        step *= 2
        seen.add(copy_bound)
        search.found_overlapped |= not copy_bound
    return low


def _least_copied(search: RecomputeSearch, mode: RecomputeMode) -> RecomputeChoice:
    """The choice that copies the fewest bytes, of some numbers of candidates.

    That counts where copies do not hide behind launches. Maps that are recomputed too early fill
    the memory.
    """
    graph, limit = search.problem.graph, round(LIMITS[0] * search.capacity)

    def copied(choice: RecomputeChoice) -> float:
        plan = skeleton_of(graph, search.candidates, choice).plan_within(limit)
        return inf if plan is None else prefetched_nbytes(graph, plan)

    counts = {len(mode.ranked) * part // COUNTS_COMPARED for part in range(COUNTS_COMPARED + 1)}
    known, block = search.candidates, Variant.PERFORMANCE
    return min((mode.choice(known, block, count) for count in sorted(counts)), key=copied)


def _single_changes(search: RecomputeSearch) -> Iterator[RecomputeChoice]:
    """Choices that differ from the best so far in one decision."""
    for each in search.ranked:
        yield each.flipped(search.choice)
    for number in range(len(search.candidates.regions)):
        for other in (*Variant, None):
            choice = search.choice
            if other or not choice.recomputed[number]:
                yield replace(choice, blocks=with_item(choice.blocks, number, other))
    for rest in Variant:
        yield replace(search.choice, rest=rest)
    yield replace(search.choice, coded=not search.choice.coded)
    for number in range(len(search.candidates.stages)):
        yield replace(search.choice, stages=search.choice.stages ^ {number})
    if search.choice.full_batch:
        yield replace(search.choice, memory_centric=not search.choice.memory_centric)


def _worth_filling(search: RecomputeSearch) -> list[PlannedChoice]:
    """The best choice where it offloads, and unplaced ones of fewer predicted seconds.

    Of these the best with barrier stages and the best without.
    """
    best = search.found[-1:]
    best_s = best[0].seconds if best else inf
    worth = [each for each in best if each.plan.transfers]
    unplaced = sorted(search.unplaced, key=attrgetter("seconds"))
    for staged in (False, True):
        alike = [each for each in unplaced if bool(each.choice.stages) is staged]
        worth += [each for each in alike[:MOST_UNPLACED] if each.seconds < best_s]
    return worth


def _filled(search: RecomputeSearch, planned: PlannedChoice) -> list[Schedule]:
    """Schedules of the choice under the highest limits by launch whose bytes find a place."""
    problem = search.problem
    skeleton = skeleton_of(problem.graph, search.candidates, planned.choice)

    def attempt(limits: Array) -> Schedule | None:
        plan = skeleton.plan_within(limits)
        steps = schedule_within(problem.graph, plan, problem.costs, limits) if plan else None
        if steps is None:
            return None
        arena = place_arena_within(steps, search.capacity)
        return emit_schedule(steps, arena, problem.budgets)

    try:
        return [*filter(None, skeleton.with_tightened_limits(attempt, search.capacity))]
    except HostMemoryError:
        return []
