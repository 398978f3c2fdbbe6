"""Versions: which pass left what a buffer holds, and which version every pass must find."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ...graph import Buffer, Graph, Use

CALLER = -1  # the source of what the caller fills in, and the step that does so


class Part(NamedTuple):
    """Channels [start, stop) of some rows as pass `source` leaves them after `done` domain rows.

    A named tuple: parts are compared at every access, and dataclasses compare far slower.
    """

    start: int
    stop: int
    source: int
    done: int


Parts: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Versions:
    """What program order says of every buffer.

    `needs` are, by pass and read, the parts that must be found; `half` and `end` what each buffer
    holds after the first half and after the step.
    """

    needs: tuple[tuple[Parts, ...], ...]
    half: Mapping[str, Parts]
    end: Mapping[str, Parts]


def versions(graph: Graph) -> Versions:
    """Follow the graph's passes in program order."""
    latest: dict[str, Parts] = {}
    for name in graph.inputs:
        latest[name] = (Part(*span(None, graph.buffers[name]), CALLER, 0),)
    needs, half = [], latest
    for index, pass_ in enumerate(graph.passes):
        if index == graph.phase_split:
            half = dict(latest)
        needs.append(tuple(_found(graph, latest, use) for use in pass_.reads))
        for use in pass_.writes:
            part = Part(*span(use.channels, graph.buffers[use.buffer]), index, pass_.domain)
            latest[use.buffer] = overlay(latest.get(use.buffer, ()), part)
    return Versions(tuple(needs), half, latest)


def _found(graph: Graph, latest: Mapping[str, Parts], use: Use) -> Parts:
    return within(latest.get(use.buffer, ()), *span(use.channels, graph.buffers[use.buffer]))


def span(channels: tuple[int, int] | None, buffer: Buffer) -> tuple[int, int]:
    """The channels of a use: all, if it names none."""
    return channels or (0, buffer.shape[-1])


def within(parts: Parts, start: int, stop: int) -> Parts:
    """What `parts` say of channels [start, stop)."""
    return tuple(
        Part(max(part.start, start), min(part.stop, stop), part.source, part.done)
        for part in parts
        if part.start < stop and start < part.stop
    )


def overlay(parts: Parts, part: Part) -> Parts:
    """`parts` with `part` written over its channels."""
    last = max(part.stop, *(other.stop for other in parts)) if parts else part.stop
    return (*within(parts, 0, part.start), part, *within(parts, part.stop, last))


def restricted(parts: Parts, need: Parts) -> Parts:
    """`parts` within the channels that `need` speaks of."""
    return within(parts, need[0].start, need[-1].stop) if need else ()
