"""Producers: the passes whose writes each pass reads, in program order.

The checker derives them itself (planner/verify/expected_sources.py), so that no code of the planner
proves itself.
"""

from collections.abc import Iterator
from typing import TypeAlias

from . import Graph, Use

Producers: TypeAlias = tuple[tuple[frozenset[int], ...], ...]
Span: TypeAlias = tuple[int, int]


def producers(graph: Graph) -> Producers:
    """By pass and read, the indices of the passes that wrote the read channels last before it.

    A buffer that the caller fills has no producer.
    """
    writers: dict[str, list[tuple[Span, int]]] = {}
    found = []
    for index, pass_ in enumerate(graph.passes):
        found.append(tuple(frozenset(_writers_of(graph, writers, use)) for use in pass_.reads))
        for use in pass_.writes:
            span = _span(graph, use)
            earlier = writers.get(use.buffer, [])
            writers[use.buffer] = [*_outside(earlier, span), (span, index)]
    return tuple(found)


def _writers_of(
    graph: Graph, writers: dict[str, list[tuple[Span, int]]], use: Use
) -> Iterator[int]:
    start, stop = _span(graph, use)
    for (first, last), writer in writers.get(use.buffer, ()):
        if first < stop and start < last:
            yield writer


def _outside(writers: list[tuple[Span, int]], span: Span) -> Iterator[tuple[Span, int]]:
    """The channels of earlier writes outside `span`, each range with its writer."""

    for (first, last), writer in writers:
        for start, stop in ((first, min(last, span[0])), (max(first, span[1]), last)):
            if start < stop:
                yield (start, stop), writer


def _span(graph: Graph, use: Use) -> Span:
    return use.channels or (0, graph.buffers[use.buffer].shape[-1])
