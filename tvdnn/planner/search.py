"""The search for auto's plan: which maps to make again, in which blocks, by predicted time.

What is made again frees memory for a price in seconds; what must leave besides is offloaded. Plans
are tried that make the best bargains again, from none to all of them; then single decisions of the
best one are changed as long as that helps. The order of its steps predicts the time of each.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
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
LEAST_TRIALS = 3
CAPS = (0.97, 0.9, 0.82)  # shares of the arena that bytes at once may take, placement the rest
MOST_PREFIXES = 12
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

    def take(self, choices: Iterable[Choice]) -> None:
        """Try the choices that were not tried before, as long as trials are left."""
        for choice in choices:
            if self.left == 0:
                return
            if choice not in self.tried:
                self.tried.add(choice)
                self.left -= 1
                candidate = self._try(choice)
                if candidate is not None:
                    self.found.append(candidate)

    def _try(self, choice: Choice) -> Candidate | None:
        """The choice under the largest cap that leaves placement enough; None if it is no better.

        Less under the cap is more offloaded.
        """
        for share in CAPS:
            cap = round(share * self.room)
            plan = auto(self.graph, self.recipes, choice, cap)
            if plan is None or self._overflows(plan):
                return None
            below_s = self.best.seconds if self.best else inf
            found = estimate(self.graph, plan, self.costs, cap, room=self.room, below_s=below_s)
            if found is None:
                return None
            if found[1] <= self.room:
                return Candidate(plan, choice, cap, found[0])
        return None

    def _overflows(self, plan: Plan) -> bool:
        """Whether more leaves than the host has room for."""
        buffers = self.graph.buffers
        nbytes = (
            buffers[move.buffer].section_nbytes(section)
            for move in plan.transfers
            for section in range(move.first, move.first + move.count)
        )
        return self.host_budget is not None and sum(nbytes) > self.host_budget


def search(
    graph: Graph, costs: Costs, *, budget: int, host_budget: int | None = None
) -> Schedule | None:
    """The fastest schedule found within both budgets, as simulated; None where none is found."""
    room = budget - graph.fixed_nbytes
    sections = sum(buffer.num_sections for buffer in graph.buffers.values())
    most = max(LEAST_TRIALS, WORK // (sections + len(graph.passes)))
    trials = _Trials(graph, recipes(graph, costs), costs, room, host_budget, most)
    trials.take(_prefixes(trials.recipes))
    best = None
    while trials.best is not None and trials.best is not best:
        best = trials.best
        trials.take(_neighbours(trials.recipes, best.choice))
    finalists = trials.found[-1 - most // TRIALS_A_FINALIST :]
    schedules = [_placed(trials, candidate, budget) for candidate in finalists]
    return min(filter(None, schedules), key=lambda s: simulate(s, costs).step_s, default=None)


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


def _prefixes(known: Recipes) -> Iterator[Choice]:
    """The best bargains made again, from none to all, each with long, short and least blocks.

    Of those that conflict the better one is.
    """
    bargains = [*_bargains_of_chains(known), *_bargains_of_wholes(known)]
    bargains.sort(key=lambda bargain: bargain.price)
    steps = min(len(bargains), MOST_PREFIXES)
    counts = {len(bargains) * step // max(1, steps) for step in range(steps + 1)}
    for block in (Variant.PERFORMANCE, Variant.KEEP, Variant.MEMORY):
        for count in sorted(counts, key=lambda count: _halvings(count, len(bargains))):
            yield _choice(known, block, bargains[:count])


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
        return replace(choice, remade=_with(choice.remade, self.number, changed))


def _bargains_of_chains(known: Recipes) -> Iterator[_Bargain]:
    for number, chain in enumerate(known.chains):
        for remake in chain.remakes:
            yield _Bargain(remake.seconds / remake.nbytes, number, remake.buffers)


def _bargains_of_wholes(known: Recipes) -> Iterator[_Bargain]:
    for number, whole in enumerate(known.wholes):
        yield _Bargain(whole.remake.seconds / whole.remake.nbytes, number)


def _halvings(count: int, most: int) -> tuple[int, int]:
    """Where `count` comes if first all, then none, then middles of what is left are tried."""
    low, high, turn = 0, most, 1
    while count not in (low, high):
        middle = (low + high) // 2
        low, high = (low, middle) if count <= middle else (middle, high)
        turn += 1
    return turn, -count


def _neighbours(known: Recipes, choice: Choice) -> Iterator[Choice]:
    """Choices that differ in one map made again or not, or in the blocks of one part."""
    for bargain in _bargains_of_chains(known):
        block = choice.blocks[bargain.number] or Variant.PERFORMANCE
        blocks = _with(choice.blocks, bargain.number, block)
        yield replace(bargain.flipped(choice), blocks=blocks)
    for number in range(len(known.chains)):
        for other in (*Variant, *(() if choice.remade[number] else (None,))):
            yield replace(choice, blocks=_with(choice.blocks, number, other))
    for rest in Variant:
        yield replace(choice, rest=rest)
    for bargain in _bargains_of_wholes(known):
        yield bargain.flipped(choice)


def _with(items: tuple[Item, ...], index: int, item: Item) -> tuple[Item, ...]:
    return (*items[:index], item, *items[index + 1 :])
