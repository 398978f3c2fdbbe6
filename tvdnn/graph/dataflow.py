"""Producers: the passes whose writes each pass reads, in program order.

The checker derives them itself (planner/verify/expected_sources.py), so that no code of the planner
proves itself.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from . import Graph, Use

Producers: TypeAlias = tuple[tuple[frozenset[int], ...], ...]
Span: TypeAlias = tuple[int, int]
Written: TypeAlias = Sequence[tuple[Span, int]]  # ranges of channels, each with its writer


def producers(graph: Graph) -> Producers:
    """By pass and read, the indices of the passes that wrote the read channels last before it.

    A buffer that the caller fills has no producer.
    """
    written: dict[str, Written] = {}
    found = []
    for index, pass_ in enumerate(graph.passes):
        reads = ((written.get(use.buffer, ()), span_of(graph, use)) for use in pass_.reads)
        found.append(tuple(frozenset(w for _, w in within(*read)) for read in reads))
        for use in pass_.writes:
            span = span_of(graph, use)
            written[use.buffer] = [*outside(written.get(use.buffer, ()), span), (span, index)]
    return tuple(found)


def within(written: Written, span: Span) -> Iterator[tuple[Span, int]]:
    """The written channels inside `span`, each range with its writer."""
    for (first, last), writer in written:
        if first < span[1] and span[0] < last:
            yield (max(first, span[0]), min(last, span[1])), writer


def outside(written: Written, span: Span) -> Iterator[tuple[Span, int]]:
    """The written channels outside `span`, each range with its writer."""
    for (first, last), writer in written:
        for start, stop in ((first, min(last, span[0])), (max(first, span[1]), last)):
            if start < stop:
                yield (start, stop), writer


def span_of(graph: Graph, use: Use) -> Span:
    """The channels of a use."""
    return use.channels or (0, graph.buffers[use.buffer].shape[-1])
