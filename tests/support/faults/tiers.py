"""Faults of tiers: sections in a file or on a peer, and their bounce buffers in the slab."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from random import Random

from tests.support.faults.changes import (
    at,
    changed,
    copies_on,
    kept,
    moved,
    replaced,
    shuffled,
    without,
)
from tvdnn.planner.ir.budgets import TierBudgets
from tvdnn.planner.ir.plan import FILE, HOST, PEER
from tvdnn.planner.ir.schedule import (
    FILE_ALIGNMENT,
    Action,
    Lane,
    Operand,
    Schedule,
    Space,
)

FILE_LANES = (Lane.FILE_WRITE, Lane.FILE_READ)


def file_read_before_it_is_written(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A read comes before the write of its section."""
    for index in copies_on(schedule, rng, Lane.FILE_READ):
        for before in range(index):
            if schedule.steps[before].writes[:1] == schedule.steps[index].reads:
                yield moved(schedule, index, before)


def file_read_without_waiting(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    return _deaf(schedule, rng, Lane.FILE_READ, Lane.FILE_WRITE)


def file_written_without_waiting(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A write does not wait for the offload into its bounce buffer."""
    return _deaf(schedule, rng, Lane.FILE_WRITE, Lane.OFFLOAD)


def prefetched_without_waiting(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A prefetch does not wait for the read into its bounce buffer."""
    return _deaf(schedule, rng, Lane.PREFETCH, Lane.FILE_READ)


def bounce_reused_before_it_is_written(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """An offload does not wait until the bounce buffer's last section is in the file."""
    return _deaf(schedule, rng, Lane.OFFLOAD, Lane.FILE_WRITE)


def bounce_reused_before_it_is_prefetched(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A read does not wait until the bounce buffer's last section is on the device."""
    return _deaf(schedule, rng, Lane.FILE_READ, Lane.PREFETCH)


def bounces_of_two_sections_overlap(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """One section's bounce buffer is that of another, whenever these are used."""
    copies = copies_on(schedule, rng, Lane.FILE_WRITE) + copies_on(schedule, rng, Lane.FILE_READ)
    for first, second in permutations(copies, 2):
        ours, theirs = (_bounce(schedule, index) for index in (first, second))
        if ours.offset != theirs.offset and theirs.offset + ours.nbytes <= schedule.slab_nbytes:
            yield replaced(schedule, ours, ours._replace(offset=theirs.offset))


def file_written_elsewhere(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    return _shifted(schedule, rng, Lane.FILE_WRITE, "writes")


def file_read_elsewhere(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    return _shifted(schedule, rng, Lane.FILE_READ, "reads")


def bounce_read_elsewhere(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    return _shifted(schedule, rng, Lane.FILE_WRITE, "reads")


def two_sections_at_one_file_offset(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A section is written and read where another one is."""
    for first, second in permutations(copies_on(schedule, rng, Lane.FILE_WRITE), 2):
        (ours,), (theirs,) = schedule.steps[first].writes, schedule.steps[second].writes
        if ours.offset != theirs.offset and theirs.offset + ours.nbytes <= schedule.file_nbytes:
            yield replaced(schedule, ours, ours._replace(offset=theirs.offset))


def file_read_of_another_section(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for first, second in permutations(copies_on(schedule, rng, Lane.FILE_READ), 2):
        (ours,), (theirs,) = schedule.steps[first].reads, schedule.steps[second].reads
        if ours.offset != theirs.offset and theirs.offset + ours.nbytes <= schedule.file_nbytes:
            yield changed(schedule, first, reads=(ours._replace(offset=theirs.offset),))


def file_write_dropped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in copies_on(schedule, rng, Lane.FILE_WRITE):
        yield without(schedule, index)


def file_read_dropped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in copies_on(schedule, rng, Lane.FILE_READ):
        yield without(schedule, index)


def file_offset_unaligned(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """The section and its bounce buffer are where no read past the page cache may be."""
    for lane in FILE_LANES:
        for index in copies_on(schedule, rng, lane):
            for operand in (*schedule.steps[index].reads, *schedule.steps[index].writes):
                space = "file_nbytes" if operand.space is Space.FILE else "slab_nbytes"
                grown = replace(schedule, **{space: getattr(schedule, space) + FILE_ALIGNMENT})
                there = operand._replace(offset=operand.offset + FILE_ALIGNMENT // 8)
                yield replaced(grown, operand, there)


def file_copied_on_the_other_lane(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for lane, other in zip(FILE_LANES, reversed(FILE_LANES), strict=True):
        for index in copies_on(schedule, rng, lane):
            yield kept(schedule, index, lane=other, waits=())


def file_written_from_the_device(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """The bounce buffer is left out."""
    for index in copies_on(schedule, rng, Lane.FILE_WRITE):
        (bounce,) = schedule.steps[index].reads
        for step in schedule.steps[:index]:
            if step.writes == (bounce,):
                yield changed(schedule, index, reads=step.reads)


def file_too_small(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    yield replace(schedule, file_nbytes=max(_ends(schedule, Space.FILE)) - 1)


def file_above_its_budget(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    tiers = TierBudgets((HOST, FILE), {FILE: rng.randrange(schedule.file_nbytes)})
    yield replace(schedule, tiers=tiers)


def update_before_a_read_of_the_file(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A parameter is updated while the file may still fail."""
    passes = schedule.graph.passes
    reads = copies_on(schedule, rng, Lane.FILE_READ)
    for index in shuffled(schedule, rng, Action.LAUNCH):
        if passes[schedule.steps[index].pass_index].changes_parameters:
            for read in reads:
                yield moved(schedule, index, read)


def peer_prefetched_without_waiting(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    return _deaf(schedule, rng, Lane.PEER_PREFETCH, Lane.PEER_OFFLOAD)


def peer_overwritten_without_waiting(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    return _deaf(schedule, rng, Lane.PEER_OFFLOAD, Lane.PEER_PREFETCH)


def peer_read_elsewhere(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    return _shifted(schedule, rng, Lane.PEER_PREFETCH, "reads")


def peer_offload_dropped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in copies_on(schedule, rng, Lane.PEER_OFFLOAD):
        yield without(schedule, index)


def peer_copied_on_the_lane_of_the_host(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in copies_on(schedule, rng, Lane.PEER_OFFLOAD):
        yield kept(schedule, index, lane=Lane.OFFLOAD, waits=())


def peer_too_small(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    yield replace(schedule, peer_nbytes=max(_ends(schedule, Space.PEER)) - 1)


def peer_above_its_budget(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    tiers = TierBudgets((PEER, HOST), {PEER: rng.randrange(schedule.peer_nbytes)})
    yield replace(schedule, tiers=tiers)


def _deaf(schedule: Schedule, rng: Random, lane: Lane, other: Lane) -> Iterator[Schedule]:
    """Copies of a lane that wait for no copy of another one."""
    for index in copies_on(schedule, rng, lane):
        waits = schedule.steps[index].waits
        left = tuple(wait for wait in waits if schedule.steps[wait].lane is not other)
        if left != waits:
            yield changed(schedule, index, waits=left)


def _shifted(schedule: Schedule, rng: Random, lane: Lane, field: str) -> Iterator[Schedule]:
    """A copy of a lane whose operand lies at another aligned offset, among `reads` or `writes`."""
    for index in copies_on(schedule, rng, lane):
        operands: tuple[Operand, ...] = getattr(schedule.steps[index], field)
        for delta in (-FILE_ALIGNMENT, FILE_ALIGNMENT):
            offset = operands[0].offset + delta
            size = schedule.sizes[operands[0].space]
            if 0 <= offset <= size - operands[0].nbytes:
                yield changed(schedule, index, **{field: at(operands, 0, offset=offset)})


def _bounce(schedule: Schedule, index: int) -> Operand:
    step = schedule.steps[index]
    return step.reads[0] if step.lane is Lane.FILE_WRITE else step.writes[0]


def _ends(schedule: Schedule, space: Space) -> Iterator[int]:
    for step in schedule.steps:
        yield from (each.end for each in (*step.reads, *step.writes) if each.space is space)
