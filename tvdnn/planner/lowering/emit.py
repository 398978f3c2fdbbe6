"""Emission: the schedule of a timetable and its arena layout.

Launches and copies get the addresses of their operands. A step waits for earlier steps that touch
the same bytes. With vDNN's synchronisation it also waits for the copies of the layer before.
"""

from collections.abc import Sequence

from ...errors import HostMemoryError, ScheduleError
from ...graph import RAW, in_form
from ...units import format_bytes
from ..ir.budgets import Budgets
from ..ir.plan import FILE, PEER
from ..ir.schedule import (
    BACK_LANES,
    DESTINATIONS,
    SOURCES,
    Action,
    Lane,
    Operand,
    Residency,
    Schedule,
    Space,
    Step,
)
from .arena_layout import ArenaLayout
from .list_scheduler import Item
from .program import NONE, Program
from .tier_layout import FILE_REUSE_DELAYS, REUSE_DELAYS, TierLayout, place_tiers
from .timetable import Timetable
from .waits import add_waits


def emit_schedule(timetable: Timetable, arena: ArenaLayout, budgets: Budgets) -> Schedule:
    """The schedule of the timetable in the arena.

    Raises HostMemoryError where the bytes in a tier exceed its budget, ScheduleError where a
    parameter is updated before all copies of the file have ended.
    """
    tiers, plan = _tiers_within(timetable, budgets), timetable.program.plan
    extra = _sync_waits(timetable) if plan.sync else [()] * len(timetable.items)
    if tiers.nbytes(Space.FILE):
        extra = _with_waits_of_updates(timetable, extra)
    sizes = {**dict.fromkeys(Space, 0), **tiers.sizes, Space.ARENA: arena.nbytes}
    return Schedule(
        graph=timetable.program.graph,
        plan=plan,
        steps=add_waits(_steps(timetable, arena, tiers), sizes, arena.pages, extra),
        residencies=_residencies(timetable, arena),
        phase_split=timetable.phase_split,
        arena_nbytes=arena.nbytes,
        slab_nbytes=tiers.nbytes(Space.SLAB),
        budget_nbytes=budgets.device,
        host_budget_nbytes=budgets.host,
        num_counts=len(timetable.program.counts),
        pages=arena.pages,
        file_nbytes=tiers.nbytes(Space.FILE),
        peer_nbytes=tiers.nbytes(Space.PEER),
        tiers=budgets.tiers,
    )


def _tiers_within(timetable: Timetable, budgets: Budgets) -> TierLayout:
    """The tier layout, its bytes reused the sooner the less a budget leaves.

    Raises HostMemoryError where they exceed a budget at any rate.
    """
    if not timetable.program.plan.transfers and not timetable.program.tails:
        return TierLayout()
    lanes = {item.lane for item in timetable.items}
    for delay in FILE_REUSE_DELAYS if Lane.FILE_WRITE in lanes else REUSE_DELAYS:
        tiers = place_tiers(timetable, delay)
        problem = _excess(timetable.program.plan.policy, tiers, budgets)
        if problem is None:
            return tiers
    raise HostMemoryError(problem)


def _excess(policy: str, tiers: TierLayout, budgets: Budgets) -> str | None:
    """What exceeds the budget of a tier, in words; None if nothing does."""
    limits = (
        (Space.SLAB, "on the host", "host budget", "host_budget", budgets.host),
        (Space.FILE, "in the file", "file budget", "file_budget", budgets.tiers.nbytes.get(FILE)),
        (Space.PEER, "on the peer", "peer budget", "peer_budget", budgets.tiers.nbytes.get(PEER)),
    )
    for space, where, what, name, limit in limits:
        if limit is not None and tiers.nbytes(space) > limit:
            return (
                f"{policy} keeps {format_bytes(tiers.nbytes(space))} {where}, above the {what} "
                f"{format_bytes(limit)}; raise {name}, or give the device more memory so that "
                "less moves"
            )
    return None


def _steps(timetable: Timetable, arena: ArenaLayout, tiers: TierLayout) -> Sequence[Step]:
    """The steps of the timetable with addresses, without waits."""
    prog = timetable.program
    return [
        _launch_step(prog, item, arena, tiers)
        if item.is_launch
        else _copy_step(prog, item, arena, tiers)
        for item in timetable.items
    ]


def _launch_step(prog: Program, item: Item, arena: ArenaLayout, tiers: TierLayout) -> Step:
    lane, index = item
    launch = prog.launches[index]

    def operand(run: tuple[int, ...]) -> Operand:
        first, last = prog.intervals[run[0]], prog.intervals[run[-1]]
        buffer = in_form(prog.graph.buffers[first.buffer], first.form)
        start, stop = buffer.bounds(first.section)[0], buffer.bounds(last.section)[1]
        if first.nbytes < buffer.section_nbytes(first.section):  # a weight gradient's fewer sums
            stop = start + first.nbytes // buffer.row_nbytes
        nbytes, address = (stop - start) * buffer.row_nbytes, arena.addresses[run[0]]
        return Operand(first.buffer, start, stop, Space.ARENA, address, nbytes, first.form)

    reads = tuple(operand(run) for run in prog.reads[index])
    writes = tuple(operand(run) for run in prog.writes[index])
    where = (launch.slot, launch.pass_index, launch.start, launch.stop)
    if launch.recode is None:
        return Step(lane, Action.LAUNCH, *where, reads, writes, recompute=launch.recompute)
    if index in prog.tails:
        tail = prog.tails[index]
        rows = launch.recode.buffer, launch.start, launch.stop
        held = Operand(*rows, Space.SLAB, tiers.tails[tail.code], tail.nbytes, tail.form)
        encodes = launch.recode.source == RAW
        reads, writes = (reads, (*writes, held)) if encodes else ((*reads, held), writes)
    word = prog.counts.get(index, -1)
    return Step(lane, Action.RECODE, *where, reads, writes, count_word=word)


def _copy_step(prog: Program, item: Item, arena: ArenaLayout, tiers: TierLayout) -> Step:
    interval = prog.intervals[item.number]
    start, stop = prog.graph.buffers[interval.buffer].bounds(interval.section)

    def operand(space: Space, copy: Item | None) -> Operand:
        """The section where a copy left it; None: where it is on the device."""
        at = arena.addresses[item.number] if copy is None else tiers.addresses[copy]
        size = interval.nbytes, interval.form
        return Operand(interval.buffer, start, stop, space, at, *size)

    before, to = prog.copy_before(*item), DESTINATIONS[item.lane]
    source = operand(SOURCES[item.lane], None if before is None else Item(*before))
    target = operand(to, None if to is Space.ARENA else item)
    returns, action = item.lane in BACK_LANES, Action.COPY
    if interval.leaves_as is not None and not returns:
        action = Action.RECODE
        target = target._replace(nbytes=prog.left_nbytes(item.number), form=interval.leaves_as)
    slot = prog.launches[interval.first if returns else interval.last].slot
    return Step(item.lane, action, slot, -1, start, stop, (source,), (target,))


def _residencies(timetable: Timetable, arena: ArenaLayout) -> tuple[Residency, ...]:
    """Every live interval with its address and the steps that use it."""
    prog = timetable.program
    users: list[list[int]] = [[] for _ in prog.intervals]
    for index, item in enumerate(timetable.items):
        if not item.is_launch:
            if Space.ARENA in (SOURCES[item.lane], DESTINATIONS[item.lane]):
                users[item.number].append(index)
            continue
        uses = (*prog.reads[item.number], *prog.writes[item.number])
        for number in {number for use in uses for number in use}:
            users[number].append(index)
    return tuple(
        Residency(each.buffer, each.section, address, each.nbytes, tuple(used_by), each.form)
        for each, address, used_by in zip(prog.intervals, arena.addresses, users, strict=True)
    )


def _sync_waits(timetable: Timetable) -> list[tuple[int, ...]]:
    """vDNN's end-of-layer waits: a segment and the copies issued during it end before the next."""
    waits: list[tuple[int, ...]] = []
    segment, barrier, running, copies = -1, -1, -1, dict[Lane, int]()
    for index, item in enumerate(timetable.items):
        if item.lane is Lane.COMPUTE:
            launch = timetable.program.launches[item.number]
            begins_segment = launch.segment != segment
            waits.append(tuple(copies.values()) if begins_segment else ())
            if begins_segment:
                segment, barrier = launch.segment, running
            running = index
        else:
            waits.append((barrier,) if barrier >= 0 else ())
            copies[item.lane] = index
    return waits


def _with_waits_of_updates(
    timetable: Timetable, extra: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """The waits, and those of passes that update parameters for all copies of the file.

    A copy that fails is known before any parameter has changed then.
    """
    prog = timetable.program
    last = {item.lane: index for index, item in enumerate(timetable.items)}
    ends = tuple(last[lane] for lane in (Lane.FILE_WRITE, Lane.FILE_READ) if lane in last)
    waits = list(extra)
    for index, item in enumerate(timetable.items):
        number = prog.launches[item.number].pass_index if item.is_launch else NONE
        if number != NONE and prog.graph.passes[number].changes_parameters:
            if index < max(ends):
                raise ScheduleError(
                    f"the plan updates {', '.join(prog.graph.passes[number].updates)} before all "
                    "sections are back from the file; plan a graph whose updates come last"
                )
            waits[index] = (*waits[index], *ends)
    return waits
