"""Faults of codes that give the values back: of what they leave out, and of their decoding."""

from collections.abc import Iterator
from dataclasses import replace
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
from tvdnn.graph import BITS, RAW, codec_of
from tvdnn.planner.ir.schedule import Action, Lane, Operand, Schedule


def values_need_not_be_as_a_code_asks(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A pass does not say of its values what a code of them leaves out."""
    graph = schedule.graph
    for index in _encodes(schedule, rng):
        asks = codec_of(schedule.steps[index].writes[0].form).asks
        for lost in [{fact} for fact in sorted(asks, key=lambda fact: fact.value)] + [asks]:
            passes = tuple(
                replace(each, facts=tuple(facts - lost for facts in each.facts))
                for each in graph.passes
            )
            if asks:
                yield replace(schedule, graph=replace(graph, passes=passes))


def sections_share_a_code(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """One recode makes the codes of two sections, or values of them, each of which has its own."""
    for index in shuffled(schedule, rng, Action.RECODE):
        step = schedule.steps[index]
        buffer = schedule.graph.buffers[step.reads[0].buffer]
        stop = min(buffer.rows, step.stop + buffer.section)
        forms = {each.form for each in (*step.reads, *step.writes)} - {RAW}
        if stop > step.stop and all(codec_of(form).by_section for form in forms):
            rows = step.stop - step.start
            reads, writes = (
                tuple(
                    each._replace(stop=stop, nbytes=each.nbytes // rows * (stop - step.start))
                    for each in operands
                )
                for operands in (step.reads, step.writes)
            )
            size = max(each.end for each in (*reads, *writes))
            grown = replace(schedule, arena_nbytes=max(schedule.arena_nbytes, size))
            yield kept(grown, index, stop=stop, reads=reads, writes=writes)


def code_unaligned(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """All codes of values lie one byte farther, residencies too."""
    for index in _encodes(schedule, rng):
        form = schedule.steps[index].writes[0].form
        if codec_of(form).alignment > 1:
            steps = [
                step._replace(
                    reads=tuple(_shifted(each) for each in step.reads),
                    writes=tuple(_shifted(each) for each in step.writes),
                )
                for step in schedule.steps
            ]
            grown = replace(
                schedule,
                arena_nbytes=schedule.arena_nbytes + 1,
                slab_nbytes=schedule.slab_nbytes + 1,
            )
            yield with_waits(rebuilt(grown, steps))


def _shifted(operand: Operand) -> Operand:
    return operand if operand.form == RAW else operand._replace(offset=operand.offset + 1)


def code_decoded_as_another(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode takes its code for another, of as many bytes or of its own, or makes a code."""
    for index in _decodes(schedule, rng):
        step = schedule.steps[index]
        (source, *_), (target,) = step.reads, step.writes
        yield kept(schedule, index, reads=at(step.reads, 0, form=BITS))
        bits = as_form(schedule.graph, source, BITS)
        yield kept(schedule, index, reads=(bits, *step.reads[1:]))
        yield kept(schedule, index, writes=(target._replace(form=source.form),))
        yield kept(schedule, index, writes=(as_form(schedule.graph, target, BITS),))


def decode_of_other_rows(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A recode makes values of the code of other rows, which lies where it says."""
    for index in _decodes(schedule, rng):
        for other in _decodes(schedule, rng):
            mine, theirs = schedule.steps[index].reads, schedule.steps[other].reads
            if mine[0].nbytes == theirs[0].nbytes and index != other:
                reads = tuple(
                    each._replace(offset=it.offset) for each, it in zip(mine, theirs, strict=True)
                )
                yield with_waits(changed(schedule, index, reads=reads))


def decode_before_the_prefetch(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A code is decoded before it is back on the device."""
    for copy in copies_on(schedule, rng, Lane.PREFETCH):
        for index in _decodes(schedule, rng):
            if schedule.steps[copy].writes[0] in schedule.steps[index].reads:
                yield with_waits(moved(schedule, index, copy))


def decode_after_its_reader(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """The values are decoded right behind the launch that reads them."""
    for index in _decodes(schedule, rng):
        (made,) = schedule.steps[index].writes
        for reader, step in enumerate(schedule.steps):
            if reader > index and any(_covers(each, made) for each in step.reads):
                yield with_waits(moved(schedule, index, reader))


def _covers(read: Operand, made: Operand) -> bool:
    """Whether rows that a step reads hold those that another one made."""
    here = read.buffer, read.form, read.space
    rows = read.start <= made.start and made.stop <= read.stop
    return here == (made.buffer, made.form, made.space) and rows


def code_overwritten_by_another_version(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Between code and decode the values are made once more of other bytes, and coded."""
    for index in _encodes(schedule, rng):
        step = schedule.steps[index]
        for name in schedule.graph.buffers:
            raw = next(
                (
                    each
                    for later in schedule.steps[index + 1 :]
                    for each in later.writes
                    if each.buffer == name != step.reads[0].buffer and each.form == RAW
                ),
                None,
            )
            if raw is not None and raw.end - raw.offset >= step.reads[0].nbytes:
                source = step.reads[0]._replace(offset=raw.offset)
                yield with_waits(inserted(schedule, index + 1, step._replace(reads=(source,))))


def _encodes(schedule: Schedule, rng: Random) -> list[int]:
    """The recodes of values to codes that give them back, in random order."""
    return [i for i in _recodes(schedule, rng) if schedule.steps[i].reads[0].form == RAW]


def _decodes(schedule: Schedule, rng: Random) -> list[int]:
    """The recodes of codes to values, in random order."""
    return [i for i in _recodes(schedule, rng) if schedule.steps[i].reads[0].form != RAW]


def _recodes(schedule: Schedule, rng: Random) -> list[int]:
    recodes = shuffled(schedule, rng, Action.RECODE)
    steps = schedule.steps
    return [
        index
        for index in recodes
        if any(
            each.form != RAW and codec_of(each.form).by_section
            for each in (*steps[index].reads, *steps[index].writes)
        )
    ]
