"""Calibration: a measured step beside its prediction, and costs scaled to the measurement."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from ...graph import Buffer, Form, Pass
from ...units import format_seconds
from ..ir.costs import RANKS, Costs, Forms, Link, Links
from ..ir.schedule import LANE_PAIRS, Action, Lane, LanePair, Schedule, Step
from ..ir.timeline import Span, Timeline
from .simulate import simulate

# Share of the prediction by which a step may differ before costs are calibrated.
TOLERANCE: Final = 0.05
# Rounds in which the links' rates are found.
LINK_ROUNDS: Final = 3
# Ops that are shown, those with the largest errors first.
SHOWN: Final = 10
NAMES: Final = {  # of what lanes do, besides launches
    Lane.OFFLOAD: "copies to the host",
    Lane.PREFETCH: "copies to the device",
    Lane.FILE_WRITE: "writes to the file",
    Lane.FILE_READ: "reads from the file",
    Lane.PEER_OFFLOAD: "copies to the peer",
    Lane.PEER_PREFETCH: "copies from the peer",
    Lane.REDUCE: "sums over processes",
}


@dataclass(frozen=True, slots=True)
class Drift:
    """Predicted and measured seconds in one step of an op, of recodes, copies or sums."""

    name: str
    predicted_s: float
    measured_s: float

    @property
    def error_s(self) -> float:
        """Measured less predicted seconds."""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True, slots=True)
class Calibration:
    """A step of `schedule`, predicted and measured."""

    schedule: Schedule
    predicted: Timeline
    measured: Timeline
    drifts: tuple[Drift, ...]  # by op, kind of recode or copy direction, the largest error first
    replanned: bool = False  # True if a plan by the calibrated costs replaced the schedule

    @property
    def relative_error(self) -> float:
        """The share of the prediction by which the measured step is longer."""
        return self.measured.step_s / self.predicted.step_s - 1.0

    def share(self, drift: Drift) -> float:
        """The share of the measured step that the measured seconds take."""
        return drift.measured_s / self.measured.step_s

    def __str__(self) -> str:
        """The step, and a line for each of the ops with the largest errors."""
        times = format_seconds(self.measured.step_s), format_seconds(self.predicted.step_s)
        lines = [f"{times[0]} a step measured, {times[1]} predicted ({self.relative_error:+.1%})"]
        for drift in self.drifts[:SHOWN]:
            took, expected = format_seconds(drift.measured_s), format_seconds(drift.predicted_s)
            share = self.share(drift)
            lines.append(f"  {drift.name}: {took}, predicted {expected}, {share:.1%} of the step")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CalibratedCosts:
    """Costs with scaled times of passes and recodes, and other links."""

    costs: Costs
    factors: Mapping[str, float]  # on seconds, by name of a pass or of a kind of recode
    links: Links

    @property
    def hardware(self) -> str:
        return self.costs.hardware

    @property
    def measured(self) -> bool:
        return True

    def launch_s(self, pass_: Pass, rows: int, forms: Forms = ()) -> float:
        return self.costs.launch_s(pass_, rows, forms) * self.factors.get(pass_.name, 1.0)

    def recode_s(self, buffer: Buffer, rows: int, source: Form, target: Form) -> float:
        factor = self.factors.get(recode_name(source, target), 1.0)
        return self.costs.recode_s(buffer, rows, source, target) * factor

    def min_pass_s(self, pass_: Pass) -> float:
        return self.costs.min_pass_s(pass_) * self.factors.get(pass_.name, 1.0)


def is_mispredicted(measured_s: float, predicted_s: float) -> bool:
    """True if a step differs from its prediction by more than 5%."""
    return abs(measured_s / predicted_s - 1.0) > TOLERANCE


def compare(schedule: Schedule, costs: Costs, measured: Timeline) -> Calibration:
    """The measured step of `schedule` beside the prediction by `costs`."""
    predicted = simulate(schedule, costs)
    expected, found = _by_name(schedule, predicted), _by_name(schedule, measured)
    drifts = [Drift(name, expected[name], found[name]) for name in expected]
    drifts.sort(key=lambda drift: abs(drift.error_s), reverse=True)
    return Calibration(schedule, predicted, measured, tuple(drifts))


def calibrate(schedule: Schedule, costs: Costs, measured: Timeline) -> CalibratedCosts:
    """`costs` scaled so that passes, recodes and copies of `schedule` take the measured seconds.

    The factor of a pass is the same for launches of all lengths and forms. Launches beside sums or
    beside kernels that store to the host are expected to take longer. The rates of each
    link are scaled by the measured copies over the simulated ones. This is repeated three times,
    because the overlap of both directions depends on the rates. Sums over processes take as long as
    measured, waits for other processes included.
    """
    expected, found = defaultdict[str, float](float), defaultdict[str, float](float)
    simulated = {span.step: span for span in simulate(schedule, costs).spans}
    for span in measured.spans:
        step = schedule.steps[span.step]
        if span.lane is Lane.COMPUTE:
            name = _recode_of(step) or schedule.graph.passes[step.pass_index].name
            expected[name] += simulated[span.step].end_s - simulated[span.step].start_s
            found[name] += span.end_s - span.start_s
    factors = {name: found[name] / each for name, each in expected.items() if each and found[name]}
    calibrated = CalibratedCosts(costs, factors, _with_measured_ranks(schedule, costs, measured))
    for _ in range(LINK_ROUNDS):
        calibrated = replace(calibrated, links=_measured_links(schedule, calibrated, measured))
    return calibrated


def concat_timelines(phases: tuple[Timeline, ...]) -> Timeline:
    """The timeline of a step whose phases ran one after the other."""
    ends = [0.0]
    for phase in phases:
        ends.append(ends[-1] + max((span.end_s for span in phase.spans), default=0.0))
    spans = tuple(
        Span(span.lane, span.step, begin + span.start_s, begin + span.end_s)
        for phase, (begin, _) in zip(phases, pairwise(ends), strict=True)
        for span in phase.spans
    )
    stall_s = sum(phase.stall_s for phase in phases)
    return Timeline(spans, simulated=any(phase.simulated for phase in phases), stall_s=stall_s)


def _with_measured_ranks(schedule: Schedule, costs: Costs, measured: Timeline) -> Links:
    """The links, that between processes scaled by the measured sums over the simulated ones."""
    predicted_s, measured_s = (
        sum(span.end_s - span.start_s for span in timeline.spans if span.lane is Lane.REDUCE)
        for timeline in (simulate(schedule, costs), measured)
    )
    if not (predicted_s and measured_s):
        return costs.links
    link, factor = costs.links[RANKS], predicted_s / measured_s
    link = replace(link.scaled(factor, factor), latency_s=link.latency_s / factor)
    return {**costs.links, RANKS: link}


def _measured_links(schedule: Schedule, costs: CalibratedCosts, measured: Timeline) -> Links:
    expected, links = simulate(schedule, costs), costs.links
    return {**links} | {
        pair.tier: _measured_link(pair, links[pair.tier], expected, measured)
        for pair in LANE_PAIRS
        if pair.tier in links
    }


def _measured_link(pair: LanePair, link: Link, expected: Timeline, measured: Timeline) -> Link:
    def factor(lane: Lane) -> float:
        predicted_s, measured_s = (
            sum(s.end_s - s.start_s - link.latency_s for s in each.spans if s.lane is lane)
            for each in (expected, measured)
        )
        return predicted_s / measured_s if predicted_s > 0 and measured_s > 0 else 1.0

    return link.scaled(factor(pair.out), factor(pair.back))


def _by_name(schedule: Schedule, timeline: Timeline) -> dict[str, float]:
    """By name, the seconds of each op's launches, each kind of recode and each copy direction."""

    found = defaultdict[str, float](float)
    for span in timeline.spans:
        step = schedule.steps[span.step]
        name = NAMES.get(span.lane) or _recode_of(step)
        found[name or schedule.graph.passes[step.pass_index].op] += span.end_s - span.start_s
    return found


def recode_name(source: Form, target: Form) -> str:
    """The name of a kind of recode among those of passes and ops."""
    return f"recodes from {source.codec} to {target.codec}"


def _recode_of(step: Step) -> str | None:
    if step.action is not Action.RECODE:
        return None
    return recode_name(step.reads[0].form, step.writes[0].form)
