"""Sources of reads: the pass that wrote each buffer's channels last, before every read.

The planner derives producers in graph/dataflow.py. The checker derives the sources of reads itself,
so that no code of the planner proves itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ...graph import Buffer, Graph, Use

# The producer of buffers that the caller fills, and the step that fills them.
CALLER = -1


class ChannelRange(NamedTuple):
    """Channels [start, stop) of some rows, as `producer` leaves them after `done` domain rows.

    A named tuple: ranges are compared at every access, and dataclasses compare far slower.
    """

    start: int
    stop: int
    producer: int  # index of a pass, or CALLER
    done: int


ChannelRanges: TypeAlias = tuple[ChannelRange, ...]


@dataclass(frozen=True, slots=True)
class ReadSources:
    """The channel ranges of every buffer in program order."""

    needs: tuple[tuple[ChannelRanges, ...], ...]  # by pass and read, the ranges to be found
    after_first_phase: Mapping[str, ChannelRanges]  # by buffer
    after_step: Mapping[str, ChannelRanges]  # by buffer


def read_sources(graph: Graph) -> ReadSources:
    """Follow the graph's passes in program order."""
    latest: dict[str, ChannelRanges] = {}
    for name in graph.inputs:
        latest[name] = (ChannelRange(*span(None, graph.buffers[name]), CALLER, 0),)
    needs, first_phase = [], latest
    for index, pass_ in enumerate(graph.passes):
        if index == graph.phase_split:
            first_phase = dict(latest)
        needs.append(tuple(_read(graph, latest, use) for use in pass_.reads))
        for use in pass_.writes:
            channels = span(use.channels, graph.buffers[use.buffer])
            written = ChannelRange(*channels, index, pass_.domain)
            latest[use.buffer] = overlay(latest.get(use.buffer, ()), written)
    return ReadSources(tuple(needs), first_phase, latest)


def _read(graph: Graph, latest: Mapping[str, ChannelRanges], use: Use) -> ChannelRanges:
    return within(latest.get(use.buffer, ()), *span(use.channels, graph.buffers[use.buffer]))


def span(channels: tuple[int, int] | None, buffer: Buffer) -> tuple[int, int]:
    """The channels of a use: all, if it names none."""
    return channels or (0, buffer.shape[-1])


def within(ranges: ChannelRanges, start: int, stop: int) -> ChannelRanges:
    """The parts of `ranges` inside channels [start, stop)."""
    return tuple(
        ChannelRange(max(each.start, start), min(each.stop, stop), each.producer, each.done)
        for each in ranges
        if each.start < stop and start < each.stop
    )


def overlay(ranges: ChannelRanges, written: ChannelRange) -> ChannelRanges:
    """`ranges` after a write of the channels of `written`."""
    last = max(written.stop, *(each.stop for each in ranges)) if ranges else written.stop
    return (*within(ranges, 0, written.start), written, *within(ranges, written.stop, last))


def restricted(ranges: ChannelRanges, needed: ChannelRanges) -> ChannelRanges:
    """The parts of `ranges` inside the channels of `needed`."""
    return within(ranges, needed[0].start, needed[-1].stop) if needed else ()
