"""Faults of recodes: of other rows, forms and places than their own, lost and out of order."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tests.support.faults.changes import (
    as_form,
    at,
    changed,
    codes_shifted,
    copies_on,
    ending_at,
    inserted,
    kept,
    like,
    moved,
    shuffled,
    without,
    written,
)
from tests.support.schedules.order import with_waits
from tvdnn.graph import BITS, RAW, may_rest_in
from tvdnn.planner.ir.schedule import Action, Lane, Operand, Schedule, Space, Step


def recode_dropped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng, Action.RECODE):
        yield with_waits(without(schedule, index))


def recode_forms_wrong(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode makes raw rows, takes a code, or does both, in the bytes of the right forms."""
    for index in _encodes(schedule, rng):
        step = schedule.steps[index]
        source, target = at(step.reads, 0, form=BITS), at(step.writes, 0, form=RAW)
        yield kept(schedule, index, reads=source)
        yield kept(schedule, index, writes=target)
        yield kept(schedule, index, reads=source, writes=target)


def recode_to_the_same_form(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """One more recode copies raw rows to bytes behind the arena, or one copies a code in place."""
    for index in shuffled(schedule, rng, Action.RECODE):
        step, end = schedule.steps[index], schedule.arena_nbytes
        grown = replace(schedule, arena_nbytes=end + step.reads[0].nbytes)
        (source,) = step.reads
        yield inserted(grown, index, _recode(source, source._replace(offset=end)))
        yield changed(schedule, index, reads=step.writes)


def recode_backwards(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng, Action.RECODE):
        step = schedule.steps[index]
        yield with_waits(changed(schedule, index, reads=step.writes, writes=step.reads))


def recode_in_place(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode writes the code over the raw rows that it reads."""
    for index in _encodes(schedule, rng):
        (source,), (target,) = schedule.steps[index].reads, schedule.steps[index].writes
        for offset in (source.offset, source.end - target.nbytes):
            shift = offset - target.offset
            yield with_waits(codes_shifted(schedule, target.buffer, shift))


def recode_on_a_copy_lane(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng, Action.RECODE):
        for lane in (Lane.OFFLOAD, Lane.PREFETCH):
            yield with_waits(changed(schedule, index, lane=lane))


def recode_to_the_host(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode reads the slab or writes there, in bytes that nothing else touches."""
    for index in shuffled(schedule, rng, Action.RECODE):
        step, end = schedule.steps[index], schedule.slab_nbytes
        for field in ("reads", "writes"):
            operand = getattr(step, field)[0]._replace(space=Space.SLAB, offset=end)
            grown = replace(schedule, slab_nbytes=operand.end)
            yield with_waits(changed(grown, index, **{field: (operand,)}))


def recode_in_the_place_of_an_offload(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode writes the code on the host that an offload took there."""
    for index in copies_on(schedule, rng, Lane.OFFLOAD):
        (target,) = schedule.steps[index].writes
        raw = written(schedule, target, RAW, index)
        if target.form != RAW and raw is not None:
            yield with_waits(changed(schedule, index, **_recode(raw, target)._asdict()))


def recode_of_a_section_on_the_host(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Behind an offload of raw rows, a recode makes the code once more by the rows on the host."""
    for index in copies_on(schedule, rng, Lane.OFFLOAD):
        (source,) = schedule.steps[index].writes
        code = written(schedule, source, BITS, index)
        if source.form == RAW and code is not None:
            yield with_waits(inserted(schedule, index + 1, _recode(source, code)))


def recode_of_other_rows(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode makes the code of rows by the raw rows beside them."""
    for index in shuffled(schedule, rng, Action.RECODE):
        step = schedule.steps[index]
        (source,), buffer = step.reads, schedule.graph.buffers[step.reads[0].buffer]
        for rows in (buffer.section, -buffer.section):
            start, stop = source.start + rows, source.stop + rows
            if start >= 0 and stop <= buffer.rows:
                offset = source.offset + rows * buffer.row_nbytes
                reads = at(step.reads, 0, start=start, stop=stop, offset=offset)
                yield kept(schedule, index, reads=reads)
                yield with_waits(changed(schedule, index, reads=reads, start=start, stop=stop))
                yield kept(schedule, index, reads=at(step.reads, 0, start=start, stop=stop))


def recode_range_wrong(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """The range of a recode differs from the rows of its operands."""
    for index in shuffled(schedule, rng, Action.RECODE):
        step = schedule.steps[index]
        yield kept(schedule, index, stop=step.stop + 1)
        yield kept(schedule, index, start=step.start - 1)
        yield kept(schedule, index, stop=step.start)


def recode_of_another_buffer(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """The source or the destination of a recode has the name of another map of its shape."""
    for index in shuffled(schedule, rng, Action.RECODE):
        step = schedule.steps[index]
        for name in like(schedule.graph, step.reads[0].buffer):
            yield kept(schedule, index, reads=at(step.reads, 0, buffer=name))
            yield kept(schedule, index, writes=at(step.writes, 0, buffer=name))


def recode_cut_short(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode leaves out its last row, or its last section, with operands to match."""
    for index in shuffled(schedule, rng, Action.RECODE):
        step = schedule.steps[index]
        section = schedule.graph.buffers[step.reads[0].buffer].section
        for stop in (step.stop - 1, (step.stop - 1) // section * section):
            if stop > step.start:
                yield ending_at(schedule, index, stop)


def recode_cuts_a_section(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Two recodes make the code of a section, each of some rows."""
    for index in shuffled(schedule, rng, Action.RECODE):
        step = schedule.steps[index]
        cut = step.start + 1
        if cut % schedule.graph.buffers[step.reads[0].buffer].section and cut < step.stop:
            source, target = (
                _behind(each, cut - step.start) for each in (*step.reads, *step.writes)
            )
            later = inserted(schedule, index + 1, _recode(source, target))
            yield with_waits(ending_at(later, index, cut))


def _behind(operand: Operand, rows: int) -> Operand:
    """The operand without its first rows."""
    nbytes = operand.nbytes // (operand.stop - operand.start) * rows
    return operand._replace(
        start=operand.start + rows, offset=operand.offset + nbytes, nbytes=operand.nbytes - nbytes
    )


def recode_too_late(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode runs when its code has been read, or when others have its raw rows' bytes."""
    for index in shuffled(schedule, rng, Action.RECODE):
        for place in _some(range(index + 1, len(schedule.steps)), rng):
            yield _moved(schedule, index, place)


def recode_too_early(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode runs when its map is not written yet, or is not written for the last time."""
    for index in shuffled(schedule, rng, Action.RECODE):
        for place in _some(range(index), rng):
            yield _moved(schedule, index, place)


def _moved(schedule: Schedule, index: int, to: int) -> Schedule:
    """As `moved`, in the half of its new place, with the waits that it needs there."""
    split = schedule.phase_split
    split += (to < split <= index) - (index < split <= to)
    return with_waits(replace(moved(schedule, index, to), phase_split=split))


def _some(places: range, rng: Random) -> list[int]:
    return rng.sample(places, min(12, len(places)))


def recode_is_no_recode(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode is called a copy or a launch."""
    for index in shuffled(schedule, rng, Action.RECODE):
        yield kept(schedule, index, action=Action.COPY)
        yield kept(schedule, index, action=Action.LAUNCH)
        yield kept(schedule, index, action=Action.LAUNCH, pass_index=0)


def recode_of_several_operands(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode has two sources, two destinations, or none."""
    for index in shuffled(schedule, rng, Action.RECODE):
        step = schedule.steps[index]
        for field in ("reads", "writes"):
            operands: tuple[Operand, ...] = getattr(step, field)
            yield kept(schedule, index, **{field: operands * 2})
            yield kept(schedule, index, **{field: ()})


def recode_of_a_map_without_codes(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Raw rows that a launch has written are recoded to a form that does not fit their buffer."""
    buffers, end = schedule.graph.buffers, schedule.arena_nbytes
    for index in shuffled(schedule, rng, Action.LAUNCH):
        for source in schedule.steps[index].writes:
            if source.form == RAW and not may_rest_in(buffers[source.buffer], BITS):
                code = as_form(schedule.graph, source, BITS)._replace(offset=end)
                grown = replace(schedule, arena_nbytes=end + code.nbytes)
                yield inserted(grown, index + 1, _recode(source, code))


def values_from_a_code(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode of a code makes the raw rows that a prefetch brought."""
    for index in copies_on(schedule, rng, Lane.PREFETCH):
        (target,) = schedule.steps[index].writes
        source = written(schedule, target, BITS, index)
        if source is not None and target.form == RAW:
            yield with_waits(changed(schedule, index, **_recode(source, target)._asdict()))


def _encodes(schedule: Schedule, rng: Random) -> list[int]:
    """The recodes of raw rows in random order."""
    recodes = shuffled(schedule, rng, Action.RECODE)
    return [index for index in recodes if schedule.steps[index].reads[0].form == RAW]


def _recode(source: Operand, target: Operand) -> Step:
    rows = source.start, source.stop
    return Step(Lane.COMPUTE, Action.RECODE, 0, -1, *rows, (source,), (target,))
