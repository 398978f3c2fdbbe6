"""Traces of a step, predicted or measured, in Chrome's trace format."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ..graph import RAW, Direction, Graph, Kind
from ..planner.ir.schedule import (
    COPY_LANES,
    LANE_PAIRS,
    Action,
    Lane,
    Residency,
    Schedule,
    Step,
    lane_name,
)
from ..planner.ir.timeline import Span, Timeline, copy_waits
from ..planner.timing.memory_profile import profile_by

MICROSECONDS: Final = 1e6  # in a second: the unit of the format


class Held(Enum):
    """Purposes of bytes of the arena. A map or a code that is being copied is in flight."""

    GRADIENTS = "gradients"
    WORKSPACE = "workspace"
    MAPS_KEPT = "maps kept"
    MAPS_CODED = "maps coded"
    MAPS_IN_FLIGHT = "maps in flight"


class Work(Enum):
    """Kinds of work of a span."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    AGAIN = "made again"
    RECODE = "recode"
    OFFLOAD = "offload"
    PREFETCH = "prefetch"
    REDUCE = "sum over processes"
    STALL = "stall"


@dataclass(frozen=True, slots=True)
class Moment:
    """Device bytes by purpose from `time_s` on. The first entry is outside the arena."""

    time_s: float
    nbytes: Mapping[str, int]


def chrome_trace(schedule: Schedule, timeline: Timeline, *, title: str) -> dict[str, Any]:
    """The step as JSON for ui.perfetto.dev or chrome://tracing.

    Each lane is a thread. Stalls stand in the thread of compute. A counter shows device memory by
    purpose. Format: Google's "Trace Event Format".
    """
    events = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": title}},
        *(
            {"ph": "M", "pid": 0, "tid": lane.value, "name": "thread_name", "args": {"name": name}}
            for lane, name in ((lane, lane_name(lane)) for lane in schedule.lanes)
        ),
        *(_event(schedule, span) for span in timeline.spans),
        *(_stall(wait) for wait in copy_waits(schedule, timeline.spans)),
        *(_counter(moment) for moment in moments(schedule, timeline)),
    ]
    predicted = "predicted" if timeline.simulated else "measured"
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"times": predicted}}


def work_of(graph: Graph, step: Step) -> Work:
    """The kind of work of a step of the graph's schedule."""
    if step.lane is Lane.REDUCE:
        return Work.REDUCE
    if step.lane is not Lane.COMPUTE:
        return Work.OFFLOAD if step.lane in {pair.out for pair in LANE_PAIRS} else Work.PREFETCH
    if step.action is Action.RECODE:
        return Work.RECODE
    direction = graph.passes[step.pass_index].direction
    again = step.recompute and direction is Direction.FORWARD
    return Work.AGAIN if again else Work[direction.name]


def moments(schedule: Schedule, timeline: Timeline) -> Iterator[Moment]:
    """Device memory by purpose at each time at which it changes."""
    for time_s, held in profile_by(schedule, timeline, lambda stay: purpose(schedule, stay), Held):
        arena = {what.value: held.get(what, 0) for what in Held}
        yield Moment(time_s, {**schedule.fixed, **arena})


def purpose(schedule: Schedule, stay: Residency) -> Held:
    """The purpose of the bytes of a residency."""
    kind = schedule.graph.buffers[stay.buffer].kind
    if kind in (Kind.GRAD, Kind.PARAM_GRAD):
        return Held.GRADIENTS
    if kind in (Kind.WEIGHT, Kind.PARTIAL):
        return Held.WORKSPACE
    copied = any(schedule.steps[step].lane in COPY_LANES for step in stay.steps)
    if copied:
        return Held.MAPS_IN_FLIGHT
    return Held.MAPS_KEPT if stay.form == RAW else Held.MAPS_CODED


def _event(schedule: Schedule, span: Span) -> dict[str, Any]:
    step = schedule.steps[span.step]
    args = {"step": span.step, "rows": f"[{step.start}, {step.stop})"}
    if step.lane in COPY_LANES:
        args["bytes"] = step.copied_nbytes
    if step.action is Action.LAUNCH and step.forms:
        args["forms"] = ", ".join(f"{form} of {name}" for name, form in step.forms)
    work = work_of(schedule.graph, step)
    name = schedule.step_name(span.step) + (" again" if work is Work.AGAIN else "")
    return _complete(name, work, span.lane, span.start_s, span.end_s) | {"args": args}


def _stall(wait: tuple[float, float]) -> dict[str, Any]:
    return _complete("waits for a copy", Work.STALL, Lane.COMPUTE, *wait)


def _complete(name: str, work: Work, lane: Lane, start_s: float, end_s: float) -> dict[str, Any]:
    times = {"ts": start_s * MICROSECONDS, "dur": (end_s - start_s) * MICROSECONDS}
    return {"ph": "X", "pid": 0, "tid": lane.value, "name": name, "cat": work.value} | times


def _counter(moment: Moment) -> dict[str, Any]:
    when = {"ts": moment.time_s * MICROSECONDS, "args": dict(moment.nbytes)}
    return {"ph": "C", "pid": 0, "name": "device memory"} | when
