"""Faults of packed codes: of their heads' capacity, of their tails, and of their counts."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from random import Random

from tests.support.faults.changes import (
    as_form,
    at,
    changed,
    copies_on,
    inserted,
    kept,
    moved,
    rebuilt,
    shuffled,
)
from tests.support.schedules.order import with_waits
from tvdnn.graph import RAW, is_packed
from tvdnn.planner.ir.schedule import Action, Lane, Operand, Schedule, Space

PARTS = ("reads", "writes")


def tail_dropped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index, field, _ in _tails(schedule, rng):
        yield kept(schedule, index, **{field: getattr(schedule.steps[index], field)[:1]})


def tail_twice(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index, field, tail in _tails(schedule, rng):
        operands = getattr(schedule.steps[index], field)
        yield kept(schedule, index, **{field: (*operands, tail)})


def tail_in_the_place_of_the_head(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index, field, _ in _tails(schedule, rng):
        operands = getattr(schedule.steps[index], field)
        yield kept(schedule, index, **{field: operands[::-1]})


def tail_in_the_arena(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A tail lies behind all else on the device."""
    for index, field, tail in _tails(schedule, rng):
        moved_there = tail._replace(space=Space.ARENA, offset=schedule.arena_nbytes)
        grown = replace(schedule, arena_nbytes=moved_there.end)
        operands = at(getattr(schedule.steps[index], field), 1, **moved_there._asdict())
        yield changed(grown, index, **{field: operands})


def tail_of_other_rows(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode names the rows behind its own for its tail."""
    for index, field, tail in _tails(schedule, rng):
        rows = schedule.graph.buffers[tail.buffer].rows
        count = tail.stop - tail.start
        if tail.stop + count <= rows:
            shifted = {"start": tail.start + count, "stop": tail.stop + count}
            operands = at(getattr(schedule.steps[index], field), 1, **shifted)
            yield kept(schedule, index, **{field: operands})


def tail_too_short(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A tail has room for one value less than there may be."""
    for index, field, tail in _tails(schedule, rng):
        operands = at(getattr(schedule.steps[index], field), 1, nbytes=tail.nbytes - 2)
        yield kept(schedule, index, **{field: operands})


def tail_copied(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A copy moves a tail to the device or back, to bytes behind all else."""
    for index, _, tail in _tails(schedule, rng):
        there = tail._replace(space=Space.ARENA, offset=schedule.arena_nbytes)
        grown = replace(schedule, arena_nbytes=there.end)
        for copy in copies_on(schedule, rng, Lane.PREFETCH)[:1]:
            step = schedule.steps[copy]._replace(
                start=tail.start, stop=tail.stop, reads=(tail,), writes=(there,), waits=()
            )
            yield with_waits(inserted(grown, index + 1, step))


def capacity_changed_on_the_way(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """An encode or a decode takes the head for one with room for one 256th less, or more."""
    for index in _recodes(schedule, rng):
        step = schedule.steps[index]
        field = "writes" if step.reads[0].form == RAW else "reads"
        head = getattr(step, field)[0]
        for share in (head.form.share - 1, head.form.share + 1):
            form = head.form._replace(share=share)
            operands = getattr(step, field)
            yield kept(schedule, index, **{field: at(operands, 0, form=form)})
            other = as_form(schedule.graph, head, form)
            yield kept(schedule, index, **{field: at(operands, 0, **other._asdict())})


def codec_changed_on_the_way(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A decode takes its head and its tail for those of another codec, of as many bytes."""
    for index in _recodes(schedule, rng):
        step = schedule.steps[index]
        if step.reads[0].form != RAW:
            others = {"bitmap": "ssdc", "ssdc": "bitmap"}
            reads = tuple(
                each._replace(form=each.form._replace(codec=others[each.form.codec]))
                for each in step.reads
            )
            yield kept(schedule, index, reads=reads)


def count_missing(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _encodes(schedule, rng):
        for word in (-1, -2, schedule.num_counts):
            yield kept(schedule, index, count_word=word)


def count_shared(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Two codes are counted in one word."""
    for one, other in combinations(_encodes(schedule, rng), 2):
        yield kept(schedule, one, count_word=schedule.steps[other].count_word)


def count_of_no_code(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch, a copy or a decode counts, in a word of its own."""
    grown = replace(schedule, num_counts=schedule.num_counts + 1)
    encodes = _encodes(schedule, rng)
    for index in shuffled(schedule, rng):
        if index not in encodes:
            yield kept(grown, index, count_word=schedule.num_counts)


def words_over_budget(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Only the words of counts exceed the budget."""
    yield replace(schedule, budget_nbytes=schedule.graph.fixed_nbytes + schedule.arena_nbytes)


# Harm at other places and times


def tails_exchanged(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Two encodes write each to the place of the other's tail."""
    for (one, _, mine), (two, _, theirs) in combinations(_tails(schedule, rng, "writes"), 2):
        if mine.nbytes == theirs.nbytes and mine.offset != theirs.offset:
            writes = at(schedule.steps[one].writes, 1, offset=theirs.offset)
            crossed = changed(schedule, one, writes=writes)
            writes = at(schedule.steps[two].writes, 1, offset=mine.offset)
            yield with_waits(changed(crossed, two, writes=writes))


def tail_moved(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode finds or leaves its tail a few bytes from its place."""
    for index, field, tail in _tails(schedule, rng):
        for delta in (16, -16, tail.nbytes, -tail.nbytes):
            offset = tail.offset + delta
            if 0 <= offset <= schedule.slab_nbytes - tail.nbytes:
                operands = at(getattr(schedule.steps[index], field), 1, offset=offset)
                yield with_waits(changed(schedule, index, **{field: operands}))


def tail_reused_early(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A copy to the host and back lies over a tail that is still to be read."""
    for copy in copies_on(schedule, rng, Lane.OFFLOAD):
        (there,) = schedule.steps[copy].writes
        for _, _, tail in _tails(schedule, rng, "writes"):
            offset = tail.offset
            if offset + there.nbytes <= schedule.slab_nbytes:
                steps = [
                    step._replace(
                        reads=_with(step.reads, there, offset),
                        writes=_with(step.writes, there, offset),
                    )
                    for step in schedule.steps
                ]
                yield with_waits(rebuilt(schedule, steps))


def tails_overlap(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """All recodes of one code have its tail where that of another code is."""
    for (_, _, mine), (_, _, theirs) in combinations(_tails(schedule, rng, "writes"), 2):
        if theirs.offset + mine.nbytes <= schedule.slab_nbytes:
            steps = [
                step._replace(
                    reads=_with(step.reads, mine, theirs.offset),
                    writes=_with(step.writes, mine, theirs.offset),
                )
                for step in schedule.steps
            ]
            yield with_waits(rebuilt(schedule, steps))


def code_packed_twice(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """The same values are packed once more, to the same head but to another tail, or to another
    head but to the same tail."""
    for index in _encodes(schedule, rng):
        step = schedule.steps[index]
        for number, space in ((1, Space.SLAB), (0, Space.ARENA)):
            if len(step.writes) > 1:
                size = schedule.slab_nbytes if space is Space.SLAB else schedule.arena_nbytes
                end = -(-size // 16) * 16
                writes = at(step.writes, number, offset=end)
                grown = replace(
                    schedule,
                    num_counts=schedule.num_counts + 1,
                    slab_nbytes=max(schedule.slab_nbytes, writes[1].end),
                    arena_nbytes=max(schedule.arena_nbytes, writes[0].end),
                )
                again = step._replace(writes=writes, count_word=schedule.num_counts)
                yield with_waits(inserted(grown, index + 1, again))


def decode_before_encode(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in _recodes(schedule, rng):
        for other in _encodes(schedule, rng):
            step, before = schedule.steps[index], schedule.steps[other]
            if step.writes[0].form == RAW and before.start == step.start:
                yield with_waits(moved(schedule, index, other))


def _with(operands: tuple[Operand, ...], old: Operand, offset: int) -> tuple[Operand, ...]:
    return tuple(each._replace(offset=offset) if each == old else each for each in operands)


def _tails(schedule: Schedule, rng: Random, *fields: str) -> list[tuple[int, str, Operand]]:
    """Step, "reads" or "writes", and tail, in random order."""
    return [
        (index, field, operand)
        for index in shuffled(schedule, rng, Action.RECODE)
        for field in fields or PARTS
        for operand in getattr(schedule.steps[index], field)
        if operand.form.tail
    ]


def _encodes(schedule: Schedule, rng: Random) -> list[int]:
    """The recodes to packed codes in random order."""
    return [i for i in _recodes(schedule, rng) if schedule.steps[i].reads[0].form == RAW]


def _recodes(schedule: Schedule, rng: Random) -> list[int]:
    """The recodes to and from packed codes in random order."""
    steps = schedule.steps
    return [
        index
        for index in shuffled(schedule, rng, Action.RECODE)
        if is_packed(steps[index].reads[0].form) or is_packed(steps[index].writes[0].form)
    ]
