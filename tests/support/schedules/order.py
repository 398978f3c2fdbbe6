"""Which steps of a schedule end before which, found pair by pair, and the waits that order them."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tvdnn.planner.ir.schedule import Lane, Operand, Schedule, Space


def with_waits(schedule: Schedule) -> Schedule:
    """The schedule with the waits, and no more, that order every two steps that share bytes."""
    sharers: list[list[int]] = [[] for _ in schedule.steps]
    for first, second in conflicts(schedule):
        sharers[second].append(first)
    order = _Order(len(schedule.steps), schedule.phase_split)
    steps = []
    for index, step in enumerate(schedule.steps):
        order.add(index, step.lane, ())
        waits = []
        for other in reversed(sharers[index]):
            if not order.before[other, index]:
                order.put_before(other, index)
                waits.append(other)
        steps.append(step._replace(waits=tuple(sorted(waits))))
    return replace(schedule, steps=tuple(steps))


def happens_before(schedule: Schedule) -> npt.NDArray[np.bool_]:
    """[s, t]: step s ends before step t starts, by lanes, waits on earlier steps, and the cut."""
    order = _Order(len(schedule.steps), schedule.phase_split)
    for index, step in enumerate(schedule.steps):
        order.add(index, step.lane, (wait for wait in step.waits if 0 <= wait < index))
    return order.before


class _Order:
    """The closure of happens-before over the steps added so far."""

    def __init__(self, count: int, cut: int) -> None:
        self.before = np.zeros((count, count), np.bool_)
        self._cut = cut
        self._last: dict[Lane, int] = {}

    def add(self, index: int, lane: Lane, waits: Iterable[int]) -> None:
        """Put step `index` behind its lane, its waits and, in the second half, the first."""
        for other in (*waits, *((self._last[lane],) if lane in self._last else ())):
            self.put_before(other, index)
        self._last[lane] = index
        if index >= self._cut:
            self.before[: self._cut, index] = True

    def put_before(self, first: int, second: int) -> None:
        self.before[:, second] |= self.before[:, first]
        self.before[first, second] = True


def conflicts(schedule: Schedule) -> list[tuple[int, int]]:
    """Pairs of steps (s, t), s before t in the tuple, that share bytes which one of them writes."""
    rows = [
        (index, writes, operand.space, low, high)
        for index, step in enumerate(schedule.steps)
        for writes, operands in enumerate((step.reads, step.writes))
        for operand in operands
        for low, high in _pieces(schedule, operand)
    ]
    step, writes, space, start, end = np.array(rows, np.int64).reshape(-1, 5).T[:, :, None]
    meets = (step < step.T) & (writes | writes.T).astype(bool) & (space == space.T)
    meets &= (start < end.T) & (end > start.T)
    first, second = np.nonzero(meets)
    return sorted({(int(s), int(t)) for s, t in zip(step[first, 0], step[second, 0], strict=True)})


def _pieces(schedule: Schedule, operand: Operand) -> Iterator[tuple[int, int]]:
    """The bytes of an operand as ranges [low, high) of its space, page by page."""
    if schedule.pages is None or operand.space is not Space.ARENA:
        yield operand.offset, operand.end
        return
    size, table = schedule.pages
    for virtual in range(operand.offset // size, (operand.end - 1) // size + 1):
        low, high = max(operand.offset, virtual * size), min(operand.end, (virtual + 1) * size)
        shift = (table[virtual] - virtual) * size
        yield low + shift, high + shift


def races(schedule: Schedule) -> bool:
    """Whether two steps that share bytes may run in either order."""
    order = happens_before(schedule)
    return any(not order[s, t] for s, t in conflicts(schedule))
