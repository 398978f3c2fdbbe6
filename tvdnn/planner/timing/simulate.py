"""Simulator: an event-driven simulation of a schedule on a machine of given costs."""

from dataclasses import dataclass

from ...errors import ScheduleError
from ...graph import Graph
from ..ir.costs import SUM_SLOWDOWN, Costs, collective_s, num_ranges
from ..ir.schedule import LANE_PAIRS, Action, Lane, Schedule, Step
from ..ir.timeline import Span, Timeline, copy_waits


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """The timeline of `schedule`. A step starts once its lane is free and its waits have ended.

    A copy takes its link's latency. It then moves its bytes at the duplex rate while the other lane
    of the link is busy, else at the full rate of its direction. A kernel that encodes straight to
    the host has a share of this rate, and launches beside it take longer. A sum over processes
    takes the seconds of a ring, and launches beside it take longer too. The second phase starts
    once the first has ended. Raises ScheduleError at a deadlock.
    """
    simulation = _Simulation(schedule, costs)
    while simulation.start_ready():
        simulation.end_next()
    return simulation.timeline()


def seconds_alone(graph: Graph, step: Step, costs: Costs) -> float:
    """Seconds of a launch or a recode by itself."""
    rows = step.stop - step.start
    if step.action is Action.RECODE:
        source, target = step.reads[0], step.writes[0]
        return costs.recode_s(graph.buffers[source.buffer], rows, source.form, target.form)
    pass_ = graph.passes[step.pass_index]
    seconds = costs.launch_s(pass_, rows, step.forms)
    if not pass_.least_sums:
        return seconds
    sums = step.writes[0]
    return seconds * num_ranges(graph.buffers[sums.buffer].rows, sums.stop)


@dataclass(slots=True)
class _Running:
    """A step in progress."""

    step: int
    start_s: float
    since_s: float  # the second from which the remaining work counts
    fixed_s: float  # remaining seconds before bytes move
    nbytes: float = 0.0  # remaining bytes; of a launch remaining seconds by itself
    rate: float = 1.0  # bytes per second; of a launch its seconds by itself per second

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
    """The present time, the steps in progress by lane, and the spans of ended steps."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self._schedule, self._costs = schedule, costs
        used = {step.lane for step in schedule.steps}
        self._pairs = [pair for pair in LANE_PAIRS if used.intersection((pair.out, pair.back))]
        self._links = {
            lane: costs.links[pair.tier] for pair in self._pairs for lane in (pair.out, pair.back)
        }
        self._queues: dict[Lane, list[int]] = {lane: [] for lane in Lane}
        for index in reversed(range(len(schedule.steps))):
            self._queues[schedule.steps[index].lane].append(index)
        self._running: dict[Lane, _Running] = {}
        self._spans: dict[int, Span] = {}
        self._now_s = 0.0

    def start_ready(self) -> bool:
        """Start every step that can start now. True if any step is in progress."""
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
        """Advance the time to the end of the step that ends first."""
        lane = min(self._running, key=lambda lane: self._running[lane].end_s)
        running = self._running.pop(lane)
        self._now_s = max(self._now_s, running.end_s)
        self._spans[running.step] = Span(lane, running.step, running.start_s, self._now_s)

    def timeline(self) -> Timeline:
        spans = tuple(self._spans[index] for index in range(len(self._spans)))
        stall_s = sum(end - start for start, end in copy_waits(self._schedule, spans))
        return Timeline(spans, simulated=True, stall_s=stall_s)

    def _ready(self, index: int) -> bool:
        split = self._schedule.phase_split
        if index >= split and len(self._spans) < split:
            return False
        return all(wait in self._spans for wait in self._schedule.steps[index].waits)

    def _start(self, lane: Lane, index: int) -> None:
        step, now_s = self._schedule.steps[index], self._now_s
        if lane is Lane.REDUCE:
            pass_ = self._schedule.graph.passes[step.pass_index]
            seconds = collective_s(self._costs.links, pass_, step.writes[0].nbytes)
            self._running[lane] = _Running(index, now_s, now_s, seconds)
            return
        if lane is not Lane.COMPUTE:
            latency_s, nbytes = self._links[lane].latency_s, step.copied_nbytes
            self._running[lane] = _Running(index, now_s, now_s, latency_s, nbytes)
            return
        seconds = seconds_alone(self._schedule.graph, step, self._costs)
        self._running[lane] = _Running(index, now_s, now_s, 0.0, seconds)

    def _share_link(self) -> None:
        """Set the rate of each copy in progress, and of the launch beside them."""
        slowdown = SUM_SLOWDOWN if Lane.REDUCE in self._running else 1.0
        for pair in self._pairs:
            link = self._links[pair.out]
            duplex = pair.out in self._running and pair.back in self._running
            rates = (link.out_duplex, link.back_duplex) if duplex else (link.out, link.back)
            straight = self._is_straight(pair.out)
            out_rate = rates[0] * (link.zero_copy_share if straight else 1.0)
            self._set_rate(pair.out, out_rate)
            self._set_rate(pair.back, rates[1])
            slowdown *= link.zero_copy_slowdown if straight else 1.0
        self._set_rate(Lane.COMPUTE, 1.0 / slowdown)

    def _is_straight(self, lane: Lane) -> bool:
        """Whether a kernel that encodes to the host runs on a lane."""
        running = self._running.get(lane)
        return running is not None and self._schedule.steps[running.step].action is Action.RECODE

    def _set_rate(self, lane: Lane, rate: float) -> None:
        if lane in self._running and self._running[lane].rate != rate:
            self._running[lane].change_rate(self._now_s, rate)
