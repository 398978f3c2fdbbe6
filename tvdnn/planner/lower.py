"""Lowering: from a plan to a schedule. Order the steps, place the residencies, derive the waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from ..errors import BudgetError, HostMemoryError
from ..graph import Graph
from ..memory import Extent, Stay, aligned, fit, least_nbytes, place, shuffled
from ..memory.blocks import block_nbytes, usable_nbytes
from ..units import format_bytes
from .costs import Costs
from .crowding import Caps, CrowdedError
from .hazards import add_waits
from .launches import Program, program, side_by_side
from .order import CapacityError, Entry, Event, demand, order, timed_order
from .plan import Plan, Transfer
from .schedule import Action, Lane, Operand, Residency, Schedule, Space, Step

TIGHTEN_ATTEMPTS = 6
FEW_TRIALS, MANY_TRIALS = 6, 30  # of a placement, at 30 ms each for VGG-16
SHUFFLES = 150  # of few extents, without gain
FULL_EXTENTS = 3000  # up to which all trials are made: above, they take longer, and are fewer
FEW_EXTENTS = 200  # up to which all rounds of lower caps make trials, and floors random orders
LITTLE_WAIT = 0.005  # of the time of all launches, up to which a step counts as never waiting
LAST_SLACKS = (1.0, 1.05, 1.2)  # caps that are tried last, in demands: which packs best varies
# Places in the order for which freed bytes rest where there is room, so that a copy into them need
# not wait for the last launch.
COOL_DOWN = 6


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted seconds of a step, and whether it waits for copies.

    `fits` tells that it takes less time and fewer bytes than were asked for.
    """

    seconds: float
    waits: bool
    fits: bool


@dataclass(frozen=True, slots=True)
class Ordered:
    """A plan's launches and stays, and an order of its steps with the seconds that it predicts.

    Of these `compute_s` are the launches.
    """

    plan: Plan
    program: Program
    entries: tuple[Entry, ...]
    seconds: float
    compute_s: float


@dataclass(frozen=True, slots=True)
class _Arena:
    """The address of every residency on the device."""

    addresses: dict[int, int]
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """Addresses of every residency on the device and of every offloaded one on the host."""

    arena: dict[int, int]
    arena_nbytes: int
    slab: dict[int, int]
    slab_nbytes: int


def lower(
    graph: Graph,
    plan: Plan,
    costs: Costs,
    *,
    budget: int | None = None,
    host_budget: int | None = None,
) -> Schedule:
    """The schedule of `plan` inside `budget` device bytes and `host_budget` pinned bytes.

    Raises BudgetError with the plan's floor where that is above the budget, HostMemoryError where
    its copies do not fit.
    """
    budgets = {"budget": budget, "host_budget": host_budget}
    return lowered(graph, plan, costs, **budgets) or lower_leanest(graph, plan, costs, **budgets)


def lowered(
    graph: Graph,
    plan: Plan,
    costs: Costs,
    *,
    budget: int | None = None,
    host_budget: int | None = None,
    cap: int | None = None,
) -> Schedule | None:
    """The plan's schedule with copies ahead of their uses, None where these find no place.

    `cap` are the bytes of arena under which orders are tried first. Raises HostMemoryError where
    its copies do not fit.
    """
    prog = program(graph, plan)
    room = None if budget is None else budget - graph.fixed_nbytes
    fitted = _fit(graph, plan, prog, costs, room, cap)
    return fitted and _schedule(graph, plan, prog, *fitted, budget, host_budget)


def lower_leanest(
    graph: Graph,
    plan: Plan,
    costs: Costs,
    *,
    budget: int | None = None,
    host_budget: int | None = None,
) -> Schedule:
    """The schedule of `plan` in the fewest bytes, with no copy ahead of its use.

    Raises what `lower` raises.
    """
    prog = program(graph, plan)
    entries, arena = _leanest(graph, plan, prog, costs)
    nbytes = graph.fixed_nbytes + arena.nbytes
    if budget is not None and nbytes > budget:
        raise too_small(plan.policy, budget, (nbytes, _tight_step(graph, prog)))
    return _schedule(graph, plan, prog, entries, arena, budget, host_budget)


def ordered(
    graph: Graph, plan: Plan, costs: Costs, caps: Caps, *, grain: int = 1
) -> Ordered | None:
    """The plan's steps in an order with at most `caps` bytes by each launch; None if none has.

    Every section counts as a multiple of `grain` bytes.
    """
    prog = program(graph, plan)
    try:
        found = timed_order(graph, prog, costs, caps, sync=plan.sync, grain=grain)
        return Ordered(plan, prog, *found)
    except CapacityError:
        return None


def lower_ordered(
    graph: Graph, steps: Ordered, *, budget: int, host_budget: int | None = None
) -> Schedule:
    """The schedule of steps that have an order.

    Raises CrowdedError where their bytes find no place, HostMemoryError where their copies do not.
    """
    prog, entries = steps.program, steps.entries
    arena = _fitted(graph, prog, entries, budget - graph.fixed_nbytes)
    return _schedule(graph, steps.plan, prog, entries, arena, budget, host_budget)


def lower_in_places(
    graph: Graph,
    steps: Ordered,
    addresses: Sequence[int],
    *,
    budget: int,
    host_budget: int | None = None,
) -> Schedule:
    """The schedule of steps that have an order, with each residency at its address.

    Raises HostMemoryError where their copies find no place on the host.
    """
    stays = zip(addresses, steps.program.residencies, strict=True)
    top = max((address + stay.nbytes for address, stay in stays), default=0)
    arena = _Arena(dict(enumerate(addresses)), block_nbytes(top))
    return _schedule(graph, steps.plan, steps.program, steps.entries, arena, budget, host_budget)


def _schedule(
    graph: Graph,
    plan: Plan,
    prog: Program,
    entries: tuple[Entry, ...],
    arena: _Arena,
    budget: int | None,
    host_budget: int | None,
) -> Schedule:
    """The schedule of an order that is placed. Raises HostMemoryError where its copies are not."""
    layout = _Layout(arena.addresses, arena.nbytes, *_place_slab(prog, entries))
    if host_budget is not None and layout.slab_nbytes > host_budget:
        raise HostMemoryError(
            f"{plan.policy} keeps {format_bytes(layout.slab_nbytes)} on the host, above the host "
            f"budget {format_bytes(host_budget)}; raise host_budget, or give the device more "
            "memory so that less moves"
        )
    steps = _steps(graph, prog, entries, layout)
    extra = _sync_waits(prog, entries) if plan.sync else [()] * len(steps)
    steps = add_waits(steps, layout.arena_nbytes, layout.slab_nbytes, extra)
    return Schedule(
        graph=graph,
        plan=plan,
        steps=steps,
        residencies=_stays(prog, entries, layout),
        cut=_cut(prog, entries),
        arena_nbytes=layout.arena_nbytes,
        slab_nbytes=layout.slab_nbytes,
        budget_nbytes=budget,
        host_budget_nbytes=host_budget,
    )


def estimate(
    graph: Graph, plan: Plan, costs: Costs, cap: int, *, room: int, below_s: float = inf
) -> Estimate | None:
    """What the order of `plan` under `cap` takes; None where no order keeps under it.

    Bytes are placed more tightly only until they fit `room`, and not at all where the step does not
    take less than `below_s`.
    """
    found = ordered(graph, plan, costs, cap)
    if found is None:
        return None
    seconds, prog = found.seconds, found.program
    fits = seconds < below_s and (
        _place_arena(graph, prog, found.entries, enough=room).nbytes <= room
    )
    return Estimate(seconds, seconds > (1 + LITTLE_WAIT) * found.compute_s, fits)


def copied_nbytes(graph: Graph, plan: Plan) -> int:
    """Bytes that come back to the device in a step; no more leave."""
    return sum(moved_nbytes(graph, move) for move in plan.transfers)


def moved_nbytes(graph: Graph, move: Transfer) -> int:
    """Bytes of the sections of a transfer."""
    buffer = graph.buffers[move.buffer]
    start, stop = buffer.bounds(move.first)[0], buffer.bounds(move.first + move.count - 1)[1]
    return (stop - start) * buffer.row_nbytes


def floor_nbytes(graph: Graph, plan: Plan, costs: Costs) -> tuple[int, str]:
    """The device bytes from which on `plan` has a schedule, and the step that sets them."""
    prog = program(graph, plan)
    _, arena = _leanest(graph, plan, prog, costs)
    return graph.fixed_nbytes + arena.nbytes, _tight_step(graph, prog)


def demand_nbytes(graph: Graph, plan: Plan) -> tuple[int, str]:
    """A bound from below of the plan's floor, its bytes without their placement, and its step."""
    prog = program(graph, plan)
    return graph.fixed_nbytes + int(demand(prog).max(initial=0)), _tight_step(graph, prog)


def _tight_step(graph: Graph, prog: Program) -> str:
    """The launch that needs the most bytes at once."""
    needed = demand(prog)
    if not needed.size:
        return "no step"
    launch = prog.launches[int(needed.argmax())]
    return f"{graph.passes[launch.pass_index].name} [{launch.start}, {launch.stop})"


def _fit(
    graph: Graph, plan: Plan, prog: Program, costs: Costs, room: int | None, cap: int | None
) -> tuple[tuple[Entry, ...], _Arena] | None:
    """An order and its placement within `room`, None where none is found.

    Where the bytes fit but their placement does not, the order is made again under a tighter cap,
    at last under those at and little above the demand.
    """
    enough = room
    if room is None:
        room = sum(aligned(stay.nbytes) for stay in prog.residencies)
    cap, least = room if cap is None else cap, int(demand(prog).max(initial=0))
    if least > room:
        return None
    for _ in range(TIGHTEN_ATTEMPTS):
        if cap < least:
            break
        entries = order(graph, prog, costs, cap, sync=plan.sync)
        for rest in (COOL_DOWN, 0) if plan.transfers else (0,):
            arena = _place_arena(
                graph, prog, entries, cool_down=rest, enough=enough, trials=FEW_TRIALS
            )
            if arena.nbytes <= room:
                return entries, arena
        cap -= max((arena.nbytes - room) // 2, cap // 64)
    entries, arena = _tightest(graph, plan, prog, costs)
    return (entries, arena) if arena.nbytes <= room else None


def _tightest(
    graph: Graph, plan: Plan, prog: Program, costs: Costs
) -> tuple[tuple[Entry, ...], _Arena]:
    """The order that takes the fewest bytes, of those under caps at and little above the demand."""
    least = int(demand(prog).max(initial=0))
    moves = any(stay.fetched for stay in prog.residencies)
    caps = [round(least * slack) for slack in (LAST_SLACKS if moves else LAST_SLACKS[:1])]
    orders = [order(graph, prog, costs, cap, sync=plan.sync) for cap in caps]
    arenas = [_place_arena(graph, prog, entries) for entries in orders]
    entries = orders[min(range(len(caps)), key=lambda index: arenas[index].nbytes)]
    return entries, _place_arena(graph, prog, entries, trials=MANY_TRIALS)


def _leanest(
    graph: Graph, plan: Plan, prog: Program, costs: Costs
) -> tuple[tuple[Entry, ...], _Arena]:
    """The order in which sections are there from their first use to their last, and its placement.

    No order of the plan has fewer bytes at any launch.
    """
    entries = order(graph, prog, costs, demand(prog), sync=plan.sync)
    return entries, _place_arena(graph, prog, entries, trials=MANY_TRIALS, shuffles=SHUFFLES)


def too_small(policy: str, budget: int, floor: tuple[int, str]) -> BudgetError:
    """The error that `budget` is below the floor of `policy`, given as bytes and step."""
    nbytes, step = floor
    return BudgetError(
        f"budget {format_bytes(budget)} is below the floor {format_bytes(nbytes)} "
        f"({nbytes:,} bytes) of {policy}, set by {step}; raise the budget, lower chunk_size or "
        "the batch, or choose a policy that offloads more",
        floor_nbytes=nbytes,
        step=step,
    )


def _positions(
    prog: Program, entries: Sequence[Entry], cool_down: int
) -> tuple[list[int], list[int]]:
    """Places in the order at which each residency begins and ends.

    A freed one rests for `cool_down` places more, or until its section comes back; an input is
    there before its half begins.
    """
    at = {(entry.event, entry.number): index for index, entry in enumerate(entries)}
    cut, end = _cut(prog, entries), len(entries)
    halves = ((0, cut - 1), (cut, end))
    begins, ends = [], []
    before: dict[tuple[str, int], int] = {}
    for number, stay in enumerate(prog.residencies):
        first = (Event.PREFETCH, number) if stay.fetched else (Event.LAUNCH, stay.first)
        last = (Event.OFFLOAD, number) if stay.leaves else (Event.LAUNCH, stay.last)
        is_input = stay.written < stay.first and not stay.fetched
        begins.append(halves[stay.first >= prog.cut][0] if is_input else at[first])
        held_until = halves[stay.last >= prog.cut][1]
        ends.append(held_until if stay.held else min(end, at[last] + cool_down))
        section = stay.buffer, stay.section
        if section in before:
            ends[before[section]] = min(ends[before[section]], begins[number] - 1)
        before[section] = number
    return begins, ends


def _cut(prog: Program, entries: Sequence[Entry]) -> int:
    """Place in the order of the second half's first step (autograd mode), else the number of steps.

    Before it all offloads of the first half have ended; prefetches ahead of its first launch belong
    to it.
    """
    if prog.cut == len(prog.launches):
        return len(entries)
    launch = entries.index(Entry(Event.LAUNCH, prog.cut))
    return 1 + max((i for i in range(launch) if entries[i].event is not Event.PREFETCH), default=-1)


def _place_arena(
    graph: Graph,
    prog: Program,
    entries: Sequence[Entry],
    *,
    cool_down: int = 0,
    enough: int | None = None,
    trials: int = 0,
    shuffles: int = 0,
) -> _Arena:
    """The arena of the order, as tight as `place` makes it of `enough` and `trials`.

    Of few extents, as tight as so many `shuffles` without gain make it.
    """
    groups = side_by_side(prog)
    extents = _extents(graph, prog, entries, groups, cool_down)
    share = min(1, FULL_EXTENTS / max(1, len(extents))) ** 2
    enough = None if enough is None else usable_nbytes(enough)
    found = place(extents, enough, int(trials * share))
    if len(extents) <= FEW_EXTENTS:
        found = shuffled(extents, found, shuffles)
    return _arena(groups, extents, found[0])


def _fitted(graph: Graph, prog: Program, entries: Sequence[Entry], room: int) -> _Arena:
    """The arena of the order inside `room`. Raises CrowdedError where bytes find no place."""
    groups, usable = side_by_side(prog), usable_nbytes(room)
    extents = _extents(graph, prog, entries, groups, 0)
    bases, misfits = fit(extents, usable)
    if misfits and len(extents) <= FEW_EXTENTS and least_nbytes(extents) <= usable:
        bases, high_water = place(extents, usable, FEW_TRIALS)
        misfits = misfits if high_water > usable else ()
    if not misfits:
        rested = _extents(graph, prog, entries, groups, COOL_DOWN)
        others, crowded = fit(rested, usable)
        return _arena(groups, extents, bases) if crowded else _arena(groups, rested, others)
    launches = list(accumulate(entry.event is Event.LAUNCH for entry in entries))
    firsts = [launches[extents[at].first] - 1 for at in misfits]
    raise CrowdedError(
        tuple((first, first, extents[at].nbytes) for first, at in zip(firsts, misfits, strict=True))
    )


def _arena(
    groups: Sequence[Sequence[int]], extents: Sequence[Extent], bases: Sequence[int]
) -> _Arena:
    """The arena of groups of residencies at these base addresses."""
    addresses: dict[int, int] = {}
    for members, extent, base in zip(groups, extents, bases, strict=True):
        for number, stay in zip(members, extent.stays, strict=True):
            addresses[number] = base + stay.offset
    tops = (base + extent.nbytes for base, extent in zip(bases, extents, strict=True))
    return _Arena(addresses, block_nbytes(max(tops, default=0)))


def _extents(
    graph: Graph,
    prog: Program,
    entries: Sequence[Entry],
    groups: Sequence[Sequence[int]],
    cool_down: int,
) -> list[Extent]:
    """Groups of residencies as long as they last in the order."""
    return extents_of(graph, prog, groups, *_positions(prog, entries, cool_down))


def extents_of(
    graph: Graph,
    prog: Program,
    groups: Sequence[Sequence[int]],
    begins: Sequence[int],
    ends: Sequence[int],
) -> list[Extent]:
    """Groups of residencies, of which each lasts from a time to another."""
    return [_extent(graph, prog, members, begins, ends) for members in groups]


def _extent(
    graph: Graph, prog: Program, members: Sequence[int], begins: Sequence[int], ends: Sequence[int]
) -> Extent:
    """The residencies `members` of one buffer, as far apart as their sections."""
    if len(members) == 1:
        number = members[0]
        stay = Stay(0, prog.residencies[number].nbytes, begins[number], ends[number])
        return Extent.of((stay,))
    stays = [prog.residencies[number] for number in members]
    buffer, first = graph.buffers[stays[0].buffer], min(stay.section for stay in stays)
    pitch = buffer.section * buffer.row_nbytes
    return Extent.of(
        [
            Stay((stay.section - first) * pitch, stay.nbytes, begins[number], ends[number])
            for number, stay in zip(members, stays, strict=True)
        ]
    )


def _place_slab(prog: Program, entries: Sequence[Entry]) -> tuple[dict[int, int], int]:
    """Host addresses by the stay that left, each held from its offload to its last prefetch."""
    leaving: dict[int, int] = {}
    held: dict[int, Stay] = {}
    for at, entry in enumerate(entries):
        if entry.event is Event.OFFLOAD:
            leaving[entry.number] = at
        elif entry.event is Event.PREFETCH:
            source = prog.source(entry.number)
            held[source] = Stay(0, prog.residencies[source].nbytes, leaving[source], at)
    if held and max(s.first for s in held.values()) < min(s.last for s in held.values()):
        return _stack(held)  # all are there at one time: nothing to share
    bases, high_water = place([Extent.of((stay,)) for stay in held.values()]) if held else ((), 0)
    return dict(zip(held, bases, strict=True)), high_water


def _stack(held: dict[int, Stay]) -> tuple[dict[int, int], int]:
    """Addresses one after the other."""
    bases, top = {}, 0
    for number, stay in held.items():
        bases[number] = top
        top += aligned(stay.nbytes)
    return bases, top


def _steps(
    graph: Graph, prog: Program, entries: Sequence[Entry], layout: _Layout
) -> tuple[Step, ...]:
    """The steps of the order, with addresses and without waits."""
    return tuple(
        _launch_step(graph, prog, entry.number, layout)
        if entry.event is Event.LAUNCH
        else _copy_step(graph, prog, entry, layout)
        for entry in entries
    )


def _launch_step(graph: Graph, prog: Program, index: int, layout: _Layout) -> Step:
    launch = prog.launches[index]

    def operand(run: tuple[int, ...]) -> Operand:
        first, last = prog.residencies[run[0]], prog.residencies[run[-1]]
        buffer = graph.buffers[first.buffer]
        start, stop = buffer.bounds(first.section)[0], buffer.bounds(last.section)[1]
        nbytes = (stop - start) * buffer.row_nbytes
        return Operand(first.buffer, start, stop, Space.ARENA, layout.arena[run[0]], nbytes)

    reads = tuple(operand(run) for run in prog.reads[index])
    writes = tuple(operand(run) for run in prog.writes[index])
    where = (launch.slot, launch.pass_index, launch.start, launch.stop)
    return Step(Lane.COMPUTE, Action.LAUNCH, *where, reads, writes, recompute=launch.recompute)


def _copy_step(graph: Graph, prog: Program, entry: Entry, layout: _Layout) -> Step:
    stay = prog.residencies[entry.number]
    offload = entry.event is Event.OFFLOAD
    start, stop = graph.buffers[stay.buffer].bounds(stay.section)
    host = layout.slab[entry.number if offload else prog.source(entry.number)]
    device = Operand(stay.buffer, start, stop, Space.ARENA, layout.arena[entry.number], stay.nbytes)
    away = Operand(stay.buffer, start, stop, Space.SLAB, host, stay.nbytes)
    source, target = (device, away) if offload else (away, device)
    lane = Lane.OFFLOAD if offload else Lane.PREFETCH
    slot = prog.launches[stay.last if offload else stay.first].slot
    return Step(lane, Action.COPY, slot, -1, start, stop, (source,), (target,))


def _stays(prog: Program, entries: Sequence[Entry], layout: _Layout) -> tuple[Residency, ...]:
    """Every residency with its address and the steps that use it."""
    users: list[list[int]] = [[] for _ in prog.residencies]
    for index, entry in enumerate(entries):
        if entry.event is not Event.LAUNCH:
            users[entry.number].append(index)
            continue
        uses = (*prog.reads[entry.number], *prog.writes[entry.number])
        for number in {number for use in uses for number in use}:
            users[number].append(index)
    return tuple(
        Residency(stay.buffer, stay.section, layout.arena[number], stay.nbytes, tuple(steps))
        for number, (stay, steps) in enumerate(zip(prog.residencies, users, strict=True))
    )


def _sync_waits(prog: Program, entries: Sequence[Entry]) -> list[tuple[int, ...]]:
    """vDNN's end-of-layer waits: a segment and the copies issued during it end before the next."""
    waits: list[tuple[int, ...]] = []
    segment, barrier, running, copies = -1, -1, -1, [-1, -1]
    for index, entry in enumerate(entries):
        if entry.event is Event.LAUNCH:
            launch = prog.launches[entry.number]
            crosses = launch.segment != segment
            waits.append(tuple(c for c in copies if c >= 0) if crosses else ())
            if crosses:
                segment, barrier = launch.segment, running
            running = index
        else:
            waits.append((barrier,) if barrier >= 0 else ())
            copies[entry.event is Event.PREFETCH] = index
    return waits
