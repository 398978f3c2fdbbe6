"""Facts: what all values have in common that a pass writes, whatever the caller gives a step.

The maps behind a ReLU are not negative, and what products read is rounded to TF32. Copies keep the
facts of what they read. A code may leave out what a fact tells.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ..graph import Buffer, Direction, Fact, Kind, Op, Pass, Use, overlap
from .concat_views import Channels, gaps_between
from .registry import OPERATORS, copies_values

Facts: TypeAlias = frozenset[Fact]
Written: TypeAlias = list[tuple[Channels, Facts]]  # ranges of channels that do not overlap


def with_facts(
    passes: Sequence[Pass], ops: Mapping[str, Op], buffers: Mapping[str, Buffer]
) -> tuple[tuple[Pass, ...], dict[str, Buffer]]:
    """The passes with the facts of their writes, and the buffers with those that forward leaves."""
    latest: dict[str, Written] = {}
    forward: dict[str, Facts] = {}
    found = []
    for each in passes:
        facts = tuple(_facts_of(each, ops[each.op].kind, buffers, latest))
        for use, known in zip(each.writes, facts, strict=True):
            channels = _channels(use, buffers)
            others = [
                (gap, those)
                for other, those in latest.get(use.buffer, [])
                for gap in gaps_between([channels], other)
            ]
            latest[use.buffer] = [*others, (channels, known)]
            if each.direction is Direction.FORWARD and buffers[use.buffer].kind is Kind.MAP:
                forward[use.buffer] = _of_range(Use(use.buffer), buffers, latest)
        found.append(replace(each, facts=facts))
    held = {
        name: replace(buffer, facts=forward[name]) if forward.get(name) else buffer
        for name, buffer in buffers.items()
    }
    return tuple(found), held


def _facts_of(
    pass_: Pass, kind: str, buffers: Mapping[str, Buffer], latest: Mapping[str, Written]
) -> list[Facts]:
    """By write of a pass, the facts of the values that it writes."""
    operator, widths = OPERATORS[kind], [use.width(buffers[use.buffer]) for use in pass_.writes]
    if copies_values(kind, pass_.role):
        lost = {Fact.TF32} if operator.changes_nan else set()
        pairs = zip(pass_.reads, pass_.writes, strict=False)
        kept = [_of_range(read, buffers, latest) - lost for read, _ in pairs]
        return kept + [frozenset()] * (len(pass_.writes) - len(kept))
    rounded = pass_.rounded or [None] * len(widths)
    found = [
        frozenset({Fact.TF32}) if channels == (0, width) else frozenset()
        for channels, width in zip(rounded, widths, strict=True)
    ]
    if pass_.role in operator.not_negative:
        found[0] |= {Fact.NOT_NEGATIVE}
    return found


def _of_range(use: Use, buffers: Mapping[str, Buffer], latest: Mapping[str, Written]) -> Facts:
    """The facts of all channels of a use, as they were written last."""
    channels = _channels(use, buffers)
    inside = [each for each in latest.get(use.buffer, []) if overlap(each[0], channels)]
    if not inside or gaps_between([other for other, _ in inside], channels):
        return frozenset()
    return frozenset.intersection(*(facts for _, facts in inside))


def _channels(use: Use, buffers: Mapping[str, Buffer]) -> Channels:
    return use.channels or (0, buffers[use.buffer].shape[-1])
