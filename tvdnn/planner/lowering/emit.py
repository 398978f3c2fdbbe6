"""Assembly: a schedule from steps in an order and an arena for them.

Launches and copies get the addresses of what they touch, and wait for the steps before them that
touch the same bytes; with vDNN's synchronisation, for the copies of the layer before as well.
"""

from collections.abc import Sequence

from ...errors import HostMemoryError
from ...graph import Graph
from ...units import format_bytes
from ..ir.schedule import Action, Lane, Operand, Residency, Schedule, Space, Step
from .arena import Arena
from .hazards import add_waits
from .list_scheduler import Entry, Event
from .program import Program
from .slab import Slab, place_slab
from .timetable import Ordered


def assembled(
    graph: Graph, steps: Ordered, arena: Arena, *, budget: int | None, host_budget: int | None
) -> Schedule:
    """The schedule of the steps in the arena.

    Raises HostMemoryError where its copies find no place on the host.
    """
    plan, slab = steps.plan, place_slab(steps)
    if host_budget is not None and slab.nbytes > host_budget:
        raise HostMemoryError(
            f"{plan.policy} keeps {format_bytes(slab.nbytes)} on the host, above the host "
            f"budget {format_bytes(host_budget)}; raise host_budget, or give the device more "
            "memory so that less moves"
        )
    extra = _sync_waits(steps) if plan.sync else [()] * len(steps.entries)
    return Schedule(
        graph=graph,
        plan=plan,
        steps=add_waits(_steps(graph, steps, arena, slab), arena.nbytes, slab.nbytes, extra),
        residencies=_stays(steps, arena),
        phase_split=steps.phase_split,
        arena_nbytes=arena.nbytes,
        slab_nbytes=slab.nbytes,
        budget_nbytes=budget,
        host_budget_nbytes=host_budget,
    )


def _steps(graph: Graph, steps: Ordered, arena: Arena, slab: Slab) -> Sequence[Step]:
    """The steps of the order, with addresses and without waits."""
    prog = steps.program
    return [
        _launch_step(graph, prog, entry.number, arena)
        if entry.event is Event.LAUNCH
        else _copy_step(graph, prog, entry, arena, slab)
        for entry in steps.entries
    ]


def _launch_step(graph: Graph, prog: Program, index: int, arena: Arena) -> Step:
    launch = prog.launches[index]

    def operand(run: tuple[int, ...]) -> Operand:
        first, last = prog.residencies[run[0]], prog.residencies[run[-1]]
        buffer = graph.buffers[first.buffer]
        start, stop = buffer.bounds(first.section)[0], buffer.bounds(last.section)[1]
        nbytes = (stop - start) * buffer.row_nbytes
        return Operand(first.buffer, start, stop, Space.ARENA, arena.addresses[run[0]], nbytes)

    reads = tuple(operand(run) for run in prog.reads[index])
    writes = tuple(operand(run) for run in prog.writes[index])
    where = (launch.slot, launch.pass_index, launch.start, launch.stop)
    return Step(Lane.COMPUTE, Action.LAUNCH, *where, reads, writes, recompute=launch.recompute)


def _copy_step(graph: Graph, prog: Program, entry: Entry, arena: Arena, slab: Slab) -> Step:
    stay = prog.residencies[entry.number]
    offload = entry.event is Event.OFFLOAD
    start, stop = graph.buffers[stay.buffer].bounds(stay.section)
    here = arena.addresses[entry.number]
    host = slab.addresses[entry.number if offload else prog.source(entry.number)]
    device = Operand(stay.buffer, start, stop, Space.ARENA, here, stay.nbytes)
    away = Operand(stay.buffer, start, stop, Space.SLAB, host, stay.nbytes)
    source, target = (device, away) if offload else (away, device)
    lane = Lane.OFFLOAD if offload else Lane.PREFETCH
    slot = prog.launches[stay.last if offload else stay.first].slot
    return Step(lane, Action.COPY, slot, -1, start, stop, (source,), (target,))


def _stays(steps: Ordered, arena: Arena) -> tuple[Residency, ...]:
    """Every residency with its address and the steps that use it."""
    prog = steps.program
    users: list[list[int]] = [[] for _ in prog.residencies]
    for index, entry in enumerate(steps.entries):
        if entry.event is not Event.LAUNCH:
            users[entry.number].append(index)
            continue
        uses = (*prog.reads[entry.number], *prog.writes[entry.number])
        for number in {number for use in uses for number in use}:
            users[number].append(index)
    return tuple(
        Residency(stay.buffer, stay.section, address, stay.nbytes, tuple(used_by))
        for stay, address, used_by in zip(prog.residencies, arena.addresses, users, strict=True)
    )


def _sync_waits(steps: Ordered) -> list[tuple[int, ...]]:
    """vDNN's end-of-layer waits: a segment and the copies issued during it end before the next."""
    waits: list[tuple[int, ...]] = []
    segment, barrier, running, copies = -1, -1, -1, [-1, -1]
    for index, entry in enumerate(steps.entries):
        if entry.event is Event.LAUNCH:
            launch = steps.program.launches[entry.number]
            crosses = launch.segment != segment
            waits.append(tuple(c for c in copies if c >= 0) if crosses else ())
            if crosses:
                segment, barrier = launch.segment, running
            running = index
        else:
            waits.append((barrier,) if barrier >= 0 else ())
            copies[entry.event is Event.PREFETCH] = index
    return waits
