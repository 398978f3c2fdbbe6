"""Idle intervals: the times between two uses of a section in which it may leave the device."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import attrgetter

from ...graph import RAW, Direction, Form, Kind
from ..ir.plan import HOST, Bridge
from .program import LiveInterval, Program, end_of_last

# Kinds that are offloaded between forward and backward.
OFFLOADED_KINDS = (Kind.INPUT, Kind.MAP, Kind.AUX)
# Kinds that are offloaded between any two uses where the budget asks for it.
STREAMED_KINDS = (*OFFLOADED_KINDS, Kind.GRAD)


@dataclass(frozen=True, slots=True)
class IdleInterval:
    """The time between two neighbouring uses of a section, in which it may be on the host alone."""

    buffer: str
    section: int
    nbytes: int
    last: int  # launch of the use before
    next: int  # launch of the use after
    offload_after: int  # slot of launch `last`
    needed_by: int  # slot of launch `next`
    earliest_prefetch: int  # slot before which no prefetch is issued
    final_after: int  # launch that wrote its bytes last before `next`; -1: none
    form: Form = RAW

    @property
    def key(self) -> tuple[str, int, Form]:
        """The section in its form."""
        return self.buffer, self.section, self.form


def forward_backward_idle(prog: Program) -> list[IdleInterval]:
    """Idle intervals from the last forward to the first backward use, outermost maps first."""
    boundary = _end_of_forward(prog)
    found: dict[str, list[IdleInterval]] = {}
    for live, uses, writes in _uses(prog, OFFLOADED_KINDS):
        at = bisect_left(uses, boundary)
        if 0 < at < len(uses):
            earliest = prog.launches[boundary].slot
            idle = _idle_between(prog, live, writes, uses[at - 1], uses[at], earliest)
            found.setdefault(live.buffer, []).append(idle)
    return [idle for sections in found.values() for idle in sections]


def intra_pass_idle(prog: Program) -> list[IdleInterval]:
    """All other idle intervals of buffers whose slots do not interleave, the longest first."""
    boundary = _end_of_forward(prog)
    slots = [launch.slot for launch in prog.launches]
    found: list[IdleInterval] = []
    for live, uses, writes in _uses(prog, STREAMED_KINDS):
        pairs = [(one, other) for one, other in pairwise(uses) if slots[one] != slots[other]]
        if prog.graph.row_tiles > 1:
            pairs = list(_slot_after_slot(uses, slots))
        if all(slots[one] < slots[other] for one, other in pairs):
            found += (
                _idle_between(prog, live, writes, last, following, slots[last] + 1)
                for last, following in pairs
                if last + 1 < following and not last < boundary <= following
            )
    return sorted(found, key=lambda idle: idle.last - idle.next)


def _slot_after_slot(uses: list[int], slots: list[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring uses, the second in a later slot than all before.

    A halo section is used by the last slot of the neighbouring block, then by its own block.
    """
    latest = -1
    for one, other in pairwise(uses):
        latest = max(latest, slots[one])
        if slots[other] > latest:
            yield one, other


def _end_of_forward(prog: Program) -> int:
    """The first launch after the last forward launch, recomputes aside."""
    passes = prog.graph.passes
    return end_of_last(
        prog.launches, lambda each: passes[each.pass_index].direction is Direction.FORWARD
    )


def _idle_between(
    prog: Program, live: LiveInterval, writes: list[int], last: int, following: int, earliest: int
) -> IdleInterval:
    """The idle interval from launch `last` to launch `following`, prefetched from `earliest` on."""
    at = bisect_right(writes, last)
    slots = prog.launches[last].slot, prog.launches[following].slot, earliest
    section = live.buffer, live.section, live.nbytes
    final_after = writes[at - 1] if at else -1
    return IdleInterval(*section, last, following, *slots, final_after, live.form)


def _uses(
    prog: Program, kinds: Collection[Kind]
) -> Iterator[tuple[LiveInterval, list[int], list[int]]]:
    """Each live interval that may leave, the launches that use it, and those that write it.

    A code may leave between the launch that makes it and its only use.
    """
    uses: list[list[int]] = [[] for _ in prog.intervals]
    writes: list[list[int]] = [[] for _ in prog.intervals]
    for index, touched in enumerate(zip(prog.reads, prog.writes, strict=True)):
        for number in {number for runs in touched for run in runs for number in run}:
            uses[number].append(index)
        for number in {number for run in touched[1] for number in run}:
            writes[number].append(index)
    for found in zip(prog.intervals, uses, writes, strict=True):
        live = found[0]
        may_leave = prog.graph.buffers[live.buffer].kind in kinds and not live.pinned_to_phase_end
        if may_leave and (live.form == RAW or len(found[1]) == 2):
            yield found


def dirty(offloaded: Iterable[IdleInterval]) -> Iterator[IdleInterval]:
    """The idle intervals that begin with a copy to the host.

    The host still has the other sections from an earlier offload, and nothing wrote them since.
    """
    before: dict[tuple[str, int, Form], IdleInterval] = {}
    for idle in sorted(offloaded, key=attrgetter("last")):
        if idle.key not in before or before[idle.key].last < idle.final_after:
            yield idle
        before[idle.key] = idle


def bridges_of(offloaded: Iterable[IdleInterval], codes: Iterable[Bridge] = ()) -> Iterator[Bridge]:
    """One bridge for neighbouring sections that are bridged alike.

    `codes` are bridges of other forms that rest on the device. Those of offloaded codes leave it.
    """
    away = {(*idle.key, idle.needed_by): idle for idle in offloaded}
    single: list[Bridge] = []
    for code in codes:
        for section in range(code.first, code.first + code.count):
            idle = away.pop((code.buffer, section, code.form, code.needed_by), None)
            tier = None if idle is None else HOST
            earliest = code.needed_by if idle is None else idle.earliest_prefetch
            single.append(_bridge(replace(code, first=section, count=1, tier=tier), earliest))
    for idle in away.values():
        slots = idle.offload_after, idle.needed_by, idle.earliest_prefetch
        bridge = Bridge(idle.buffer, idle.section, 1, *slots, form=idle.form)
        single.append(_bridge(bridge, idle.earliest_prefetch))
    single.sort(key=attrgetter("buffer", "first"))

    def run(item: tuple[int, Bridge]) -> tuple[object, ...]:
        place, each = item
        way = each.form, each.tier, each.zero_copy
        return each.buffer, each.first - place, each.after, each.needed_by, *way

    for _, items in groupby(enumerate(single), key=run):
        first, *rest = (each for _, each in items)
        yield replace(first, count=1 + len(rest))


def _bridge(bridge: Bridge, earliest_prefetch: int) -> Bridge:
    return replace(bridge, earliest_prefetch=min(earliest_prefetch, bridge.needed_by))
