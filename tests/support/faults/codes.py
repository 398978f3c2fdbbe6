"""Faults of codes: read and left in a form, at a place or at a time that is not theirs."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from random import Random

from tests.support.faults.changes import (
    as_form,
    at,
    changed,
    coded,
    codes_shifted,
    copies_on,
    kept,
    like,
    moved,
    shuffled,
    stays_of_codes,
    up_to,
    without_waits_on,
    written,
)
from tests.support.schedules.order import with_waits
from tvdnn.graph import BITS, RAW, Form, Need, may_rest_in
from tvdnn.planner.ir.schedule import Action, Lane, Operand, Schedule, Space

# Reads


def code_named_raw(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch is given a code as raw rows, of as many bytes or of those that raw rows take."""
    for index, number, operand in coded(schedule, rng, "reads", Action.LAUNCH):
        reads = schedule.steps[index].reads
        yield kept(schedule, index, reads=at(reads, number, form=RAW))
        raw = as_form(schedule.graph, operand, RAW)
        grown = replace(schedule, arena_nbytes=max(schedule.arena_nbytes, raw.end))
        yield changed(grown, index, reads=at(reads, number, **raw._asdict()))


def raw_named_code(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch is given raw rows as a code, of as many bytes or of those that the code takes."""
    for index in shuffled(schedule, rng, Action.LAUNCH):
        step = schedule.steps[index]
        for number, use in enumerate(schedule.graph.passes[step.pass_index].reads):
            operand = step.reads[number]
            if operand.form == RAW and may_rest_in(schedule.graph.buffers[use.buffer], BITS):
                yield kept(schedule, index, reads=at(step.reads, number, form=BITS))
                code = as_form(schedule.graph, operand, BITS)
                yield changed(schedule, index, reads=at(step.reads, number, **code._asdict()))


def code_read_for_values(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch that needs values reads the code of the same rows."""
    for index in shuffled(schedule, rng, Action.LAUNCH):
        step = schedule.steps[index]
        for number, use in enumerate(schedule.graph.passes[step.pass_index].reads):
            code = written(schedule, step.reads[number], BITS, index)
            if code is not None and not use.forms:
                reads = at(step.reads, number, **code._asdict())
                yield with_waits(changed(schedule, index, reads=reads))


def code_lacks_what_its_use_needs(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A pass needs more than signs. Its launches read signs all the same."""
    graph = schedule.graph
    for index, number, _ in coded(schedule, rng, "reads", Action.LAUNCH):
        changed_pass = schedule.steps[index].pass_index
        for need in (Need.VALUES, Need.ARGMAX):
            passes = list(graph.passes)
            reads = list(passes[changed_pass].reads)
            reads[number] = replace(reads[number], need=need)
            passes[changed_pass] = replace(passes[changed_pass], reads=tuple(reads))
            yield replace(schedule, graph=replace(graph, passes=tuple(passes)))


def form_of_no_codec(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for field in ("reads", "writes"):
        for index, number, _ in coded(schedule, rng, field):
            operands = getattr(schedule.steps[index], field)
            yield kept(schedule, index, **{field: at(operands, number, form=Form("zip"))})


def code_read_in_part(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch reads the first half of its rows of a code."""
    for index, number, operand in coded(schedule, rng, "reads", Action.LAUNCH):
        half = up_to(schedule.graph, operand, (operand.start + operand.stop) // 2)
        if half.nbytes:
            reads = at(schedule.steps[index].reads, number, **half._asdict())
            yield kept(schedule, index, reads=reads)


def code_read_where_raw_rows_lie(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch reads a code at the place of the same raw rows."""
    for index, number, operand in coded(schedule, rng, "reads", Action.LAUNCH):
        raw = written(schedule, operand, RAW, index)
        if raw is not None:
            reads = at(schedule.steps[index].reads, number, offset=raw.offset)
            yield with_waits(changed(schedule, index, reads=reads))


def code_of_another_buffer(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch or an offload reads where another map's code lies, with that map's name or not."""
    stays = [schedule.residencies[number] for number in stays_of_codes(schedule, rng)]
    for index, number, operand in coded(schedule, rng, "reads"):
        for stay in stays if operand.space is Space.ARENA else ():
            fits = stay.offset + operand.nbytes <= schedule.arena_nbytes
            if stay.buffer != operand.buffer and fits:
                reads = at(schedule.steps[index].reads, number, offset=stay.offset)
                yield with_waits(changed(schedule, index, reads=reads))
                reads = at(reads, number, buffer=stay.buffer)
                yield kept(schedule, index, reads=reads)


# Launches that leave codes


def code_left_by_a_pass_that_leaves_none(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch leaves the code of its map in bytes that nothing else touches."""
    for index in shuffled(schedule, rng, Action.LAUNCH):
        step = schedule.steps[index]
        uses = schedule.graph.passes[step.pass_index].writes
        for use, operand in zip(uses, step.writes, strict=False):
            if not use.also and may_rest_in(schedule.graph.buffers[use.buffer], BITS):
                yield _with_code_left(schedule, index, as_form(schedule.graph, operand, BITS))


def code_left_twice(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index, _, operand in coded(schedule, rng, "writes", Action.LAUNCH):
        yield _with_code_left(schedule, index, operand)


def code_left_of_a_map_that_is_not_written(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index, number, operand in coded(schedule, rng, "writes", Action.LAUNCH):
        for name in like(schedule.graph, operand.buffer):
            writes = at(schedule.steps[index].writes, number, buffer=name)
            yield changed(schedule, index, writes=writes)


def _with_code_left(schedule: Schedule, index: int, code: Operand) -> Schedule:
    """The schedule with one more code behind the arena, which launch `index` leaves."""
    end = schedule.arena_nbytes + -schedule.arena_nbytes % 16
    writes = (*schedule.steps[index].writes, code._replace(offset=end))
    return changed(replace(schedule, arena_nbytes=end + code.nbytes), index, writes=writes)


def code_rows_wrong(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch reads or leaves a code as that of the rows before or behind."""
    for field in ("reads", "writes"):
        for index, number, operand in coded(schedule, rng, field):
            buffer = schedule.graph.buffers[operand.buffer]
            for by in (operand.start - operand.stop, operand.stop - operand.start):
                rows = {"start": operand.start + by, "stop": operand.stop + by}
                if rows["start"] >= 0 and rows["stop"] <= buffer.rows:
                    operands = at(getattr(schedule.steps[index], field), number, **rows)
                    yield kept(schedule, index, **{field: operands})


def code_left_in_part(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch leaves the code of the first half of its rows."""
    for index, number, operand in coded(schedule, rng, "writes", Action.LAUNCH):
        half = up_to(schedule.graph, operand, (operand.start + operand.stop) // 2)
        if half.nbytes:
            writes = at(schedule.steps[index].writes, number, **half._asdict())
            yield kept(schedule, index, writes=writes)


def codes_left_in_another_order(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng, Action.LAUNCH):
        step = schedule.steps[index]
        count = len(schedule.graph.passes[step.pass_index].writes)
        if len(step.writes) > count + 1:
            writes = (*step.writes[:count], *reversed(step.writes[count:]))
            yield changed(schedule, index, writes=writes)


def code_left_over_what_is_read(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch leaves a code over rows that it reads or writes."""
    for index, number, _ in coded(schedule, rng, "writes", Action.LAUNCH):
        step = schedule.steps[index]
        for other in (*step.reads, *step.writes[:number]):
            writes = at(step.writes, number, offset=other.offset)
            yield with_waits(changed(schedule, index, writes=writes))


def code_not_left(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch leaves no code, and later steps read its place all the same."""
    for index, number, _ in coded(schedule, rng, "writes", Action.LAUNCH):
        yield _with_code_not_left(schedule, index, number)


def _with_code_not_left(schedule: Schedule, index: int, number: int) -> Schedule:
    writes = schedule.steps[index].writes
    return changed(schedule, index, writes=(*writes[:number], *writes[number + 1 :]))


def code_left_of_an_earlier_version(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """An earlier launch that writes the map leaves the code, not the last."""
    for index, number, operand in coded(schedule, rng, "writes", Action.LAUNCH):
        fewer = _with_code_not_left(schedule, index, number)
        raw = as_form(schedule.graph, operand._replace(offset=0), RAW)
        for other, step in enumerate(schedule.steps[:index]):
            if raw in (each._replace(offset=0) for each in step.writes):
                yield with_waits(changed(fewer, other, writes=(*step.writes, operand)))


# Places and order


def code_offset_moved(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A code is read or written a few bytes from its place."""
    for field in ("reads", "writes"):
        for index, number, operand in coded(schedule, rng, field):
            size = schedule.arena_nbytes if operand.space is Space.ARENA else schedule.slab_nbytes
            for step in (1, -1, 2, -2, operand.nbytes, -operand.nbytes):
                offset = operand.offset + step
                if 0 <= offset <= size - operand.nbytes:
                    operands = at(getattr(schedule.steps[index], field), number, offset=offset)
                    yield with_waits(changed(schedule, index, **{field: operands}))


def codes_exchanged(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Two codes of one size are written each to the other's place."""
    for first, second in combinations(list(coded(schedule, rng, "writes"))[:12], 2):
        (one, i, here), (two, k, there) = first, second
        same = here.space is there.space and here.nbytes == there.nbytes
        if same and one != two and here.offset != there.offset:
            writes = at(schedule.steps[one].writes, i, offset=there.offset)
            crossed = changed(schedule, one, writes=writes)
            writes = at(schedule.steps[two].writes, k, offset=here.offset)
            yield with_waits(changed(crossed, two, writes=writes))


def code_overlaps_a_section(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A code lies within another section, and both are on the device at one time."""
    stays = schedule.residencies
    for number in stays_of_codes(schedule, rng):
        code = stays[number]
        for other in rng.sample(stays, min(20, len(stays))):
            if other.form == RAW:
                yield with_waits(codes_shifted(schedule, code.buffer, other.offset - code.offset))


def code_read_before_it_is_made(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """The step that makes a code runs right behind one that reads it."""
    for index, _, operand in coded(schedule, rng, "writes"):
        if operand.space is Space.ARENA:
            for reader, _, read in coded(schedule, rng, "reads"):
                if reader > index and _meet(read, operand):
                    yield moved(schedule, index, reader)


def _meet(one: Operand, other: Operand) -> bool:
    """Whether two operands are rows in common of a buffer, in the same space and form."""
    same = all(getattr(one, each) == getattr(other, each) for each in ("buffer", "space", "form"))
    return same and one.start < other.stop and other.start < one.stop


def code_read_without_waiting(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Nothing waits for a prefetch of a code."""
    for copy in copies_on(schedule, rng, Lane.PREFETCH):
        if schedule.steps[copy].writes[0].form != RAW:
            yield without_waits_on(schedule, copy)


def code_offloaded_without_waiting(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """The offload of a code waits for nothing."""
    for copy in copies_on(schedule, rng, Lane.OFFLOAD):
        if schedule.steps[copy].reads[0].form != RAW:
            yield changed(schedule, copy, waits=())
