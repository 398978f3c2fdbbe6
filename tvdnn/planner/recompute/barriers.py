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

from ...graph import Direction, Graph, Kind, Pass
from ...graph.dataflow import Producers, producers
from ..ir.costs import Costs
from ..ir.plan import Slot
from .regions import Remake, Spans, cannot_join, goes_by_sample, read, spans_of, users_of, written

BETWEEN = (Kind.MAP, Kind.GRAD)
AHEAD = -1  # the round of what needs none


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
        slots = (*self.ahead, *(slot for each in self.rounds for slot in each.slots))
        return [slot.pass_index for slot in slots if slot.recompute]


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
    graph: Graph, costs: Costs, stages: Iterable[Sequence[str]], least_nbytes: float
) -> Iterator[Rounds]:
    """Those of the stages, given by their ops, that can go in rounds and share no pass.

    Left out is what does not spare more than so many bytes of maps.
    """
    if graph.bands > 1:
        return
    spans, uses, gone = spans_of(graph), _Uses(graph), set[int]()
    for stage in stages:
        halves = [_extent(spans, stage, way) for way in (Direction.FORWARD, Direction.BACKWARD)]
        if all(halves) and all(gone.isdisjoint(half) for half in halves):
            found = _Stage(graph, uses, *halves).rounds(costs)
            if found is not None and found.remake.nbytes > least_nbytes:
                gone |= found.passes
                yield found


class _Uses:
    """The producers of what each pass reads; users and changes of each buffer and parameter."""

    def __init__(self, graph: Graph) -> None:
        self.producers: Producers = producers(graph)
        self.users = users_of(graph)
        self._changes: dict[str, list[int]] = {}
        for index, pass_ in enumerate(graph.passes):
            for name in {*written(pass_), *pass_.updates}:
                self._changes.setdefault(name, []).append(index)

    def changes(self, name: str, after: int, before: int) -> bool:
        """Whether a pass between these two changes the buffer or parameter."""
        return any(after < index < before for index in self._changes.get(name, ()))


def _extent(spans: Spans, stage: Sequence[str], way: Direction) -> range:
    """All passes from the first to the last of the stage's of one direction."""
    owned = [spans[op, way] for op in stage if (op, way) in spans]
    return range(min(s.start for s in owned), max(s.stop for s in owned)) if owned else range(0)


class _Stage:
    """A stage's passes of both directions, and the buffers that they alone use."""

    def __init__(self, graph: Graph, uses: _Uses, forward: range, backward: range) -> None:
        self._graph = graph
        self._uses = uses
        self._producers = uses.producers
        self._halves = forward, backward
        members = frozenset((*forward, *backward))
        passes = [graph.passes[index] for index in members]
        made = frozenset(name for pass_ in passes for name in written(pass_))
        given = frozenset((*graph.inputs, *(name for pass_ in passes for name in _in_part(pass_))))
        self._own = frozenset(name for name in made - given if uses.users[name] <= members)
        at_once = frozenset(name for pass_ in passes for name in _at_once(pass_))
        self._between = frozenset(
            name for name in self._own - at_once if graph.buffers[name].kind in BETWEEN
        )
        self._level: dict[int, int] = {}

    def rounds(self, costs: Costs) -> Rounds | None:
        """The stage in rounds; None where there would be one, or what runs again cannot."""
        forward, backward = (self._half(half) for half in self._halves)
        if forward is None or backward is None or len(forward.rounds) < 2:
            return None
        again = [self._graph.passes[index] for half in (forward, backward) for index in half.again]
        seconds = sum(costs.launch_s(pass_, pass_.domain) for pass_ in again)
        names = self._between & frozenset(name for pass_ in again for name in written(pass_))
        maps = [b for b in map(self._graph.buffers.__getitem__, names) if b.kind is Kind.MAP]
        nbytes = sum(buffer.nbytes for buffer in maps)
        remake = Remake(frozenset(buffer.name for buffer in maps), nbytes, seconds)
        return Rounds(forward, backward, remake)

    def _half(self, half: range) -> Half | None:
        """One direction in rounds; None where what runs again cannot."""
        if not self._levelled(half):
            return None
        rounds: list[Round] = []
        for number in range(1 + max(self._level[i] for i in half if i in self._level)):
            found = self._round(half, number)
            if found is None:
                return None
            rounds.append(found)
        again = {slot.pass_index for each in rounds for slot in each.slots if slot.recompute}
        if not all(self._finds_alike(index, half) for index in again - {*half}):
            return None
        ahead = [Slot(index, recompute=True) for index in self._packs(again - {*half})]
        ahead += [Slot(index) for index in half if self._level.get(index) == AHEAD]
        after = tuple(index for index in half if index not in self._level)
        made = Half(half, tuple(ahead), tuple(rounds), after)
        return made if self._keeps_order(made) else None

    def _levelled(self, half: range) -> bool:
        """Give every pass of the half its round; whether all can have one, and any does.

        What changes parameters has none: it comes after all rounds, and nothing may need them then.
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
        for use, producing in zip(pass_.reads, self._producers[index], strict=True):
            for source in producing & set(half) & self._level.keys():
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
            for use, producing in zip(reads, self._producers[index], strict=True):
                if use.buffer not in self._between:
                    continue
                new = producing - again - set(firsts)
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

    def _packs(self, again: Iterable[int]) -> list[int]:
        """What packs the weights of forward passes that backward runs again."""
        buffers, passes = self._graph.buffers, self._graph.passes
        sources = {
            source
            for index in again
            for use, producing in zip(passes[index].reads, self._producers[index], strict=True)
            for source in producing
            if buffers[use.buffer].kind is Kind.WEIGHT
        }
        return sorted(sources)

    def _finds_alike(self, index: int, half: range) -> bool:
        """Whether a pass before the half finds there what it found, but for what is made again."""
        pass_, packs = self._graph.passes[index], self._packs([index])
        names = read(pass_) - self._between | {*pass_.params}
        names |= {name for pack in packs for name in self._graph.passes[pack].params}
        return not any(self._uses.changes(name, index, half.start) for name in names)

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


def _in_part(pass_: Pass) -> frozenset[str]:
    """The buffers of which the pass writes some channels: beside them lie those of others."""
    return frozenset(use.buffer for use in pass_.writes if use.channels is not None)


def _at_once(pass_: Pass) -> frozenset[str]:
    """The buffers of which the pass uses all rows at once."""
    uses, all_ = (*pass_.reads, *pass_.writes), not goes_by_sample(pass_) or _comes_after(pass_)
    return frozenset(use.buffer for use in uses if use.whole or all_)


def _comes_after(pass_: Pass) -> bool:
    """Whether the pass changes parameters; what normalization keeps of its own is none."""
    return bool(pass_.updates) and not pass_.effects
