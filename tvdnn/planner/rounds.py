"""Rounds: layers that normalize over the batch, gone through block by block once for each of them.

No block of samples goes through a batch normalization before all have come as far. So all blocks go
up to the first, one after the other; then all start again, through it and up to the next; and so
on. What lies between is made again in every round, and is never there for the whole batch: where a
map hardly fits the device, that takes less than to copy it. Backward goes likewise, a round for
each normalization's sums, and makes forward's maps and its own gradients again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from ..graph import Direction, Graph, Kind, Pass
from .chains import Remake, Spans, Users, cannot_join, goes_by_sample, read, written
from .costs import Costs
from .plan import Slot
from .versions import Parts, versions

BETWEEN = (Kind.MAP, Kind.GRAD)
AHEAD = -1  # the round of what needs none

Needs = Sequence[Sequence[Parts]]


@dataclass(frozen=True, slots=True)
class Round:
    """Slots that go through each block together, and passes that run `behind`, once for all."""

    slots: tuple[Slot, ...]
    behind: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Half:
    """The `passes` of one direction: slots `ahead` of the rounds, these, and what comes `after`."""

    passes: range
    ahead: tuple[Slot, ...]
    rounds: tuple[Round, ...]
    after: tuple[int, ...]

    @property
    def again(self) -> list[int]:
        """The passes that run again, as often as they do."""
        return [slot.pass_index for r in self.rounds for slot in r.slots if slot.recompute]


@dataclass(frozen=True, slots=True)
class Rounds:
    """Neighbouring ops in rounds, and the maps between them that these never have at once."""

    forward: Half
    backward: Half
    remake: Remake

    @property
    def passes(self) -> frozenset[int]:
        return frozenset((*self.forward.passes, *self.backward.passes))


def in_rounds(
    graph: Graph, costs: Costs, stages: Iterable[Sequence[str]], spans: Spans, users: Users
) -> Iterator[Rounds]:
    """Those of the stages, given by their ops, that can go in rounds, the first first."""
    if graph.bands > 1:
        return
    needs = versions(graph).needs
    taken: set[int] = set()
    for stage in stages:
        halves = [_extent(spans, stage, way) for way in (Direction.FORWARD, Direction.BACKWARD)]
        if not all(halves) or taken.intersection(*halves[:1]) or taken.intersection(*halves[1:]):
            continue
        found = _Stage(graph, needs, users, *halves).rounds(costs)
        if found is not None:
            taken |= found.passes
            yield found


def _extent(spans: Spans, stage: Sequence[str], way: Direction) -> range:
    """All passes from the first to the last of the stage's of one direction."""
    owned = [spans[op, way] for op in stage if (op, way) in spans]
    return range(min(s.start for s in owned), max(s.stop for s in owned)) if owned else range(0)


class _Stage:
    """A stage's passes of both directions, and the buffers that they alone use."""

    def __init__(
        self, graph: Graph, needs: Needs, users: Users, forward: range, backward: range
    ) -> None:
        self._graph = graph
        self._needs = needs
        self._halves = forward, backward
        members = frozenset((*forward, *backward))
        made = {name for index in members for name in written(graph.passes[index])}
        self._own = frozenset(name for name in made if users[name] <= members)
        at_once = {name for index in members for name in _at_once(graph.passes[index])}
        self._between = frozenset(
            name for name in self._own - at_once if graph.buffers[name].kind in BETWEEN
        )
        self._level: dict[int, int] = {}

    def rounds(self, costs: Costs) -> Rounds | None:
        """The stage in rounds; None where there would be one, or what runs again cannot."""
        halves = [self._half(half) for half in self._halves]
        forward, backward = halves
        if forward is None or backward is None or len(forward.rounds) < 2:
            return None
        passes = self._graph.passes
        again = [passes[index] for half in (forward, backward) for index in half.again]
        seconds = sum(costs.launch_s(pass_, pass_.domain) for pass_ in again)
        buffers = (self._graph.buffers[name] for name in self._between)
        maps = [buffer for buffer in buffers if buffer.kind is Kind.MAP]
        names = frozenset(buffer.name for buffer in maps)
        return Rounds(forward, backward, Remake(names, sum(b.nbytes for b in maps), seconds))

    def _half(self, half: range) -> Half | None:
        if not self._levelled(half):
            return None
        last = max(self._level[i] for i in half if i in self._level)
        found = [self._round(half, number) for number in range(last + 1)]
        ahead = [Slot(i) for i in half if self._level.get(i) == AHEAD]
        packs = self._packs(half, [s for r in found if r for s in r.slots if s.recompute])
        after = tuple(i for i in half if i not in self._level)
        if packs is None or not all(found):
            return None
        rounds = tuple(filter(None, found))
        made = Half(half, (*packs, *ahead), rounds, after)
        return made if self._keeps_order(made) else None

    def _levelled(self, half: range) -> bool:
        """Give every pass of the half its round; whether none needs a parameter changed there.

        What changes parameters has none: it comes after all rounds.
        """
        changed: set[str] = set()
        for index in half:
            pass_ = self._graph.passes[index]
            if changed & set(pass_.params):
                return False
            changed |= set(pass_.updates)
            if not _comes_after(pass_):
                self._level[index] = max(self._since(half, index), default=self._first(index))
        return any(self._level[i] > AHEAD for i in half if i in self._level)

    def _first(self, index: int) -> int:
        return 0 if goes_by_sample(self._graph.passes[index]) else AHEAD

    def _since(self, half: range, index: int) -> Iterator[int]:
        """The rounds before which the pass cannot run, by what it reads."""
        pass_ = self._graph.passes[index]
        for use, parts in zip(pass_.reads, self._needs[index], strict=True):
            for source in (part.source for part in parts if part.source in half):
                maker = self._graph.passes[source]
                whole = use.whole or any(w.whole for w in maker.writes if w.buffer == use.buffer)
                waits = goes_by_sample(pass_) and (whole or not goes_by_sample(maker))
                yield self._level[source] + waits

    def _round(self, half: range, number: int) -> Round | None:
        """Those of one round with all that they need again; None where that cannot be."""
        owned = [i for i in half if self._level.get(i) == number]
        firsts = [i for i in owned if goes_by_sample(self._graph.passes[i])]
        again = self._needed(firsts)
        if again is None:
            return None
        passes = [self._graph.passes[i] for i in (*again, *firsts)]
        if any(cannot_join(*pair) for pair in combinations(passes, 2)):
            return None
        slots = (Slot(i, recompute=i in again) for i in sorted((*again, *firsts)))
        return Round(tuple(slots), tuple(i for i in owned if i not in firsts))

    def _needed(self, firsts: Sequence[int]) -> frozenset[int] | None:
        """The passes that make again what these read of what lies between."""
        again, due = set[int](), [*firsts]
        while due:
            index = due.pop()
            reads = self._graph.passes[index].reads
            for use, parts in zip(reads, self._needs[index], strict=True):
                if use.buffer not in self._between:
                    continue
                new = {part.source for part in parts} - again - set(firsts)
                if not all(self._may_run_again(source) for source in new):
                    return None
                again |= new
                due += new
        return frozenset(again)

    def _may_run_again(self, index: int) -> bool:
        pass_ = self._graph.passes[index]
        plain = not (pass_.effects or pass_.updates or pass_.reduction)
        whole = any(use.whole for use in pass_.writes)
        return plain and goes_by_sample(pass_) and not whole and written(pass_) <= self._own

    def _packs(self, half: range, again: Sequence[Slot]) -> list[Slot] | None:
        """What packs the weights of forward passes that backward runs again, once more."""
        buffers, passes = self._graph.buffers, self._graph.passes
        wanted = {
            part.source
            for index in {slot.pass_index for slot in again} - {*half}
            for use, parts in zip(passes[index].reads, self._needs[index], strict=True)
            for part in parts
            if buffers[use.buffer].kind is Kind.WEIGHT
        }
        names = {name for index in wanted for name in passes[index].params}
        if any(names & set(pass_.updates) for pass_ in passes[: half.start]):
            return None
        return [Slot(index, recompute=True) for index in sorted(wanted)]

    def _keeps_order(self, half: Half) -> bool:
        """Whether all find what they read in what lasts, as the half has it, in this order too."""
        order = [slot.pass_index for slot in half.ahead]
        for each in half.rounds:
            order += [*(slot.pass_index for slot in each.slots), *each.behind]
        order += half.after
        changes: dict[str, set[int]] = {}
        for index in half.passes:
            for name in self._changed(index):
                changes.setdefault(name, set()).add(index)
        done: dict[str, set[int]] = {name: set() for name in changes}
        for index in order:
            pass_ = self._graph.passes[index]
            for name in (read(pass_) | set(pass_.params) | self._changed(index)) & changes.keys():
                if done[name] - {index} != {i for i in changes[name] if i < index}:
                    return False
            for name in self._changed(index):
                done.setdefault(name, set()).add(index)
        return True

    def _changed(self, index: int) -> frozenset[str]:
        """What lasts of what the pass changes, buffers and parameters."""
        pass_ = self._graph.passes[index]
        return (written(pass_) - self._between) | set(pass_.updates)


def _at_once(pass_: Pass) -> frozenset[str]:
    """The buffers of which the pass uses all rows at once."""
    uses, all_ = (*pass_.reads, *pass_.writes), not goes_by_sample(pass_) or _comes_after(pass_)
    return frozenset(use.buffer for use in uses if use.whole or all_)


def _comes_after(pass_: Pass) -> bool:
    """Whether the pass changes parameters; what normalization keeps of its own is none."""
    return bool(pass_.updates) and not pass_.effects
