"""Memory profile: the bytes live in the arena over the time of a step."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

import numpy as np

from ...graph import RAW, Kind
from ..ir.schedule import Residency, Schedule
from ..ir.timeline import Timeline

Label = TypeVar("Label", bound=Hashable)
MemoryProfile: TypeAlias = tuple[tuple[float, Mapping[Kind, int]], ...]


def average_nbytes(schedule: Schedule, timeline: Timeline) -> float:
    """Device bytes averaged over the step: those live in the arena, and those outside it."""
    lifetimes = _lifetimes(schedule, timeline)
    byte_seconds = sum(each.nbytes * (end_s - start_s) for each, start_s, end_s in lifetimes)
    return sum(schedule.fixed.values()) + byte_seconds / (timeline.step_s or 1.0)


def memory_profile(schedule: Schedule, timeline: Timeline) -> MemoryProfile:
    """The live bytes by kind, from each second on at which they change."""
    buffers = schedule.graph.buffers
    return profile_by(schedule, timeline, lambda each: buffers[each.buffer].kind, Kind)


def profile_by(
    schedule: Schedule,
    timeline: Timeline,
    label: Callable[[Residency], Label],
    labels: Iterable[Label],
) -> tuple[tuple[float, dict[Label, int]], ...]:
    """The live bytes by label, from each second on at which they change.

    `label` gives each residency one of `labels`. Labels without a residency are left out.
    """
    lifetimes = tuple(_lifetimes(schedule, timeline))
    found = [label(each) for each, _, _ in lifetimes]
    shown = [each for each in labels if each in found]
    columns = np.array([shown.index(each) for each in found], np.int64)
    nbytes = np.array([each.nbytes for each, _, _ in lifetimes], np.int64)
    starts_s = np.array([start_s for _, start_s, _ in lifetimes], np.float64)
    ends_s = np.array([end_s for _, _, end_s in lifetimes], np.float64)
    times_s = np.unique(np.concatenate((starts_s, ends_s)))
    levels = np.zeros((len(times_s), len(shown)), np.int64)
    np.add.at(levels, (np.searchsorted(times_s, starts_s), columns), nbytes)
    np.subtract.at(levels, (np.searchsorted(times_s, ends_s), columns), nbytes)
    rows = np.cumsum(levels, axis=0).tolist()
    return tuple(
        (time_s, dict(zip(shown, row, strict=True)))
        for time_s, row in zip(times_s.tolist(), rows, strict=True)
    )


def _lifetimes(schedule: Schedule, timeline: Timeline) -> Iterator[tuple[Residency, float, float]]:
    """Every residency with the seconds at which it begins and ends.

    It lasts from the start of its first step to the end of its last. A raw input begins with its
    phase, a raw output ends with its phase.
    """
    graph, spans = schedule.graph, timeline.spans
    phases = _phases(schedule, timeline)
    inputs, outputs = frozenset(graph.inputs), frozenset(graph.outputs)
    filled: set[tuple[str | None, int]] = set()
    for each in schedule.residencies:
        start_s = spans[each.steps[0]].start_s
        end_s = max(spans[step].end_s for step in each.steps)
        name = each.buffer if each.form == RAW else None
        if name in inputs and (name, each.section) not in filled:
            filled.add((name, each.section))
            start_s = phases[each.steps[0] >= schedule.phase_split][0]
        if name in outputs:
            end_s = phases[each.steps[-1] >= schedule.phase_split][1]
        yield each, start_s, end_s


def _phases(schedule: Schedule, timeline: Timeline) -> tuple[tuple[float, float], ...]:
    """The start and end of each phase in seconds. With one phase the second is empty."""
    spans, split = timeline.spans, schedule.phase_split
    start_s = min((span.start_s for span in spans), default=0.0)
    middle_s = max((span.end_s for span in spans[:split]), default=start_s)
    end_s = max((span.end_s for span in spans), default=middle_s)
    return (start_s, middle_s), (middle_s, end_s)
