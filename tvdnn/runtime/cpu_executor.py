"""The CPU executor: runs the steps of a schedule in a seeded random order over poisoned memory.

The order respects lanes and waits alone. A missing wait shows as a different result. Bytes that no
later step may read are overwritten with NaN after their last step.
"""

import random
from collections import deque
from collections.abc import Sequence

from ..graph import RAW
from ..planner.ir.costs import Costs
from ..planner.ir.schedule import Lane, Operand, Schedule, Step
from ..planner.ir.timeline import Span, Timeline, copy_waits
from ..planner.timing.simulate import simulate
from .binding import Call, Lap
from .views import ByteViews

POISON = 0xFF  # every byte set: NaN in float32 and bfloat16


class CpuExecutor:
    """Runs the two phases of a schedule. `seed` fixes the order; None keeps the schedule's order.

    `clock` holds the costs of a machine. Steps are timed as that machine would run them.
    """

    def __init__(
        self,
        schedule: Schedule,
        memory: ByteViews,
        calls: Sequence[Call],
        *,
        seed: int | None,
        clock: Costs | None = None,
    ) -> None:
        self._schedule = schedule
        self._memory = memory
        self.calls = calls
        self._random = None if seed is None else random.Random(seed)
        self._clock = clock
        self._stays = _stays_by_step(schedule)
        self._tails = _tails_by_last_step(schedule)
        self._bounced = _bounced_by_last_step(schedule)

    def run(self, first: int, end: int) -> None:
        """Run steps [first, end)."""
        self.run_eagerly(first, end, self.calls)

    def run_eagerly(self, first: int, end: int, calls: Sequence[Call]) -> None:
        """Run steps [first, end) by these calls."""
        users = [sum(first <= s < end for s in stay.steps) for stay in self._schedule.residencies]
        for index in self._order(first, end):
            calls[index]()
            for number in self._stays[index]:
                users[number] -= 1
                if users[number] == 0:
                    self._poison(number, end)
            for operand in (*self._tails.get(index, ()), *self._bounced.get(index, ())):
                self._memory.bytes_of(operand).fill_(POISON)

    def timed(self, first: int, end: int) -> Lap:
        """Run steps [first, end). The lap returns their seconds."""
        timeline = self.timeline(first, end)
        return lambda: timeline.step_s

    def timeline(self, first: int, end: int) -> Timeline:
        """Run steps [first, end), and return their timeline on the machine of the clock."""
        assert self._clock is not None
        self.run(first, end)
        ran = simulate(self._schedule, self._clock).spans[first:end]
        begin_s = min((span.start_s for span in ran), default=0.0)
        spans = tuple(
            Span(span.lane, span.step, span.start_s - begin_s, span.end_s - begin_s) for span in ran
        )
        stall_s = sum(stop - start for start, stop in copy_waits(self._schedule, spans))
        return Timeline(spans, simulated=False, stall_s=stall_s)

    def _order(self, first: int, end: int) -> Sequence[int]:
        if self._random is None:
            return range(first, end)
        return random_order(self._schedule.steps, first, end, self._random)

    def _poison(self, number: int, end: int) -> None:
        stay = self._schedule.residencies[number]
        is_output = stay.form == RAW and stay.buffer in self._schedule.graph.outputs
        if stay.steps[-1] >= end or is_output:
            return
        self._memory.arena.narrow(0, stay.offset, stay.nbytes).fill_(POISON)


def random_order(steps: Sequence[Step], first: int, end: int, rng: random.Random) -> list[int]:
    """A random order of steps [first, end) that keeps each lane's order and every wait."""
    lanes = [deque(i for i in range(first, end) if steps[i].lane is lane) for lane in Lane]
    done = set(range(first))
    order: list[int] = []
    while len(order) < end - first:
        ready = [lane for lane in lanes if lane and done.issuperset(steps[lane[0]].waits)]
        order.append(rng.choice(ready).popleft())
        done.add(order[-1])
    return order


def _stays_by_step(schedule: Schedule) -> list[list[int]]:
    """The numbers of the residencies that each step uses."""
    stays: list[list[int]] = [[] for _ in schedule.steps]
    for number, stay in enumerate(schedule.residencies):
        for step in stay.steps:
            stays[step].append(number)
    return stays


def _tails_by_last_step(schedule: Schedule) -> dict[int, list[Operand]]:
    """By step, the tails of codes that no later step reads."""
    ends: dict[tuple[int, Operand], int] = {}  # by the step that writes a tail
    writers: dict[Operand, int] = {}
    for index, step in enumerate(schedule.steps):
        for operand in (*step.reads, *step.writes):
            if operand.form.tail:
                if operand in step.writes:
                    writers[operand] = index
                ends[writers.get(operand, index), operand] = index
    found: dict[int, list[Operand]] = {}
    for (_, tail), index in ends.items():
        found.setdefault(index, []).append(tail)
    return found


def _bounced_by_last_step(schedule: Schedule) -> dict[int, list[Operand]]:
    """By step, the bytes of the slab that it is the last to read on their way to or from a file."""
    found: dict[int, list[Operand]] = {}
    read: set[Operand] = set()
    for index, step in enumerate(schedule.steps):
        if step.lane is Lane.FILE_WRITE:
            found.setdefault(index, []).append(step.reads[0])
        elif step.lane is Lane.FILE_READ:
            read.add(step.writes[0])
        elif step.lane is Lane.PREFETCH and step.reads[0] in read:
            found.setdefault(index, []).append(step.reads[0])
            read.remove(step.reads[0])
    return found
