"""The simulator: when a schedule's steps run on a machine of given costs, and what is resident."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from ...errors import ScheduleError
from ...graph import Kind
from ..ir.costs import Costs
from ..ir.schedule import Action, Lane, Residency, Schedule
from ..ir.timeline import Span, Timeline, copy_waits

COPY_LANES = (Lane.OFFLOAD, Lane.PREFETCH)

Label = TypeVar("Label", bound=Hashable)
MemoryProfile: TypeAlias = tuple[tuple[float, Mapping[Kind, int]], ...]


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """The timeline of `schedule`: a step starts once its lane is free and its waits have ended.

    A copy takes the link's latency, then moves its bytes at the duplex rate while the other copy
    lane is busy, else at the rate of its way alone. The second half starts once the first ended.
    """
    simulation = _Simulation(schedule, costs)
    while simulation.start_ready():
        simulation.end_next()
    return simulation.timeline()


@dataclass(slots=True)
class _Running:
    """A step in progress: from `since_s` on, `fixed_s` and then `nbytes` at `rate` remain."""

    step: int
    start_s: float
    since_s: float
    fixed_s: float
    nbytes: float = 0.0
    rate: float = 1.0

    @property
    def end_s(self) -> float:
        return self.since_s + self.fixed_s + self.nbytes / self.rate

    def change_rate(self, now_s: float, rate: float) -> None:
        passed_s = now_s - self.since_s
        fixed_s = min(passed_s, self.fixed_s)
        self.nbytes = max(0.0, self.nbytes - (passed_s - fixed_s) * self.rate)
        self.fixed_s -= fixed_s
        self.since_s, self.rate = now_s, rate


class _Simulation:
    """The present, the steps in progress by lane, and the spans of the steps that have ended."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        link = costs.link
        self._schedule, self._costs = schedule, costs
        self._alone = {Lane.OFFLOAD: link.to_host, Lane.PREFETCH: link.to_device}
        self._duplex = {Lane.OFFLOAD: link.to_host_duplex, Lane.PREFETCH: link.to_device_duplex}
        self._queues: dict[Lane, list[int]] = {lane: [] for lane in Lane}
        for index in reversed(range(len(schedule.steps))):
            self._queues[schedule.steps[index].lane].append(index)
        self._running: dict[Lane, _Running] = {}
        self._spans: dict[int, Span] = {}
        self._now_s = 0.0

    def start_ready(self) -> bool:
        """Start what can start now; whether anything runs."""
        for lane, queue in self._queues.items():
            if queue and lane not in self._running and self._ready(queue[-1]):
                self._start(lane, queue.pop())
        self._share_link()
        waiting = [queue[-1] for queue in self._queues.values() if queue]
        if waiting and not self._running:
            raise ScheduleError(
                f"no lane can go on: {self._schedule.step_name(min(waiting))} waits"
            )
        return bool(self._running)

    def end_next(self) -> None:
        """Go on to the end of the step that ends first."""
        lane = min(self._running, key=lambda lane: self._running[lane].end_s)
        running = self._running.pop(lane)
        self._now_s = max(self._now_s, running.end_s)
        self._spans[running.step] = Span(lane, running.step, running.start_s, self._now_s)

    def timeline(self) -> Timeline:
        spans = tuple(self._spans[index] for index in range(len(self._spans)))
        stall_s = sum(end - start for start, end in copy_waits(self._schedule, spans))
        return Timeline(spans, simulated=True, stall_s=stall_s)

    def _ready(self, index: int) -> bool:
        cut = self._schedule.phase_split
        if index >= cut and len(self._spans) < cut:
            return False
        return all(wait in self._spans for wait in self._schedule.steps[index].waits)

    def _start(self, lane: Lane, index: int) -> None:
        step, now_s = self._schedule.steps[index], self._now_s
        if step.action is Action.COPY:
            latency_s, nbytes = self._costs.link.latency_s, step.copied_nbytes
            self._running[lane] = _Running(index, now_s, now_s, latency_s, nbytes)
            return
        pass_ = self._schedule.graph.passes[step.pass_index]
        seconds = self._costs.launch_s(pass_, step.stop - step.start)
        self._running[lane] = _Running(index, now_s, now_s, seconds)

    def _share_link(self) -> None:
        """Give each copy in progress the rate that it has from now on."""
        copies = [lane for lane in COPY_LANES if lane in self._running]
        rates = self._duplex if len(copies) == len(COPY_LANES) else self._alone
        for lane in copies:
            if self._running[lane].rate != rates[lane]:
                self._running[lane].change_rate(self._now_s, rates[lane])


def average_nbytes(schedule: Schedule, timeline: Timeline) -> float:
    """Device bytes averaged over the step: residents of the arena, and what lies outside it."""
    stays = _held(schedule, timeline)
    byte_seconds = sum(stay.nbytes * (end_s - start_s) for stay, start_s, end_s in stays)
    return schedule.graph.fixed_nbytes + byte_seconds / (timeline.step_s or 1.0)


def memory_profile(schedule: Schedule, timeline: Timeline) -> MemoryProfile:
    """Bytes resident in the arena by kind, from each time on at which they change."""
    buffers = schedule.graph.buffers
    return profile_by(schedule, timeline, lambda stay: buffers[stay.buffer].kind, Kind)


def profile_by(
    schedule: Schedule,
    timeline: Timeline,
    label: Callable[[Residency], Label],
    labels: Iterable[Label],
) -> tuple[tuple[float, dict[Label, int]], ...]:
    """Bytes resident in the arena, from each time on at which they change.

    They are told by the label of each stay, which is one of `labels`; what none has is left out.
    """
    stays = tuple(_held(schedule, timeline))
    found = [label(stay) for stay, _, _ in stays]
    shown = [each for each in labels if each in found]
    columns = np.array([shown.index(each) for each in found], np.int64)
    nbytes = np.array([stay.nbytes for stay, _, _ in stays], np.int64)
    starts_s = np.array([start_s for _, start_s, _ in stays], np.float64)
    ends_s = np.array([end_s for _, _, end_s in stays], np.float64)
    times_s = np.unique(np.concatenate((starts_s, ends_s)))
    levels = np.zeros((len(times_s), len(shown)), np.int64)
    np.add.at(levels, (np.searchsorted(times_s, starts_s), columns), nbytes)
    np.subtract.at(levels, (np.searchsorted(times_s, ends_s), columns), nbytes)
    rows = np.cumsum(levels, axis=0).tolist()
    return tuple(
        (time_s, dict(zip(shown, row, strict=True)))
        for time_s, row in zip(times_s.tolist(), rows, strict=True)
    )


def _held(schedule: Schedule, timeline: Timeline) -> Iterator[tuple[Residency, float, float]]:
    """Every residency, its start and its end.

    It lasts from the start of its first step to the end of its last; an input is there from the
    start of its half of the step, an output until the end of it.
    """
    graph, spans = schedule.graph, timeline.spans
    halves = _halves(schedule, timeline)
    inputs, outputs = frozenset(graph.inputs), frozenset(graph.outputs)
    filled: set[tuple[str, int]] = set()
    for stay in schedule.residencies:
        start_s = spans[stay.steps[0]].start_s
        end_s = max(spans[step].end_s for step in stay.steps)
        if stay.buffer in inputs and (stay.buffer, stay.section) not in filled:
            filled.add((stay.buffer, stay.section))
            start_s = halves[stay.steps[0] >= schedule.phase_split][0]
        if stay.buffer in outputs:
            end_s = halves[stay.steps[-1] >= schedule.phase_split][1]
        yield stay, start_s, end_s


def _halves(schedule: Schedule, timeline: Timeline) -> tuple[tuple[float, float], ...]:
    """Start and end of each half of the step; where there is one half, the second is empty."""
    spans, cut = timeline.spans, schedule.phase_split
    start_s = min((span.start_s for span in spans), default=0.0)
    middle_s = max((span.end_s for span in spans[:cut]), default=start_s)
    end_s = max((span.end_s for span in spans), default=middle_s)
    return (start_s, middle_s), (middle_s, end_s)
