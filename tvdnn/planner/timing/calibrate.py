"""Feedback: a step as it was measured beside its prediction, and costs corrected by it."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from ...graph import Pass
from ...units import format_seconds
from ..ir.costs import Costs, HostLink
from ..ir.schedule import Lane, Schedule
from ..ir.timeline import Span, Timeline
from .simulate import COPY_LANES, simulate

LITTLE: Final = 0.05  # by which a step may miss its prediction before costs are corrected
LINK_ROUNDS: Final = 3  # in which its rates are found
SHOWN: Final = 10
COPIES: Final = {Lane.OFFLOAD: "copies to the host", Lane.PREFETCH: "copies to the device"}


@dataclass(frozen=True, slots=True)
class Drift:
    """Seconds of a step that an op's launches, or the copies of one way, take and should take."""

    name: str
    predicted_s: float
    measured_s: float

    @property
    def missed_s(self) -> float:
        """How much longer than predicted; less than nothing where shorter."""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True, slots=True)
class Feedback:
    """A step of `schedule` as `predicted` and as `measured`.

    `drifts` names what differs, the most first. `replanned` tells whether the plan that the
    corrected costs gave took the schedule's place.
    """

    schedule: Schedule
    predicted: Timeline
    measured: Timeline
    drifts: tuple[Drift, ...]
    replanned: bool = False

    @property
    def off(self) -> float:
        """By what share the step takes longer than predicted."""
        return self.measured.step_s / self.predicted.step_s - 1.0

    def share(self, drift: Drift) -> float:
        """What the measured seconds are of the measured step."""
        return drift.measured_s / self.measured.step_s

    def __str__(self) -> str:
        """The step, and a line for each of the ops that miss their prediction most."""
        times = format_seconds(self.measured.step_s), format_seconds(self.predicted.step_s)
        lines = [f"{times[0]} a step measured, {times[1]} predicted ({self.off:+.1%})"]
        for drift in self.drifts[:SHOWN]:
            took, expected = format_seconds(drift.measured_s), format_seconds(drift.predicted_s)
            share = self.share(drift)
            lines.append(f"  {drift.name}: {took}, predicted {expected}, {share:.1%} of the step")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Corrected:
    """`costs`, with the seconds of passes taken `factors` times, and another link."""

    costs: Costs
    factors: Mapping[str, float]
    link: HostLink

    @property
    def hardware(self) -> str:
        return self.costs.hardware

    @property
    def measured(self) -> bool:
        return True

    def launch_s(self, pass_: Pass, rows: int) -> float:
        return self.costs.launch_s(pass_, rows) * self.factors.get(pass_.name, 1.0)

    def min_pass_s(self, pass_: Pass) -> float:
        return self.costs.min_pass_s(pass_) * self.factors.get(pass_.name, 1.0)


def is_off(measured_s: float, predicted_s: float) -> bool:
    """Whether a step misses its prediction by more than is little."""
    return abs(measured_s / predicted_s - 1.0) > LITTLE


def compare(schedule: Schedule, costs: Costs, measured: Timeline) -> Feedback:
    """The measured step of `schedule` beside what `costs` predict."""
    predicted = simulate(schedule, costs)
    expected, found = _by_name(schedule, predicted), _by_name(schedule, measured)
    drifts = [Drift(name, expected[name], found[name]) for name in expected]
    drifts.sort(key=lambda drift: abs(drift.missed_s), reverse=True)
    return Feedback(schedule, predicted, measured, tuple(drifts))


def correct(schedule: Schedule, costs: Costs, measured: Timeline) -> Corrected:
    """`costs` by which each pass and each way of the link takes in `schedule` what was measured.

    A pass takes as many times longer in launches of any length. Copies are compared with those that
    the simulator makes beside the launches as measured; and again at the rates found, by which the
    ways of the link overlap as they did.
    """
    expected, found = defaultdict[str, float](float), defaultdict[str, float](float)
    for span in measured.spans:
        step = schedule.steps[span.step]
        if span.lane is Lane.COMPUTE:
            pass_ = schedule.graph.passes[step.pass_index]
            expected[pass_.name] += costs.launch_s(pass_, step.stop - step.start)
            found[pass_.name] += span.end_s - span.start_s
    factors = {name: found[name] / each for name, each in expected.items() if each and found[name]}
    corrected = Corrected(costs, factors, costs.link)
    for _ in range(LINK_ROUNDS):
        corrected = replace(corrected, link=_link(schedule, corrected, measured))
    return corrected


def joined(halves: tuple[Timeline, ...]) -> Timeline:
    """The timeline of a step that ran in halves, one behind the other."""
    ends = [0.0]
    for half in halves:
        ends.append(ends[-1] + max((span.end_s for span in half.spans), default=0.0))
    spans = tuple(
        Span(span.lane, span.step, begin + span.start_s, begin + span.end_s)
        for half, (begin, _) in zip(halves, pairwise(ends), strict=True)
        for span in half.spans
    )
    stall_s = sum(half.stall_s for half in halves)
    return Timeline(spans, simulated=any(half.simulated for half in halves), stall_s=stall_s)


def _link(schedule: Schedule, costs: Corrected, measured: Timeline) -> HostLink:
    """The link of `costs`, its rates those that its copies were measured at."""
    expected = simulate(schedule, costs)
    shares = [_share(expected, measured, lane, costs.link) for lane in COPY_LANES]
    return _scaled(costs.link, *shares)


def _share(expected: Timeline, measured: Timeline, lane: Lane, link: HostLink) -> float:
    """What a way has of its predicted rate; all where nothing moves but latency passes."""
    predicted_s, taken_s = (_moving_s(each, lane, link) for each in (expected, measured))
    return predicted_s / taken_s if predicted_s > 0 and taken_s > 0 else 1.0


def _scaled(link: HostLink, to_host: float, to_device: float) -> HostLink:
    return replace(
        link,
        to_host=link.to_host * to_host,
        to_host_duplex=link.to_host_duplex * to_host,
        to_device=link.to_device * to_device,
        to_device_duplex=link.to_device_duplex * to_device,
    )


def _moving_s(timeline: Timeline, lane: Lane, link: HostLink) -> float:
    """Seconds in which bytes move on a lane."""
    spans = (span for span in timeline.spans if span.lane is lane)
    return sum(span.end_s - span.start_s - link.latency_s for span in spans)


def _by_name(schedule: Schedule, timeline: Timeline) -> dict[str, float]:
    """Seconds of each op's launches and of the copies of each way."""
    found = defaultdict[str, float](float)
    for span in timeline.spans:
        launched = schedule.steps[span.step].pass_index
        name = COPIES.get(span.lane) or schedule.graph.passes[launched].op
        found[name] += span.end_s - span.start_s
    return found
