"""The search for auto's plan: which maps to make again, in which blocks, by predicted time.

What is made again frees memory for a price in seconds; what must leave besides is offloaded. Plans
are tried that make the best bargains again, from none to all of them; then single decisions of the
best one are changed as long as that helps. The order of its steps predicts the time of each.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf
from operator import attrgetter
from typing import TypeVar

import numpy as np

from ...errors import HostMemoryError
from ...graph import Direction, Graph
from ...placement.cuda_blocks import usable_nbytes
from ..ir.costs import Costs
from ..ir.plan import Plan, prefetched_nbytes, transfer_nbytes
from ..ir.schedule import Schedule
from ..lowering.arena import place_arena_within
from ..lowering.emit import emit_schedule
from ..lowering.estimate import estimate
from ..lowering.limits import Array, with_tightened_limits
from ..lowering.lower import lower_with_prefetch
from ..lowering.segments import Variant
from ..lowering.timetable import schedule_within
from ..offload.skeleton import Site
from ..recompute.candidates import Recipes, Together, recipes
from ..recompute.draft import Choice, auto
from ..recompute.regions import MAPS, Remake
from ..timing.simulate import simulate

WORK = 60_000  # sections of maps and passes in all plans that are tried: 45 of VGG-16, 2 s
LEAST_TRIALS = 4
LITTLE_GAIN = 0.02  # of a step, for which closing in on the number of bargains ends
STEPS = 16  # shares of all bargains by which it starts
CAPS = (0.97, 0.9, 0.82)  # shares of the arena that bytes at once may take, placement the rest
MOST_CROWDED = 2  # candidates whose bytes found no place, for which one is looked for again
WAYS = ((0.2, False), (0.0, False), (0.0, True))  # share of the room for what is early, afresh
PARTS = 6  # of all bargains, by whose numbers plans are compared where none hides its copies
TRIALS_A_FINALIST = 20  # one more schedule is made and simulated, which takes as long as eight

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that fits under `cap`, the choice behind it, and the predicted seconds of a step."""

    plan: Plan
    choice: Choice
    cap: int
    seconds: float


@dataclass(slots=True)
class _Trials:
    """The choices tried so far, those that were better than all before, and how many are left.

    Of `crowded` ones, which would be better, the bytes are few enough but found no place. `hides`
    tells whether some number of bargains was found that left no copy to wait for.
    """

    graph: Graph
    recipes: Recipes
    costs: Costs
    room: int
    host_budget: int | None
    left: int
    hides: bool = False
    tried: set[Choice] = field(default_factory=set)
    found: list[Candidate] = field(default_factory=list)
    crowded: list[Candidate] = field(default_factory=list)

    @property
    def best(self) -> Candidate | None:
        return self.found[-1] if self.found else None

    @property
    def choice(self) -> Choice:
        """The choice of the best plan, where one is found."""
        return self.found[-1].choice

    def take(self, choices: Iterable[Choice]) -> None:
        """Try the choices that were not tried before, as long as trials are left."""
        for choice in choices:
            if self.left <= 0:
                return
            if choice not in self.tried:
                self.waits(choice)

    def waits(self, choice: Choice) -> bool:
        """Try the choice; whether its step waits for copies, or has no room."""
        self.tried.add(choice)
        below_s = self.best.seconds if self.best else inf
        draft = auto(self.graph, self.recipes, choice)
        if draft.compute_s(self.costs) >= below_s:
            return False
        for share in CAPS:
            cap = round(share * self.room)
            plan = draft.plan(cap)
            if plan is None or self._overflows(plan):
                return True
            self.left -= 1
            found = estimate(self.graph, plan, self.costs, cap, capacity=self.room, below_s=below_s)
            if found is None:
                return True
            if found.fits:
                self.found.append(Candidate(plan, choice, cap, found.seconds))
            if found.fits or found.seconds >= below_s:
                return found.waits
            self.crowded.append(Candidate(plan, choice, cap, found.seconds))
        return True

    def _overflows(self, plan: Plan) -> bool:
        """Whether more is away at one time than the host has room for."""
        if self.host_budget is None:
            return False
        change: Counter[int] = Counter()
        for move in plan.transfers:
            nbytes = transfer_nbytes(self.graph, move)
            change.update({move.offload_after: nbytes, move.needed_by: -nbytes})
        away = accumulate(change[slot] for slot in sorted(change))
        return max(away, default=0) > self.host_budget


def search(
    graph: Graph, costs: Costs, *, budget: int, host_budget: int | None = None
) -> Schedule | None:
    """The fastest schedule found within both budgets, as simulated; None where none is found."""
    room = budget - graph.fixed_nbytes
    sections = sum(buffer.num_sections for buffer in graph.buffers.values())
    most = max(LEAST_TRIALS, WORK // (sections + len(graph.passes)))
    trials = _Trials(graph, recipes(graph, costs), costs, room, host_budget, most)
    bargains = _bargains(trials.recipes)
    way, count = _best_way(trials, bargains)
    if not trials.hides and most > LEAST_TRIALS:
        way, count = _best_rounds(trials, bargains, way, count)
    for block in (Variant.KEEP, Variant.MEMORY):
        if most > LEAST_TRIALS:  # each has some: none had been left for ResNet-50 in 8 MiB sections
            trials.left = max(trials.left, LEAST_TRIALS)
        count = _close_in(trials, way, block, count)
    if trials.best is None or not trials.hides:
        trials.waits(_least_copied(trials, way))
    best = None
    while trials.best is not best:  # None where nothing is found
        best = trials.best
        trials.take(_neighbours(trials, bargains))
    finalists = trials.found[-1 - most // TRIALS_A_FINALIST :]
    schedules = [s for s in (_placed(trials, each, budget) for each in finalists) if s]
    if most > LEAST_TRIALS or not schedules:
        for each in _worth_filling(trials):
            schedules += _filled(trials, each, budget)
    if len(schedules) < 2:
        return next(iter(schedules), None)
    return min(schedules, key=lambda s: simulate(s, costs).step_s)


def _best_way(trials: _Trials, bargains: Sequence["_Bargain"]) -> tuple["_Way", int]:
    """The way of which some number of bargains is best, and the number where trying it ended."""
    ended: dict[_Way, int] = {}
    best: _Way | None = None
    for share, afresh in WAYS if trials.left > LEAST_TRIALS else WAYS[:1]:
        together = tuple(_together(trials.recipes, bargains, share * trials.room))
        way = _Way(together, afresh and not all(each.of_chain for each in together))
        if way not in ended:
            before = trials.best
            count = _most_hidden(trials, together)
            ended[way] = _close_in(trials, way, Variant.PERFORMANCE, count)
            best = way if best is None or trials.best is not before else best
    assert best is not None
    return best, ended[best]


def _best_rounds(
    trials: _Trials, bargains: Sequence["_Bargain"], way: "_Way", count: int
) -> tuple["_Way", int]:
    """The way, or one in which what has the largest maps goes in rounds, and where trying it ended.

    That is twice as much from one to the next. It has trials of its own.
    """
    known, left, buffers = trials.recipes, trials.left, trials.graph.buffers
    sizes = [max(buffers[name].nbytes for name in r.remake.buffers) for r in known.rounds]
    ranked = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    trials.left = max(left, LEAST_TRIALS)
    for most in _doubled(len(ranked)):
        rounds = frozenset(ranked[:most])
        gone = known.gone(rounds)
        others = (each for each in bargains if gone.isdisjoint(each.passes(known)))
        other = _Way(tuple(_together(known, others, 0.0)), False, rounds)
        before, hides = trials.best, trials.hides
        ended = _close_in(trials, other, Variant.PERFORMANCE, _most_hidden(trials, other.bargains))
        if trials.best is before:
            trials.hides = hides
        else:
            way, count = other, ended
    trials.left = left
    return way, count


def _doubled(most: int) -> Iterator[int]:
    """1, 2, 4 and so on, and `most`."""
    number = 1
    while number < most:
        yield number
        number *= 2
    if most:
        yield most


def _most_hidden(trials: _Trials, bargains: Sequence["_Bargain"]) -> int:
    """How many of the best bargains leave no more to copy than forward may well hide."""
    graph, costs = trials.graph, trials.costs
    forward = (pass_ for pass_ in graph.passes if pass_.direction is Direction.FORWARD)
    hidden = costs.link.to_host * sum(costs.launch_s(pass_, pass_.domain) for pass_ in forward)
    maps = sum(buffer.nbytes for buffer in graph.buffers.values() if buffer.kind in MAPS)
    left = accumulate((-bargain.remake.nbytes for bargain in bargains), initial=maps)
    return sum(nbytes > trials.room + hidden for nbytes in left)


def _close_in(trials: _Trials, way: "_Way", block: Variant, count: int) -> int:
    """Try to make so many of the best bargains, more where the step waits for copies, else fewer.

    Steps get longer until one is too many, then half as long until those between are worth little.
    Returns the last number.
    """
    bargains = way.bargains
    low, high, step = 0, len(bargains), 1 + len(bargains) // STEPS
    seen: set[bool] = set()
    while low <= high and trials.left > 0:
        between_s = sum(bargain.remake.seconds for bargain in bargains[low : high + 1])
        if len(seen) == 2 and trials.best and between_s < LITTLE_GAIN * trials.best.seconds:
            break
        count = (low + high) // 2 if len(seen) == 2 else min(max(low, count), high)
        waits = trials.waits(way.choice(trials.recipes, block, count))
        low, high = (count + 1, high) if waits else (low, count - 1)
        count += step if waits else -step
        step *= 2
        seen.add(waits)
        trials.hides |= not waits
    return low


def _least_copied(trials: _Trials, way: "_Way") -> Choice:
    """Of some numbers of the best bargains, what copies least.

    Where copies are not hidden that counts; what is made again too early fills the memory.
    """
    graph, room = trials.graph, round(CAPS[0] * trials.room)

    def copied(choice: Choice) -> float:
        plan = auto(graph, trials.recipes, choice).plan(room)
        return inf if plan is None else prefetched_nbytes(graph, plan)

    counts = {len(way.bargains) * part // PARTS for part in range(PARTS + 1)}
    choices = [way.choice(trials.recipes, Variant.PERFORMANCE, count) for count in sorted(counts)]
    return min(choices, key=copied)


def _placed(trials: _Trials, candidate: Candidate, budget: int) -> Schedule | None:
    try:
        return lower_with_prefetch(
            trials.graph,
            candidate.plan,
            trials.costs,
            budget=budget,
            host_budget=trials.host_budget,
            limit=candidate.cap,
        )
    except HostMemoryError:
        return None


def _worth_filling(trials: _Trials) -> list[Candidate]:
    """The best candidate where it moves maps, and crowded ones that are predicted to take less.

    Of these are the best of those in rounds and of those without.
    """
    best = trials.found[-1:]
    best_s = best[0].seconds if best else inf
    worth = [each for each in best if each.plan.transfers]
    crowded = sorted(trials.crowded, key=attrgetter("seconds"))
    for rounds in (False, True):
        alike = [each for each in crowded if bool(each.choice.rounds) is rounds]
        worth += [each for each in alike[:MOST_CROWDED] if each.seconds < best_s]
    return worth


def _filled(trials: _Trials, candidate: Candidate, budget: int) -> list[Schedule]:
    """The candidate's schedules with so little left free, by launch, that all finds a place."""
    graph, costs = trials.graph, trials.costs
    site = Site(auto(graph, trials.recipes, candidate.choice))

    def attempt(caps: Array) -> Schedule | None:
        plan = site.draft.plan(caps)
        steps = None if plan is None else schedule_within(graph, plan, costs, caps)
        if steps is None:
            return None
        arena = place_arena_within(graph, steps, trials.room)
        return emit_schedule(graph, steps, arena, budget=budget, host_budget=trials.host_budget)

    caps = np.full(site.needed.shape, usable_nbytes(trials.room))
    num_stays = len(site.draft.program.intervals)
    try:
        return [*filter(None, with_tightened_limits(attempt, caps, site.least, num_stays))]
    except HostMemoryError:
        return []


def _together(known: Recipes, bargains: Iterable["_Bargain"], room: float) -> Iterator["_Bargain"]:
    """Of those bargains that conflict, the first."""
    made = Together(known.due, room)
    for bargain in bargains:
        if bargain.of_chain or made.add(known.wholes[bargain.number]):
            yield bargain


@dataclass(frozen=True, slots=True)
class _Bargain:
    """One thing to make again or not: some maps of a chain, or else the recipe of such number."""

    remake: Remake
    number: int
    of_chain: bool

    @property
    def price(self) -> float:
        """Seconds a byte."""
        return self.remake.seconds / self.remake.nbytes

    def passes(self, known: Recipes) -> Collection[int]:
        """The passes of its chain, or those that run again."""
        return (
            known.chains[self.number].passes if self.of_chain else known.wholes[self.number].makers
        )

    def flipped(self, choice: Choice) -> Choice:
        """The choice with this decision changed."""
        if not self.of_chain:
            return replace(choice, wholes=choice.wholes ^ {self.number})
        changed = choice.remade[self.number] ^ self.remake.buffers
        block = choice.blocks[self.number] or Variant.PERFORMANCE
        return replace(
            choice,
            remade=_with(choice.remade, self.number, changed),
            blocks=_with(choice.blocks, self.number, block),
        )


@dataclass(frozen=True)
class _Way:
    """Bargains made together, the best first, whether what they take is afresh, and rounds."""

    bargains: tuple[_Bargain, ...]
    afresh: bool
    rounds: frozenset[int] = frozenset()

    def choice(self, known: Recipes, block: Variant, count: int) -> Choice:
        """The choice to make so many of these bargains and no others."""
        remade, wholes = [frozenset[str]()] * len(known.chains), set[int]()
        for bargain in self.bargains[:count]:
            if bargain.of_chain:
                remade[bargain.number] |= bargain.remake.buffers
            else:
                wholes.add(bargain.number)
        blocks = (block,) * len(remade)
        return Choice(block, blocks, tuple(remade), frozenset(wholes), self.afresh, self.rounds)


def _bargains(known: Recipes) -> list[_Bargain]:
    """All that can be made again, the best bargain first."""
    bargains = [
        *(_Bargain(remake, n, True) for n, c in enumerate(known.chains) for remake in c.remakes),
        *(_Bargain(whole.remake, number, False) for number, whole in enumerate(known.wholes)),
    ]
    return sorted(bargains, key=lambda bargain: bargain.price)


def _neighbours(trials: _Trials, bargains: Sequence[_Bargain]) -> Iterator[Choice]:
    """Choices that differ from the best so far in one map made again or not, or in some blocks."""
    for bargain in bargains:
        yield bargain.flipped(trials.choice)
    for number in range(len(trials.recipes.chains)):
        for other in (*Variant, None):
            choice = trials.choice
            if other or not choice.remade[number]:
                yield replace(choice, blocks=_with(choice.blocks, number, other))
    for rest in Variant:
        yield replace(trials.choice, rest=rest)
    for number in range(len(trials.recipes.rounds)):
        yield replace(trials.choice, rounds=trials.choice.rounds ^ {number})
    if trials.choice.wholes:
        yield replace(trials.choice, afresh=not trials.choice.afresh)


def _with(items: tuple[Item, ...], index: int, item: Item) -> tuple[Item, ...]:
    return (*items[:index], item, *items[index + 1 :])
