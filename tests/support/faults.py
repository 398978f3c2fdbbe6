"""Faults to seed into right schedules: each really does harm, so that the checker must refuse it.

A fault proposes mutations in random order. One that breaks a rule by its nature (a budget, a range,
a wait that cannot be) is taken as it is; any other only if the slow oracles of schedules.py
see its harm: two steps race, or the results differ.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from tests.support.schedules import races, results
from tvdnn.graph import Graph, Kind, Use
from tvdnn.planner.ir.schedule import Action, Lane, Operand, Residency, Schedule, Space, Step

Mutations = Callable[[Schedule, Random], Iterator[Schedule]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to spoil a schedule. `plain` ones break a rule by their nature."""

    mutations: Mutations
    plain: bool = False

    @property
    def name(self) -> str:
        return self.mutations.__name__

    def seed(self, schedule: Schedule, seed: int) -> Schedule | None:
        """`schedule` with this fault, or None where it has no victim for it."""
        right = None if self.plain else results(schedule)
        for mutant in self.mutations(schedule, Random(seed)):
            if self.plain or races(mutant) or results(mutant) != right:
                return mutant
        return None


def rebuilt(schedule: Schedule, steps: Sequence[Step], cut: int | None = None) -> Schedule:
    """The schedule with other steps, and the residencies that they imply."""
    return replace(
        schedule,
        steps=tuple(steps),
        residencies=implied_residencies(schedule.graph, steps),
        phase_split=schedule.phase_split if cut is None else cut,
    )


def implied_residencies(graph: Graph, steps: Sequence[Step]) -> tuple[Residency, ...]:
    """A residency for every stretch of steps, from write to last use, of a section at an address.

    A prefetch, or a launch that writes the section without reading it or adding to it, opens one.
    """
    stays: list[tuple[str, int, int, list[int]]] = []
    current: dict[tuple[str, int, int], int] = {}
    for index, step in enumerate(steps):
        reads = {operand.buffer for operand in step.reads}
        for operand in (*step.reads, *step.writes):
            if operand.space is Space.SLAB:
                continue
            opens = step.action is Action.COPY and step.lane is Lane.PREFETCH
            if step.action is Action.LAUNCH and operand in step.writes:
                adds = graph.passes[step.pass_index].reduction and step.start > 0
                opens = operand.buffer not in reads and not adds
            for key in _sections(graph, operand):
                if opens or key not in current:
                    current[key] = len(stays)
                    stays.append((*key, []))
                steps_of = stays[current[key]][3]
                steps_of += [] if index in steps_of else [index]
    return tuple(
        Residency(name, section, at, graph.buffers[name].section_nbytes(section), tuple(users))
        for name, section, at, users in stays
    )


def _sections(graph: Graph, operand: Operand) -> Iterator[tuple[str, int, int]]:
    """Buffer, section and address of the sections of an operand."""
    buffer = graph.buffers[operand.buffer]
    for section in buffer.sections_of(operand.start, operand.stop):
        rows = section * buffer.section - operand.start
        yield operand.buffer, section, operand.offset + rows * buffer.row_nbytes


def _shuffled(schedule: Schedule, rng: Random, action: Action | None = None) -> list[int]:
    """The steps of an action (all) in random order."""
    found = [i for i, s in enumerate(schedule.steps) if action is None or s.action is action]
    return rng.sample(found, len(found))


def _copies(schedule: Schedule, rng: Random, lane: Lane) -> list[int]:
    copies = _shuffled(schedule, rng, Action.COPY)
    return [index for index in copies if schedule.steps[index].lane is lane]


def _changed(schedule: Schedule, index: int, **changes: object) -> Schedule:
    """The schedule with fields of one step changed."""
    steps = list(schedule.steps)
    steps[index] = steps[index]._replace(**changes)
    return rebuilt(schedule, steps)


def _kept(schedule: Schedule, index: int, **changes: object) -> Schedule:
    """As `_changed`, with residencies left alone: for steps that are not well formed."""
    steps = list(schedule.steps)
    steps[index] = steps[index]._replace(**changes)
    return replace(schedule, steps=tuple(steps))


def _reordered(schedule: Schedule, order: Sequence[int]) -> Schedule:
    """The steps of `order` alone, in that order; waits that no longer name an earlier step go."""
    place = {old: new for new, old in enumerate(order)}
    steps = []
    for new, old in enumerate(order):
        waits = (place[wait] for wait in schedule.steps[old].waits if wait in place)
        kept = tuple(sorted(wait for wait in waits if wait < new))
        steps.append(schedule.steps[old]._replace(waits=kept))
    cut = sum(old < schedule.phase_split for old in order)
    return rebuilt(schedule, steps, cut)


def _without(schedule: Schedule, *gone: int) -> Schedule:
    return _reordered(schedule, [i for i in range(len(schedule.steps)) if i not in gone])


def _moved(schedule: Schedule, index: int, to: int) -> Schedule:
    """Step `index` at place `to` of those that remain."""
    order = [i for i in range(len(schedule.steps)) if i != index]
    order.insert(to, index)
    return _reordered(schedule, order)


def _at(operands: tuple[Operand, ...], number: int, **changes: object) -> tuple[Operand, ...]:
    """`operands` with fields of one changed."""
    changed = operands[number]._replace(**changes)
    return (*operands[:number], changed, *operands[number + 1 :])


def _shifts(schedule: Schedule, operand: Operand) -> Iterator[int]:
    """Offsets near an operand's own at which it still fits its space and its type."""
    size = schedule.arena_nbytes if operand.space is Space.ARENA else schedule.slab_nbytes
    for step in (8, -8, operand.nbytes, -operand.nbytes):
        if operand.offset + step >= 0 and operand.end + step <= size:
            yield operand.offset + step


# Order and waits


def wait_removed(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _shuffled(schedule, rng):
        waits = schedule.steps[index].waits
        for wait in waits:
            yield _changed(schedule, index, waits=tuple(w for w in waits if w != wait))


def bytes_reused_before_offload_ended(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Nothing waits for an offload any more."""
    for copy in _copies(schedule, rng, Lane.OFFLOAD):
        steps = [s._replace(waits=tuple(w for w in s.waits if w != copy)) for s in schedule.steps]
        yield rebuilt(schedule, steps)


def read_before_prefetch(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A prefetch right after the launch that needs it."""
    for copy in _copies(schedule, rng, Lane.PREFETCH):
        name, start = schedule.steps[copy].writes[0].buffer, schedule.steps[copy].start
        for index in range(copy + 1, len(schedule.steps)):
            reads = schedule.steps[index].reads
            if any(o.buffer == name and o.start <= start < o.stop for o in reads):
                yield _moved(schedule, copy, index)
                break


def prefetch_before_its_offload(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for copy in _copies(schedule, rng, Lane.PREFETCH):
        source = schedule.steps[copy].reads[0]
        for index in range(copy):
            if source in schedule.steps[index].writes:
                yield _moved(schedule, copy, index)


def copies_swapped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Two copies of one lane at each other's place in it."""
    for lane in (Lane.OFFLOAD, Lane.PREFETCH):
        copies = _copies(schedule, rng, lane)
        for first, second in zip(copies[::2], copies[1::2], strict=False):
            order = list(range(len(schedule.steps)))
            order[first], order[second] = second, first
            yield _reordered(schedule, order)


def wait_on_later_step(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A cycle: an earlier step waits for one that waits for it."""
    for index in _shuffled(schedule, rng):
        for wait in schedule.steps[index].waits:
            waits = tuple(sorted({*schedule.steps[wait].waits, index}))
            yield _changed(schedule, wait, waits=waits)


def wait_on_no_step(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _shuffled(schedule, rng):
        yield _changed(schedule, index, waits=(*schedule.steps[index].waits, len(schedule.steps)))


def wait_on_own_lane(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _shuffled(schedule, rng):
        lane = schedule.steps[index].lane
        earlier = [i for i in range(index) if schedule.steps[i].lane is lane]
        if earlier:
            waits = tuple(sorted({*schedule.steps[index].waits, earlier[-1]}))
            yield _changed(schedule, index, waits=waits)


# Steps lost, repeated, out of order


def offload_dropped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for copy in _copies(schedule, rng, Lane.OFFLOAD):
        yield _without(schedule, copy)


def prefetch_dropped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for copy in _copies(schedule, rng, Lane.PREFETCH):
        yield _without(schedule, copy)


def launch_dropped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _shuffled(schedule, rng, Action.LAUNCH):
        yield _without(schedule, index)


def launch_twice(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch that changes what it reads, or adds to a sum, once more."""
    for index in _shuffled(schedule, rng, Action.LAUNCH):
        order = list(range(len(schedule.steps)))
        order.insert(index + 1, index)
        yield _reordered(schedule, order)


def in_place_pass_skipped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    passes = schedule.graph.passes
    for number in rng.sample(range(len(passes)), len(passes)):
        if {u.buffer for u in passes[number].reads} & {u.buffer for u in passes[number].writes}:
            gone = (i for i, s in enumerate(schedule.steps) if s.pass_index == number)
            yield _without(schedule, *gone)


def sum_out_of_order(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Two launches of a reduction change places."""
    for first in _shuffled(schedule, rng, Action.LAUNCH):
        step = schedule.steps[first]
        if not schedule.graph.passes[step.pass_index].reduction:
            continue
        later = range(first + 1, len(schedule.steps))
        twins = [i for i in later if schedule.steps[i].pass_index == step.pass_index]
        for second in twins[:1]:
            order = list(range(len(schedule.steps)))
            order[first], order[second] = second, first
            yield _reordered(schedule, order)


def reader_before_writer(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch at the place of one just before it on its lane."""
    launches = sorted(_shuffled(schedule, rng, Action.LAUNCH))
    pairs = list(pairwise(launches))
    for first, second in rng.sample(pairs, len(pairs)):
        yield _moved(schedule, second, first)


# Addresses


def read_offset_moved(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _shuffled(schedule, rng):
        reads = schedule.steps[index].reads
        for number, operand in enumerate(reads):
            for offset in _shifts(schedule, operand):
                yield _changed(schedule, index, reads=_at(reads, number, offset=offset))


def write_offset_moved(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _shuffled(schedule, rng):
        writes = schedule.steps[index].writes
        for number, operand in enumerate(writes):
            for offset in _shifts(schedule, operand):
                yield _changed(schedule, index, writes=_at(writes, number, offset=offset))


def residencies_overlap(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """All that uses a section's residency finds it at the address of another's, too."""
    stays = rng.sample(schedule.residencies, min(40, len(schedule.residencies)))
    for stay in stays:
        for other in stays:
            fits = other.offset + stay.nbytes <= schedule.arena_nbytes
            together = stay.steps[0] <= other.steps[-1] and other.steps[0] <= stay.steps[-1]
            if fits and together and stay.offset != other.offset:
                yield _relocated(schedule, stay, other.offset)


def _relocated(schedule: Schedule, stay: Residency, offset: int) -> Schedule:
    """The operands that are one residency alone at another address."""
    steps = list(schedule.steps)
    here = (stay.buffer, Space.ARENA, stay.offset, stay.nbytes)

    def moved(operand: Operand) -> Operand:
        found = (operand.buffer, operand.space, operand.offset, operand.nbytes)
        return operand._replace(offset=offset) if found == here else operand

    for index in stay.steps:
        step = steps[index]
        reads, writes = tuple(map(moved, step.reads)), tuple(map(moved, step.writes))
        steps[index] = step._replace(reads=reads, writes=writes)
    return rebuilt(schedule, steps)


def slab_places_overlap(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Two sections away at one time share a place in the slab."""
    offloads = _copies(schedule, rng, Lane.OFFLOAD)
    for first in offloads:
        for second in offloads:
            target = schedule.steps[first].writes[0]
            if schedule.steps[second].writes[0].nbytes <= target.nbytes and first != second:
                yield _restacked(schedule, schedule.steps[second].writes[0], target.offset)


def _restacked(schedule: Schedule, place: Operand, offset: int) -> Schedule:
    """Every copy to and from a place in the slab uses byte `offset` in its stead."""
    moved = place._replace(offset=offset)
    steps = [
        step._replace(
            reads=tuple(moved if o == place else o for o in step.reads),
            writes=tuple(moved if o == place else o for o in step.writes),
        )
        for step in schedule.steps
    ]
    return rebuilt(schedule, steps)


def copies_crossed(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Two offloads of one size go each to the other's place in the slab."""
    offloads = _copies(schedule, rng, Lane.OFFLOAD)
    for first, second in pairwise(offloads):
        one, two = (schedule.steps[i].writes[0] for i in (first, second))
        if one.nbytes == two.nbytes and one.offset != two.offset:
            crossed = _changed(schedule, first, writes=(one._replace(offset=two.offset),))
            yield _changed(crossed, second, writes=(two._replace(offset=one.offset),))


def partial_overwritten_early(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Partial sums before what they sum is there, or at the place of others."""
    buffers = schedule.graph.buffers
    launches = [
        i
        for i in _shuffled(schedule, rng, Action.LAUNCH)
        if any(buffers[o.buffer].kind is Kind.PARTIAL for o in schedule.steps[i].writes)
    ]
    for index in launches:
        writes = schedule.steps[index].writes
        for other in launches:
            target = schedule.steps[other].writes[0]
            elsewhere = target.offset != writes[0].offset
            if other < index and elsewhere and writes[0].nbytes <= target.nbytes:
                yield _changed(schedule, index, writes=_at(writes, 0, offset=target.offset))
        for place in range(max(0, index - 4), index):
            yield _moved(schedule, index, place)


def offset_unaligned(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _shuffled(schedule, rng):
        reads = schedule.steps[index].reads
        if reads and reads[0].offset > 0:
            yield _kept(schedule, index, reads=_at(reads, 0, offset=reads[0].offset - 1))


def offset_negative(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _shuffled(schedule, rng):
        reads = schedule.steps[index].reads
        if reads:
            yield _kept(schedule, index, reads=_at(reads, 0, offset=-512))


# Forms


def rows_wrong(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch works on the rows beside those that its range names."""
    for index in _shuffled(schedule, rng, Action.LAUNCH):
        reads = schedule.steps[index].reads
        for number, operand in enumerate(reads):
            count = operand.stop - operand.start
            if operand.start >= count:
                rows = {"start": operand.start - count, "stop": operand.start}
                yield _kept(schedule, index, reads=_at(reads, number, **rows))


def range_cut_short(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch leaves out its last unit, with operands to match."""
    for index in _shuffled(schedule, rng, Action.LAUNCH):
        step = schedule.steps[index]
        pass_ = schedule.graph.passes[step.pass_index]
        stop = (step.stop - 1) // pass_.unit * pass_.unit
        if stop > step.start:
            short = step._replace(stop=stop)
            reads = _operands_of(schedule.graph, short, pass_.reads, step.reads)
            writes = _operands_of(schedule.graph, short, pass_.writes, step.writes)
            yield _changed(schedule, index, stop=stop, reads=reads, writes=writes)


def _operands_of(
    graph: Graph, step: Step, uses: Sequence[Use], old: Sequence[Operand]
) -> tuple[Operand, ...]:
    """Operands that begin as the old ones do and have the rows that the step's range names."""
    operands = []
    for use, operand in zip(uses, old, strict=True):
        buffer = graph.buffers[use.buffer]
        start, stop = use.rows(step.start, step.stop, buffer)
        nbytes = (stop - start) * buffer.row_nbytes
        operands.append(operand._replace(start=start, stop=stop, nbytes=nbytes))
    return tuple(operands)


def unit_cut(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _shuffled(schedule, rng, Action.LAUNCH):
        step = schedule.steps[index]
        if schedule.graph.passes[step.pass_index].unit > 1:
            yield _kept(schedule, index, start=step.start + 1)


def operands_exchanged(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _shuffled(schedule, rng, Action.LAUNCH):
        reads = schedule.steps[index].reads
        if len(reads) > 1 and reads[0] != reads[1]:
            yield _kept(schedule, index, reads=(reads[1], reads[0], *reads[2:]))


def launch_on_copy_lane(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _shuffled(schedule, rng, Action.LAUNCH):
        yield _kept(schedule, index, lane=Lane.OFFLOAD, waits=())


def copy_backwards(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _shuffled(schedule, rng, Action.COPY):
        step = schedule.steps[index]
        yield _kept(schedule, index, reads=step.writes, writes=step.reads)


def copy_cut_short(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A copy leaves out half of its bytes."""
    for index in _shuffled(schedule, rng, Action.COPY):
        step = schedule.steps[index]
        half = step.reads[0].nbytes // 2
        yield _kept(
            schedule,
            index,
            reads=_at(step.reads, 0, nbytes=half),
            writes=_at(step.writes, 0, nbytes=half),
        )


def residency_ends_early(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A residency is said to end before its last use, which its bytes' next owner may overtake."""
    stays = schedule.residencies
    for number in rng.sample(range(len(stays)), len(stays)):
        if len(stays[number].steps) > 1:
            short = stays[number]._replace(steps=stays[number].steps[:-1])
            yield replace(schedule, residencies=(*stays[:number], short, *stays[number + 1 :]))


# Sizes


def arena_too_small(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    ends = [o.end for s in schedule.steps for o in (*s.reads, *s.writes) if o.space is Space.ARENA]
    yield replace(schedule, arena_nbytes=max(ends) - 1 - rng.randrange(max(ends) // 2))


def slab_too_small(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    ends = [o.end for s in schedule.steps for o in (*s.reads, *s.writes) if o.space is Space.SLAB]
    if ends:
        yield replace(schedule, slab_nbytes=max(ends) - 1 - rng.randrange(max(ends) // 2))


def over_budget(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    yield replace(schedule, budget_nbytes=schedule.peak_nbytes - 1 - rng.randrange(9))


def over_host_budget(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    if schedule.slab_nbytes:
        yield replace(schedule, host_budget_nbytes=rng.randrange(schedule.slab_nbytes))


HARMFUL = (
    wait_removed,
    bytes_reused_before_offload_ended,
    read_before_prefetch,
    prefetch_before_its_offload,
    copies_swapped,
    offload_dropped,
    prefetch_dropped,
    launch_dropped,
    launch_twice,
    in_place_pass_skipped,
    sum_out_of_order,
    reader_before_writer,
    read_offset_moved,
    write_offset_moved,
    residencies_overlap,
    slab_places_overlap,
    copies_crossed,
    partial_overwritten_early,
    range_cut_short,
)
PLAIN = (
    wait_on_later_step,
    wait_on_no_step,
    wait_on_own_lane,
    offset_unaligned,
    offset_negative,
    rows_wrong,
    unit_cut,
    operands_exchanged,
    launch_on_copy_lane,
    copy_backwards,
    copy_cut_short,
    residency_ends_early,
    arena_too_small,
    slab_too_small,
    over_budget,
    over_host_budget,
)
FAULTS = (*map(Fault, HARMFUL), *(Fault(mutations, plain=True) for mutations in PLAIN))
