"""Gaps: when sections are idle between two uses, so that they may leave the device and return."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter

from ...graph import Direction, Graph, Kind
from ..ir.plan import Transfer
from .program import Program, Residency, behind

MOVED_KINDS = (Kind.INPUT, Kind.MAP, Kind.AUX)
STREAMED_KINDS = (*MOVED_KINDS, Kind.GRAD)  # between any two uses, where nothing else helps


@dataclass(frozen=True, slots=True)
class Gap:
    """A section's time away if it moves: after launch `last` and before launch `back`.

    These are in the slots `leave` and `returns`; it comes no earlier than in the slot `opens`. Its
    bytes are final, and may leave, from the end of the launch `written` on (-1: from the start).
    """

    buffer: str
    section: int
    nbytes: int
    last: int
    back: int
    leave: int
    returns: int
    opens: int
    written: int


def round_trips(graph: Graph, prog: Program) -> list[Gap]:
    """Gaps between forward and backward uses, outermost maps first."""
    turn = _turn(graph, prog)
    slots = [launch.slot for launch in prog.launches]
    gaps: dict[str, list[Gap]] = {}
    for stay, uses, written in _lives(prog):
        if not uses or graph.buffers[stay.buffer].kind not in MOVED_KINDS or stay.held:
            continue
        at = bisect_left(uses, turn)
        if 0 < at < len(uses):
            last, back = uses[at - 1], uses[at]
            times = last, back, slots[last], slots[back], slots[turn]
            gap = Gap(*_what(stay), *times, _latest(written, last))
            gaps.setdefault(stay.buffer, []).append(gap)
    return [gap for sections in gaps.values() for gap in sections]


def pauses(graph: Graph, prog: Program) -> list[Gap]:
    """All other gaps of what one slot uses after the other, the longest first."""
    turn = _turn(graph, prog)
    slots = [launch.slot for launch in prog.launches]
    gaps: list[Gap] = []
    for stay, uses, written in _lives(prog):
        if graph.buffers[stay.buffer].kind not in STREAMED_KINDS or stay.held:
            continue
        ends = [(last, back) for last, back in pairwise(uses) if slots[last] != slots[back]]
        if graph.bands > 1:
            ends = list(_slot_after_slot(uses, slots))
        if all(slots[last] < slots[back] for last, back in ends):
            gaps += (
                Gap(
                    *_what(stay),
                    last,
                    back,
                    slots[last],
                    slots[back],
                    slots[last] + 1,
                    _latest(written, last),
                )
                for last, back in ends
                if last + 1 < back and not last < turn <= back
            )
    return sorted(gaps, key=lambda gap: gap.last - gap.back)


def _slot_after_slot(uses: list[int], slots: list[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring uses of which the second is in a later slot than all before.

    A section beside a block is used by the last slot of that, then by all of its own block's.
    """
    latest = -1
    for last, back in pairwise(uses):
        latest = max(latest, slots[last])
        if slots[back] > latest:
            yield last, back


def _turn(graph: Graph, prog: Program) -> int:
    """The first launch behind forward, whose maps may be made again on the way."""
    passes = graph.passes
    return behind(
        prog.launches, lambda each: passes[each.pass_index].direction is Direction.FORWARD
    )


def _what(stay: Residency) -> tuple[str, int, int]:
    return stay.buffer, stay.section, stay.nbytes


def _latest(written: list[int], last: int) -> int:
    """The last of the launches up to `last` that write; -1 where none does."""
    at = bisect_right(written, last)
    return written[at - 1] if at else -1


def _lives(prog: Program) -> Iterator[tuple[Residency, list[int], list[int]]]:
    """Each residency, the launches that use it, and those of them that write it."""
    uses: list[list[int]] = [[] for _ in prog.residencies]
    written: list[list[int]] = [[] for _ in prog.residencies]
    for index, touched in enumerate(zip(prog.reads, prog.writes, strict=True)):
        for number in {number for runs in touched for run in runs for number in run}:
            uses[number].append(index)
        for number in {number for run in touched[1] for number in run}:
            written[number].append(index)
    return zip(prog.residencies, uses, written, strict=True)


def dirty(moved: Iterable[Gap]) -> Iterator[Gap]:
    """The gaps that begin with a copy to the host.

    The host has the sections of the others from a gap before, and nothing wrote them since.
    """
    before: dict[tuple[str, int], Gap] = {}
    for gap in sorted(moved, key=attrgetter("last")):
        section = gap.buffer, gap.section
        if section not in before or before[section].last < gap.written:
            yield gap
        before[section] = gap


def transfers(moved: Iterable[Gap]) -> Iterator[Transfer]:
    """Neighbouring sections that leave and return in the same slots, as one transfer."""
    ordered = sorted(moved, key=lambda gap: (gap.buffer, gap.section))

    def run(item: tuple[int, Gap]) -> tuple[str, int, int, int]:
        place, gap = item
        return gap.buffer, gap.section - place, gap.leave, gap.returns

    for _, items in groupby(enumerate(ordered), key=run):
        first, *rest = (gap for _, gap in items)
        where = first.buffer, first.section, 1 + len(rest)
        yield Transfer(*where, first.leave, first.returns, min(first.opens, first.returns))
