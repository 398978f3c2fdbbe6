"""Hazards: the waits that order steps which touch the same bytes, derived by byte range."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ..ir.page_map import PageMap
from ..ir.schedule import Lane, Operand, Space, Step

Clock = tuple[int, ...]  # by lane, its last step that has ended


class _LastAccess(NamedTuple):
    """The last accesses to some bytes."""

    writer: int  # the last step that wrote them; -1: none
    readers: tuple[int, ...]  # by lane, the last step that read them since; -1: none


class _Ranges:
    """The last accesses to each byte of a space, as ranges between sorted boundaries."""

    def __init__(self, size: int, num_lanes: int, pages: PageMap | None = None) -> None:
        self._bounds = [0, max(1, size)]
        self._no_readers = (-1,) * num_lanes
        self._last = [_LastAccess(-1, self._no_readers)]
        self._pages = pages

    def of(self, operand: Operand) -> Iterable[tuple[int, int]]:
        """The bytes of an operand, as ranges (low, high)."""
        if self._pages is None:
            return ((operand.offset, operand.end),)
        return self._pages.physical(operand.offset, operand.nbytes)

    def _split(self, at: int) -> int:
        """Index of the range that starts at byte `at`; the range that holds `at` is split."""
        index = bisect_left(self._bounds, at)
        if self._bounds[index] != at:
            self._bounds.insert(index, at)
            self._last.insert(index, self._last[index - 1])
        return index

    def accesses(self, low: int, high: int) -> Sequence[_LastAccess]:
        first = bisect_right(self._bounds, low) - 1
        return self._last[first : bisect_left(self._bounds, high)]

    def read(self, low: int, high: int, step: int, lane: Lane) -> None:
        first, end = self._split(low), self._split(high)
        for index in range(first, end):
            last = self._last[index]
            readers = (*last.readers[:lane], step, *last.readers[lane + 1 :])
            self._last[index] = _LastAccess(last.writer, readers)

    def write(self, low: int, high: int, step: int) -> None:
        first, end = self._split(low), self._split(high)
        self._bounds[first:end] = [low]
        self._last[first:end] = [_LastAccess(step, self._no_readers)]


_Touched: TypeAlias = tuple[_Ranges, int, int]  # bytes from low up to high of a space


def add_waits(
    steps: Sequence[Step],
    sizes: Mapping[Space, int],
    pages: PageMap | None,
    extra: Sequence[tuple[int, ...]],
) -> tuple[Step, ...]:
    """`steps` with the fewest waits that order all hazards.

    `sizes` are the bytes of each space, `pages` are those of the arena. `extra` are, by step,
    earlier steps that are added to the waits.
    """
    num_lanes = _num_lanes(steps)
    spaces = {
        space: _Ranges(nbytes, num_lanes, pages if space is Space.ARENA else None)
        for space, nbytes in sizes.items()
    }
    before = []
    for index, step in enumerate(steps):
        written = set(step.writes)
        reads = _touched((each for each in step.reads if each not in written), spaces)
        writes = _touched(step.writes, spaces)
        before.append({*_conflicts(reads, writes), *extra[index]})
        for ranges, low, high in reads:
            ranges.read(low, high, index, step.lane)
        for ranges, low, high in writes:
            ranges.write(low, high, index)
    return with_waits(steps, before)


def with_waits(steps: Sequence[Step], before: Iterable[Iterable[int]]) -> tuple[Step, ...]:
    """`steps` with the fewest waits by which each step runs after the earlier steps in `before`."""
    clocks: list[Clock] = []
    ahead: dict[Lane, Clock] = dict.fromkeys(Lane, (-1,) * _num_lanes(steps))
    done = []
    for index, (step, found) in enumerate(zip(steps, before, strict=True)):
        waits, clock = _reduce(step.lane, found, steps, clocks, ahead[step.lane])
        clock = (*clock[: step.lane], index, *clock[step.lane + 1 :])
        clocks.append(clock)
        ahead[step.lane] = clock
        done.append(step._replace(waits=waits))
    return tuple(done)


def _num_lanes(steps: Sequence[Step]) -> int:
    """The length of clocks that have every lane of the steps."""
    return 1 + max((step.lane for step in steps), default=0)


def _touched(operands: Iterable[Operand], spaces: dict[Space, _Ranges]) -> list[_Touched]:
    """The bytes of operands, as ranges (low, high) of their spaces."""
    found = ((spaces[operand.space], operand) for operand in operands)
    return [(ranges, *span) for ranges, operand in found for span in ranges.of(operand)]


def _conflicts(reads: Sequence[_Touched], writes: Sequence[_Touched]) -> Iterator[int]:
    for ranges, low, high in reads:
        for last in ranges.accesses(low, high):
            yield last.writer
    for ranges, low, high in writes:
        for last in ranges.accesses(low, high):
            yield last.writer
            yield from last.readers


def _reduce(
    lane: Lane, before: Iterable[int], steps: Sequence[Step], clocks: Sequence[Clock], clock: Clock
) -> tuple[tuple[int, ...], Clock]:
    """The waits in `before` that no lane's order and no other wait implies, and the new clock."""

    waits = []
    for index in sorted(before, reverse=True):
        other = steps[index].lane if index >= 0 else lane
        if index < 0 or other is lane or clock[other] >= index:
            continue
        waits.append(index)
        clock = tuple(map(max, clock, clocks[index]))
    return tuple(sorted(waits)), clock
