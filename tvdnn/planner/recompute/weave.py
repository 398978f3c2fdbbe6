"""Weaving: from an order of passes and what is made again, to the segments of a plan.

Decisions are by buffer and reading pass: between the use before and this one the buffer is not
there. Its makers run just before the reader. What they read and is not there is made before them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from math import lcm
from typing import NamedTuple, TypeAlias

from ...errors import ScheduleError
from ...graph import Direction, Graph, Pass, Use
from ...graph.dataflow import Written, outside, span_of, within
from ..ir.plan import Segment, Slot
from ..lowering.leads import with_leads
from ..lowering.segments import Variant, block_rows, in_blocks
from .joined_passes import JoinedPasses, is_pack, joined_groups, num_apart
from .supplies import Supplies

MANY = -1  # runs that use a buffer


class Making(Enum):
    """When a buffer is made again for a reader."""

    ONCE = "once"  # unless it was made again since the last use that kept it: speed-centric
    AFRESH = "afresh"  # unless it was made again in the reader's run: memory-centric
    CODED = "coded"  # never: the reader finds a code that the first maker left


Decision: TypeAlias = Making | int  # a pass: made once from there on, and afresh before


class PassRun(NamedTuple):
    """Passes that go through each block together."""

    passes: tuple[int, ...]
    block: Variant | int  # the rows of a block, rounded up to the passes' units
    joins: bool = True  # makers for these passes go through the blocks with them where they can
    makers_first: bool = False  # these makers head each block where they can, else precede readers


def weave(
    graph: Graph,
    supplies: Supplies,
    runs: Iterable[PassRun],
    made: Mapping[tuple[str, int], Decision],
    rest: Variant,
    *,
    lasting: bool = True,
) -> Iterator[Segment]:
    """The segments of these runs, and of all that is made again for their passes.

    The runs hold every pass once, in an order that keeps what each reads. `made` is by buffer and
    reading pass. A read of a buffer that cannot be made again there keeps the buffer instead.
    Makers that do not join a run go ahead of it in blocks of `rest`. A run is cut where they need
    what its first passes make. Unless `lasting`, makers in backward have what they read of a buffer
    behind its last use made again.
    """
    ordered = tuple(runs)
    weaver = _Weaver(graph, supplies, ordered, made, rest, lasting=lasting)
    for number in range(len(ordered)):
        yield from weaver.segments(number)


class _Part:
    """The slots of a segment so far."""

    def __init__(self) -> None:
        self.joined = JoinedPasses()  # all of them
        self._head, self._tail = list[Slot](), list[Slot]()
        self._in_tail = JoinedPasses()

    @property
    def slots(self) -> list[Slot]:
        return [*self._head, *self._tail]

    def add(self, passes: Sequence[tuple[int, Pass]], *, head: bool, recompute: bool) -> None:
        """Add passes at the end, or at the end of the head if they need nothing behind it."""
        head = head and not any(self._in_tail.must_precede(pass_) for _, pass_ in passes)
        for index, pass_ in passes:
            (self._head if head else self._tail).append(Slot(index, recompute=recompute))
            self.joined.add(pass_)
            if not head:
                self._in_tail.add(pass_)


class SourcedRead(NamedTuple):
    """A read, and the passes whose values it is to find."""

    use: Use
    sources: frozenset[int]  # none: the caller's values


class _Weaver:
    """Follows the runs in order, with what each buffer holds and what was made again since."""

    def __init__(
        self,
        graph: Graph,
        supplies: Supplies,
        runs: Sequence[PassRun],
        made: Mapping[tuple[str, int], Decision],
        rest: Variant,
        *,
        lasting: bool,
    ) -> None:
        self._graph, self._supplies, self._made, self._rest = graph, supplies, made, rest
        self._runs, self._lasting = runs, lasting
        self._place: dict[int, int] = {}  # by pass, in the order of the runs
        self._readers: dict[str, list[int]] = {}  # by buffer, in the order of the runs
        self._only_run: dict[str, int] = {}  # by buffer, its only user, or MANY
        for number, run in enumerate(runs):
            for index in run.passes:
                self._place[index] = len(self._place)
                for name in graph.passes[index].read_buffers:
                    if made.get((name, index)) is not Making.CODED:
                        self._readers.setdefault(name, []).append(index)
                for name in graph.passes[index].used_buffers:
                    known = self._only_run.setdefault(name, number)
                    self._only_run[name] = number if known == number else MANY
        self._contents: dict[str, Written] = {}  # by buffer
        # Made again since the last use that kept them, each with the place of its reader.
        self._copies: dict[str, int] = {}
        self._now = 0  # place of the present reader
        self._of_run: set[str] = set()  # made again in the present run
        self._undo: list[
            tuple[str, Written, int | None, bool]
        ] = []  # state before the present making

    def segments(self, number: int) -> Iterator[Segment]:
        """The segments of one run and of all that is made again for it."""
        run, passes = self._runs[number], self._graph.passes
        everything = JoinedPasses.of(passes[index] for index in run.passes)
        ahead, part = list[int](), _Part()
        self._of_run.clear()
        for number_in_run, index in enumerate(run.passes):
            after = run.passes[number_in_run:]
            first, joined = self._divided(run, everything, self._makers(index), part.slots, after)
            if any(part.joined.must_precede(passes[each]) for each in first):
                yield from self._in_blocks(run, ahead, part.slots)
                ahead, part = [], _Part()
            ahead += first
            makers = [(each, passes[each]) for each in joined]
            part.add(makers, head=run.makers_first, recompute=True)
            part.add([(index, passes[index])], head=False, recompute=False)
            self._run(index)
        yield from self._in_blocks(run, ahead, part.slots)

    def _in_blocks(
        self, run: PassRun, ahead: Iterable[int], slots: Sequence[Slot]
    ) -> Iterator[Segment]:
        for group in joined_groups(self._graph, ahead):
            makers = [Slot(index, recompute=True) for index in group]
            yield with_leads(self._graph, in_blocks(self._graph, makers, self._rest))
        yield with_leads(self._graph, self._segment(run, slots))

    def _segment(self, run: PassRun, slots: Sequence[Slot]) -> Segment:
        block, indices = run.block, [slot.pass_index for slot in slots]
        passes = [self._graph.passes[index] for index in indices]
        if block is Variant.KEEP and any(slot.recompute for slot in slots):
            block = block_rows(self._graph, indices, block)
        if isinstance(block, Variant):
            return in_blocks(self._graph, slots, block)
        unit = lcm(*(pass_.unit for pass_ in passes))
        rows = -(-block // unit) * unit
        return Segment(tuple(slots), rows if rows < passes[0].domain else 0)

    def _divided(
        self,
        run: PassRun,
        everything: JoinedPasses,
        makers: Sequence[int],
        before: Sequence[Slot],
        after: Sequence[int],
    ) -> tuple[list[int], list[int]]:
        """The makers that go ahead of the run, and the last ones that join it.

        These go between the slots `before` and the passes of the run that come `after`.
        """
        if not run.joins:
            return [*makers], []
        passes = self._graph.passes
        others = [index for index in makers if not is_pack(self._graph, passes[index])]
        apart = num_apart(self._graph, run.passes, everything, others, before, after)
        joined = others[apart:]
        for index in joined:
            everything.add(passes[index])
        return [index for index in makers if index not in joined], joined

    def _makers(self, reader: int) -> list[int]:
        """The passes that make again what the reader does not find, each behind its own makers."""
        found, self._now = list[int](), self._place[reader]
        for need in reversed(self._needs(reader)):
            if self._made.get((need.use.buffer, reader)) is Making.CODED:
                continue
            made = self._making(need, reader)
            if made is None and not self._holds(need):
                names = self._graph.passes[reader].name, need.use.buffer
                raise ScheduleError("{} reads {}, which cannot be recomputed".format(*names))
            found += made or ()
        return found

    def _making(self, need: SourcedRead, reader: int) -> list[int] | None:
        """The passes that make a need; None where one of its ingredients is gone for good."""
        found, due = list[int](), list[SourcedRead | tuple[int, SourcedRead]]([need])
        self._undo.clear()
        while due:
            item = due.pop()
            if isinstance(item, SourcedRead):
                if self._is_there(item, reader):
                    continue
                supply = self._supplies.making(item.sources, reader)
                for index in reversed(supply.passes or supply.packs) if supply else ():
                    due += [(index, item), *self._needs(index)]
                fails = supply is None and not self._holds(item)
            else:
                index, goal = item
                ready = all(map(self._holds, self._needs(index)))
                # Makers of an ingredient may have overwritten what is read, and made the goal.
                fails = not ready and not (self._holds(goal) and self._is_restored(index, reader))
                if ready and not self._was_made(index):
                    found.append(index)
                    self._recompute(index)
            if fails:
                self._roll_back()
                return None
        return found

    def _is_restored(self, index: int, reader: int) -> bool:
        """Whether the buffers that a pass writes hold all that the reader and later ones read."""
        names = self._graph.passes[index].written_buffers
        wanted = {name: self._supplies.wanted(name, reader) for name in names}
        held = {name: {writer for _, writer in self._contents[name]} for name in names}
        return all(wanted[name] <= held[name] for name in names)

    def _roll_back(self) -> None:
        for name, contents, copied, was_made in reversed(self._undo):
            self._contents[name] = contents
            self._copies.pop(name, None)
            self._copies |= {} if copied is None else {name: copied}
            (self._of_run.add if was_made else self._of_run.discard)(name)

    def _needs(self, index: int) -> list[SourcedRead]:
        """What a pass reads, the last first."""
        reads, sources = self._graph.passes[index].reads, self._supplies.producers[index]
        return [*map(SourcedRead, reads, sources)][::-1]

    def _is_there(self, need: SourcedRead, reader: int) -> bool:
        """Whether what is needed is there just before the reader runs."""
        buffer, sources = need.use.buffer, need.sources
        if not sources or not self._holds(need):
            return not sources
        if buffer in self._of_run:
            return True
        readers, passes = self._readers[buffer], self._graph.passes
        place = bisect_left(readers, self._place[reader], key=self._place.__getitem__)
        for index in readers[place:]:
            if not sources.isdisjoint(self._supplies.sources(buffer, index)):
                return self._stays_until(buffer, index)
        if not place:
            return False
        last = readers[place - 1]
        forward = [passes[index].direction is Direction.FORWARD for index in (last, reader)]
        lives_by_block = self._only_run[buffer] != MANY
        stays = self._stays_until(buffer, last) and (forward[1] or self._lasting)
        return stays and forward[0] is forward[1] and not lives_by_block

    def _stays_until(self, buffer: str, reader: int) -> bool:
        making, copied = self._made.get((buffer, reader)), self._copies.get(buffer)
        if isinstance(making, int):
            return copied is not None and copied >= self._place[making]
        return making is None or (making is Making.ONCE and copied is not None)

    def _holds(self, need: SourcedRead) -> bool:
        """Whether the buffer holds all channels of the use as the sources wrote them."""
        span = span_of(self._graph, need.use)
        found = [*within(self._contents.get(need.use.buffer, ()), span)]
        width = sum(stop - start for (start, stop), _ in found)
        right = need.sources.issuperset(writer for _, writer in found)
        return not need.sources or (right and width == span[1] - span[0])

    def _was_made(self, index: int) -> bool:
        """Whether the pass ran again in this run, and all that it wrote is still there."""
        pass_ = self._graph.passes[index]
        still = all(self._holds(SourcedRead(use, frozenset({index}))) for use in pass_.writes)
        return still and pass_.written_buffers <= self._of_run

    def _run(self, index: int) -> None:
        """Follow the slot of a pass that is no recompute."""
        pass_ = self._graph.passes[index]
        kept = {name for name in pass_.read_buffers if (name, index) not in self._made}
        for name in self._copies.keys() & (kept | pass_.written_buffers):
            del self._copies[name]
        self._of_run -= pass_.written_buffers
        self._write(index)

    def _recompute(self, index: int) -> None:
        names = self._graph.passes[index].written_buffers
        self._undo += [
            (name, self._contents.get(name, ()), self._copies.get(name), name in self._of_run)
            for name in names
        ]
        self._copies |= dict.fromkeys(names, self._now)
        self._of_run |= names
        self._write(index)

    def _write(self, index: int) -> None:
        """Follow what is in the buffers: a write in place, or of further channels, keeps others."""
        pass_ = self._graph.passes[index]
        for use in pass_.writes:
            before, span = self._contents.get(use.buffer, []), span_of(self._graph, use)
            if use.buffer not in pass_.read_buffers and any(within(before, span)):
                before = []
            self._contents[use.buffer] = [*outside(before, span), (span, index)]
