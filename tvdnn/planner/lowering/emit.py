"""Emission: the schedule of a timetable and its arena layout.

Launches and copies get the addresses of their operands. A step waits for earlier steps that touch
the same bytes. With vDNN's synchronisation it also waits for the copies of the layer before.
"""

from collections.abc import Sequence

from ...errors import HostMemoryError
from ...graph import RAW, in_form
from ...units import format_bytes
from ..ir.budgets import Budgets
from ..ir.schedule import Action, Lane, Operand, Residency, Schedule, Space, Step
from .arena_layout import ArenaLayout
from .list_scheduler import Item
from .program import Program
from .slab_layout import SlabLayout, place_slab
from .timetable import Timetable
from .waits import add_waits


def emit_schedule(timetable: Timetable, arena: ArenaLayout, budgets: Budgets) -> Schedule:
    """The schedule of the timetable in the arena.

    Raises HostMemoryError where the host copies exceed their budget.
    """
    plan, slab, host_budget = timetable.program.plan, place_slab(timetable), budgets.host
    if host_budget is not None and slab.nbytes > host_budget:
        slab = place_slab(timetable, reuse_delay=0)
    if host_budget is not None and slab.nbytes > host_budget:
        raise HostMemoryError(
            f"{plan.policy} keeps {format_bytes(slab.nbytes)} on the host, above the host "
            f"budget {format_bytes(host_budget)}; raise host_budget, or give the device more "
            "memory so that less moves"
        )
    extra = _sync_waits(timetable) if plan.sync else [()] * len(timetable.items)
    sizes = {Space.ARENA: arena.nbytes, Space.SLAB: slab.nbytes}
    return Schedule(
        graph=timetable.program.graph,
        plan=plan,
        steps=add_waits(_steps(timetable, arena, slab), sizes, arena.pages, extra),
        residencies=_residencies(timetable, arena),
        phase_split=timetable.phase_split,
        arena_nbytes=arena.nbytes,
        slab_nbytes=slab.nbytes,
        budget_nbytes=budgets.device,
        host_budget_nbytes=host_budget,
        num_counts=len(timetable.program.counts),
        pages=arena.pages,
    )


def _steps(timetable: Timetable, arena: ArenaLayout, slab: SlabLayout) -> Sequence[Step]:
    """The steps of the timetable with addresses, without waits."""
    prog = timetable.program
    return [
        _launch_step(prog, item.number, arena, slab)
        if item.lane is Lane.COMPUTE
        else _copy_step(prog, item, arena, slab)
        for item in timetable.items
    ]


def _launch_step(prog: Program, index: int, arena: ArenaLayout, slab: SlabLayout) -> Step:
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
        return Step(Lane.COMPUTE, Action.LAUNCH, *where, reads, writes, recompute=launch.recompute)
    if index in prog.tails:
        tail = prog.tails[index]
        rows = launch.recode.buffer, launch.start, launch.stop
        held = Operand(*rows, Space.SLAB, slab.tails[tail.code], tail.nbytes, tail.form)
        encodes = launch.recode.source == RAW
        reads, writes = (reads, (*writes, held)) if encodes else ((*reads, held), writes)
    word = prog.counts.get(index, -1)
    return Step(Lane.COMPUTE, Action.RECODE, *where, reads, writes, count_word=word)


def _copy_step(prog: Program, item: Item, arena: ArenaLayout, slab: SlabLayout) -> Step:
    interval = prog.intervals[item.number]
    offload = item.lane is Lane.OFFLOAD
    start, stop = prog.graph.buffers[interval.buffer].bounds(interval.section)
    rows = interval.buffer, start, stop
    host_address = slab.addresses[item.number if offload else prog.offload_source(item.number)]
    size = interval.nbytes, interval.form
    device = Operand(*rows, Space.ARENA, arena.addresses[item.number], *size)
    host = Operand(*rows, Space.SLAB, host_address, *size)
    source, target = (device, host) if offload else (host, device)
    slot = prog.launches[interval.last if offload else interval.first].slot
    return Step(item.lane, Action.COPY, slot, -1, start, stop, (source,), (target,))


def _residencies(timetable: Timetable, arena: ArenaLayout) -> tuple[Residency, ...]:
    """Every live interval with its address and the steps that use it."""
    prog = timetable.program
    users: list[list[int]] = [[] for _ in prog.intervals]
    for index, item in enumerate(timetable.items):
        if item.lane is not Lane.COMPUTE:
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
    segment, barrier, running, copies = -1, -1, -1, [-1, -1]
    for index, item in enumerate(timetable.items):
        if item.lane is Lane.COMPUTE:
            launch = timetable.program.launches[item.number]
            begins_segment = launch.segment != segment
            waits.append(tuple(c for c in copies if c >= 0) if begins_segment else ())
            if begins_segment:
                segment, barrier = launch.segment, running
            running = index
        else:
            waits.append((barrier,) if barrier >= 0 else ())
            copies[item.lane is Lane.PREFETCH] = index
    return waits
