"""The search for auto's plan: which maps to make again, in which blocks, by predicted time.

What is made again frees memory for a price in seconds; what must leave besides is offloaded. Plans
are tried that make the best bargains again, from none to all of them; then single decisions of the
best one are changed as long as that helps. The order of its steps predicts the time of each.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf
from typing import TypeVar

from ..errors import BudgetError, HostMemoryError
from ..graph import Graph
from .costs import Costs
from .lower import estimate, lower
from .plan import Plan
from .policies.auto import Choice, auto
from .recipes import Recipes, recipes
from .schedule import Schedule
from .segments import Variant
from .simulate import simulate

WORK = 130_000  # sections of maps and passes in all plans that are tried: 100 of VGG-16, 4 s
LEAST_TRIALS = 5
CAPS = (0.97, 0.9, 0.82)  # shares of the arena that bytes at once may take, placement the rest
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
    """The choices tried so far, those that were better than all before, and how many are left."""

    graph: Graph
    recipes: Recipes
    costs: Costs
    room: int
    host_budget: int | None
    left: int
    tried: set[Choice] = field(default_factory=set)
    found: list[Candidate] = field(default_factory=list)

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
            if self.left == 0:
                return
            if choice not in self.tried:
                self.waits(choice)

    def waits(self, choice: Choice) -> bool:
        """Try the choice; whether its step waits for copies, or has no room."""
        self.tried.add(choice)
        self.left -= 1
        below_s = self.best.seconds if self.best else inf
        draft = auto(self.graph, self.recipes, choice)
        if draft.compute_s(self.costs) >= below_s:
            return False
        for share in CAPS:
            cap = round(share * self.room)
            plan = draft.plan(cap)
            if plan is None or self._overflows(plan):
                return True
            found = estimate(self.graph, plan, self.costs, cap, room=self.room, below_s=below_s)
            if found is None:
                return True
            if found.fits:
                self.found.append(Candidate(plan, choice, cap, found.seconds))
            if found.fits or found.seconds >= below_s:
                return found.waits
        return True

    def _overflows(self, plan: Plan) -> bool:
        """Whether more is away at one time than the host has room for."""
        if self.host_budget is None:
            return False
        change: Counter[int] = Counter()
        for move in plan.transfers:
            buffer = self.graph.buffers[move.buffer]
            rows = buffer.bounds(move.first)[0], buffer.bounds(move.first + move.count - 1)[1]
            nbytes = (rows[1] - rows[0]) * buffer.row_nbytes
            change.update({move.leave: nbytes, move.back: -nbytes})
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
    for block in (Variant.PERFORMANCE, Variant.KEEP, Variant.MEMORY):
        _halve(trials, bargains, block)
    best = None
    while trials.best is not best:  # None where nothing is found
        best = trials.best
        trials.take(_neighbours(trials, bargains))
    finalists = trials.found[-1 - most // TRIALS_A_FINALIST :]
    schedules = [_placed(trials, candidate, budget) for candidate in finalists]
    return min(filter(None, schedules), key=lambda s: simulate(s, costs).step_s, default=None)


def _halve(trials: _Trials, bargains: Sequence["_Bargain"], block: Variant) -> None:
    """Try to make the best bargains: more where the step waits for copies, fewer where not."""
    low, high = 0, len(bargains)
    while low <= high and trials.left:
        count = (low + high) // 2
        if trials.waits(_choice(trials.recipes, block, bargains[:count])):
            low = count + 1
        else:
            high = count - 1


def _placed(trials: _Trials, candidate: Candidate, budget: int) -> Schedule | None:
    try:
        return lower(
            trials.graph,
            candidate.plan,
            trials.costs,
            budget=budget,
            host_budget=trials.host_budget,
            cap=candidate.cap,
        )
    except (BudgetError, HostMemoryError):
        return None


def _choice(known: Recipes, block: Variant, bargains: Iterable["_Bargain"]) -> Choice:
    """The choice to make these bargains, the first of those that conflict, and no others."""
    remade, wholes = [frozenset[str]()] * len(known.chains), set[int]()
    made, early = set[str](), set[str]()
    for bargain in bargains:
        if bargain.buffers is not None:
            remade[bargain.number] |= bargain.buffers
            continue
        whole = known.wholes[bargain.number]
        if made.isdisjoint(whole.early) and early.isdisjoint(whole.remake.buffers):
            wholes.add(bargain.number)
            made |= whole.remake.buffers
            early |= whole.early
    return Choice(block, (block,) * len(remade), tuple(remade), frozenset(wholes))


@dataclass(frozen=True, slots=True)
class _Bargain:
    """One thing to make again or not: some maps of a chain, or else the recipe of such number."""

    price: float
    number: int
    buffers: frozenset[str] | None = None

    def flipped(self, choice: Choice) -> Choice:
        """The choice with this decision changed."""
        if self.buffers is None:
            return replace(choice, wholes=choice.wholes ^ {self.number})
        changed = choice.remade[self.number] ^ self.buffers
        block = choice.blocks[self.number] or Variant.PERFORMANCE
        return replace(
            choice,
            remade=_with(choice.remade, self.number, changed),
            blocks=_with(choice.blocks, self.number, block),
        )


def _bargains(known: Recipes) -> list[_Bargain]:
    """All that can be made again, the best bargain first."""
    bargains = [
        _Bargain(remake.seconds / remake.nbytes, number, remake.buffers)
        for number, chain in enumerate(known.chains)
        for remake in chain.remakes
    ]
    for number, whole in enumerate(known.wholes):
        bargains.append(_Bargain(whole.remake.seconds / whole.remake.nbytes, number))
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


def _with(items: tuple[Item, ...], index: int, item: Item) -> tuple[Item, ...]:
    return (*items[:index], item, *items[index + 1 :])
