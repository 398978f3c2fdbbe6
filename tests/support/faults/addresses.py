"""Faults of addresses: operands elsewhere, and sections that share bytes."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random

from tests.support.faults.changes import (
    at,
    changed,
    copies_on,
    kept,
    moved,
    rebuilt,
    replaced,
    shifts,
    shuffled,
)
from tvdnn.graph import Kind
from tvdnn.planner.ir.schedule import Action, Lane, Operand, Residency, Schedule, Space


def read_offset_moved(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    return _offset_moved(schedule, rng, "reads")


def write_offset_moved(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    return _offset_moved(schedule, rng, "writes")


def _offset_moved(schedule: Schedule, rng: Random, field: str) -> Iterator[Schedule]:
    """A step's operand at another offset, among its `reads` or its `writes`."""
    for index in shuffled(schedule, rng):
        operands: tuple[Operand, ...] = getattr(schedule.steps[index], field)
        for number, operand in enumerate(operands):
            for offset in shifts(schedule, operand):
                moved_to = at(operands, number, offset=offset)
                yield changed(schedule, index, **{field: moved_to})


def residencies_overlap(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """All users of a section's residency find it at the address of another residency."""
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
    offloads = copies_on(schedule, rng, Lane.OFFLOAD)
    for first in offloads:
        for second in offloads:
            target = schedule.steps[first].writes[0]
            if schedule.steps[second].writes[0].nbytes <= target.nbytes and first != second:
                place = schedule.steps[second].writes[0]
                yield replaced(schedule, place, place._replace(offset=target.offset))


def copies_crossed(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Two offloads of one size go each to the other's place in the slab."""
    offloads = copies_on(schedule, rng, Lane.OFFLOAD)
    for first, second in pairwise(offloads):
        one, two = (schedule.steps[i].writes[0] for i in (first, second))
        if one.nbytes == two.nbytes and one.offset != two.offset:
            crossed = changed(schedule, first, writes=(one._replace(offset=two.offset),))
            yield changed(crossed, second, writes=(two._replace(offset=one.offset),))


def partial_overwritten_early(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Partial sums come before their terms, or lie at the place of others."""
    buffers = schedule.graph.buffers
    launches = [
        i
        for i in shuffled(schedule, rng, Action.LAUNCH)
        if any(buffers[o.buffer].kind is Kind.PARTIAL for o in schedule.steps[i].writes)
    ]
    for index in launches:
        writes = schedule.steps[index].writes
        for other in launches:
            target = schedule.steps[other].writes[0]
            elsewhere = target.offset != writes[0].offset
            if other < index and elsewhere and writes[0].nbytes <= target.nbytes:
                yield changed(schedule, index, writes=at(writes, 0, offset=target.offset))
        for place in range(max(0, index - 4), index):
            yield moved(schedule, index, place)


def offset_unaligned(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng):
        reads = schedule.steps[index].reads
        if reads and reads[0].offset > 0:
            yield kept(schedule, index, reads=at(reads, 0, offset=reads[0].offset - 1))


def offset_negative(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng):
        reads = schedule.steps[index].reads
        if reads:
            yield kept(schedule, index, reads=at(reads, 0, offset=-512))
