"""Changes of a schedule, and the residencies that its changed steps imply."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from tvdnn.graph import RAW, Form, Graph, Kind, in_form
from tvdnn.planner.ir.schedule import Action, Lane, Operand, Residency, Schedule, Space, Step


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

    A prefetch, a recode, or a launch that writes the section in this form without reading it or
    adding to it, opens one. Of passes that write channels, the one that writes the first does.
    """
    stays: list[tuple[str, int, int, Form, int, list[int]]] = []
    current: dict[tuple[str, int, int, Form], int] = {}
    for index, step in enumerate(steps):
        for operand in (*step.reads, *step.writes):
            if operand.space is not Space.ARENA:
                continue
            opens = operand in step.writes and _writes_anew(graph, step, operand)
            section = graph.buffers[operand.buffer].section
            for key in _sections(graph, operand):
                from_its_first_row = key[1] * section >= operand.start
                if (opens and from_its_first_row) or key not in current:
                    current[key] = len(stays)
                    stays.append((*key, _nbytes(graph, operand, key[1]), []))
                steps_of = stays[current[key]][5]
                steps_of += [] if index in steps_of else [index]
    return tuple(
        Residency(name, section, at, nbytes, tuple(users), form)
        for name, section, at, form, nbytes, users in stays
    )


def _writes_anew(graph: Graph, step: Step, operand: Operand) -> bool:
    """Whether an operand that a step writes owes nothing to the bytes before."""
    here = ((each.buffer, each.form) for each in step.reads if each.space is Space.ARENA)
    if step.action is Action.LAUNCH:
        pass_ = graph.passes[step.pass_index]
        uses = (use for use in pass_.writes if use.buffer == operand.buffer)
        if (pass_.reduction and step.start > 0) or any(u.channels and u.channels[0] for u in uses):
            return False
    return (operand.buffer, operand.form) not in here


def _nbytes(graph: Graph, operand: Operand, section: int) -> int:
    """The bytes of an operand's section. The only section of sums may have fewer rows."""
    buffer = in_form(graph.buffers[operand.buffer], operand.form)
    if buffer.kind is Kind.PARTIAL and buffer.num_sections == 1:
        return operand.nbytes
    return buffer.section_nbytes(section)


def _sections(graph: Graph, operand: Operand) -> Iterator[tuple[str, int, int, Form]]:
    """Buffer, section, address and form of the sections of an operand."""
    buffer = in_form(graph.buffers[operand.buffer], operand.form)
    for section in buffer.sections_of(operand.start, operand.stop):
        rows = section * buffer.section - operand.start
        yield operand.buffer, section, operand.offset + rows * buffer.row_nbytes, operand.form


def shuffled(schedule: Schedule, rng: Random, action: Action | None = None) -> list[int]:
    """The steps of an action (all) in random order."""
    found = [i for i, s in enumerate(schedule.steps) if action is None or s.action is action]
    return rng.sample(found, len(found))


def copies_on(schedule: Schedule, rng: Random, lane: Lane) -> list[int]:
    copies = shuffled(schedule, rng, Action.COPY)
    return [index for index in copies if schedule.steps[index].lane is lane]


def coded(
    schedule: Schedule, rng: Random, field: str, action: Action | None = None
) -> Iterator[tuple[int, int, Operand]]:
    """Step, number and operand of codes among the `reads` or the `writes` of an action (all)."""
    for index in shuffled(schedule, rng, action):
        operands: tuple[Operand, ...] = getattr(schedule.steps[index], field)
        for number, operand in enumerate(operands):
            if operand.form != RAW:
                yield index, number, operand


def stays_of_codes(schedule: Schedule, rng: Random) -> list[int]:
    """The residencies of codes in random order."""
    found = [n for n, stay in enumerate(schedule.residencies) if stay.form != RAW]
    return rng.sample(found, len(found))


def as_form(graph: Graph, operand: Operand, form: Form) -> Operand:
    """The rows of an operand in a form, at the same offset."""
    row_nbytes = in_form(graph.buffers[operand.buffer], form).row_nbytes
    return operand._replace(form=form, nbytes=(operand.stop - operand.start) * row_nbytes)


def replaced(schedule: Schedule, old: Operand, new: Operand) -> Schedule:
    """The schedule with another operand wherever a step uses `old`."""
    steps = [
        step._replace(
            reads=tuple(new if each == old else each for each in step.reads),
            writes=tuple(new if each == old else each for each in step.writes),
        )
        for step in schedule.steps
    ]
    return rebuilt(schedule, steps)


def codes_shifted(schedule: Schedule, name: str, delta: int) -> Schedule:
    """The codes of a map lie `delta` bytes farther, where that is in the arena."""

    def shifted(operand: Operand) -> Operand:
        offset = operand.offset + delta
        named = operand.buffer == name and operand.form != RAW and operand.space is Space.ARENA
        fits = 0 <= offset <= schedule.arena_nbytes - operand.nbytes
        return operand._replace(offset=offset) if named and fits else operand

    steps = [
        step._replace(
            reads=tuple(map(shifted, step.reads)), writes=tuple(map(shifted, step.writes))
        )
        for step in schedule.steps
    ]
    return rebuilt(schedule, steps)


def up_to(graph: Graph, operand: Operand, stop: int) -> Operand:
    """The rows of an operand before row `stop`."""
    return as_form(graph, operand._replace(stop=stop), operand.form)


def ending_at(schedule: Schedule, index: int, stop: int) -> Schedule:
    """The schedule with the rows of one copy or recode from `stop` on left out."""
    step = schedule.steps[index]
    source, target = (up_to(schedule.graph, each, stop) for each in (*step.reads, *step.writes))
    return changed(schedule, index, stop=stop, reads=(source,), writes=(target,))


def written(schedule: Schedule, operand: Operand, form: Form, index: int) -> Operand | None:
    """An operand's rows in a form, where a step before step `index` wrote these in the arena."""
    for step in reversed(schedule.steps[:index]):
        for made in step.writes:
            named = (made.buffer, made.form, made.space) == (operand.buffer, form, Space.ARENA)
            if named and made.start <= operand.start and operand.stop <= made.stop:
                row_nbytes = made.nbytes // (made.stop - made.start)
                rows = operand.start, operand.stop
                offset = made.offset + (rows[0] - made.start) * row_nbytes
                nbytes = (rows[1] - rows[0]) * row_nbytes
                return Operand(made.buffer, *rows, Space.ARENA, offset, nbytes, form)
    return None


def like(graph: Graph, name: str) -> list[str]:
    """The other buffers of the same shape, type and sections."""
    one = graph.buffers[name]
    same = replace(one, name="", kind=Kind.MAP)
    others = (each for each in graph.buffers.values() if each is not one)
    return [each.name for each in others if replace(each, name="", kind=Kind.MAP) == same]


def changed(schedule: Schedule, index: int, **changes: object) -> Schedule:
    """The schedule with fields of one step changed."""
    steps = list(schedule.steps)
    steps[index] = steps[index]._replace(**changes)
    return rebuilt(schedule, steps)


def kept(schedule: Schedule, index: int, **changes: object) -> Schedule:
    """As `changed`, with residencies left alone, for steps that are not well formed."""
    steps = list(schedule.steps)
    steps[index] = steps[index]._replace(**changes)
    return replace(schedule, steps=tuple(steps))


def reordered(schedule: Schedule, order: Sequence[int]) -> Schedule:
    """The steps of `order` alone, in that order; waits that no longer name an earlier step go."""
    place = {old: new for new, old in enumerate(order)}
    steps = []
    for new, old in enumerate(order):
        waits = (place[wait] for wait in schedule.steps[old].waits if wait in place)
        kept = tuple(sorted(wait for wait in waits if wait < new))
        steps.append(schedule.steps[old]._replace(waits=kept))
    cut = sum(old < schedule.phase_split for old in order)
    return rebuilt(schedule, steps, cut)


def exchanged(schedule: Schedule, first: int, second: int) -> Schedule:
    """Two steps at each other's place."""
    order = list(range(len(schedule.steps)))
    order[first], order[second] = second, first
    return reordered(schedule, order)


def without(schedule: Schedule, *gone: int) -> Schedule:
    return reordered(schedule, [i for i in range(len(schedule.steps)) if i not in gone])


def inserted(schedule: Schedule, place: int, step: Step) -> Schedule:
    """The schedule with one more step at a place."""
    later = [
        each._replace(waits=tuple(wait + (wait >= place) for wait in each.waits))
        for each in schedule.steps[place:]
    ]
    cut = schedule.phase_split + (place <= schedule.phase_split)
    return rebuilt(schedule, (*schedule.steps[:place], step, *later), cut)


def without_waits_on(schedule: Schedule, index: int) -> Schedule:
    """The schedule in which no step waits for step `index`."""
    steps = [s._replace(waits=tuple(w for w in s.waits if w != index)) for s in schedule.steps]
    return rebuilt(schedule, steps)


def moved(schedule: Schedule, index: int, to: int) -> Schedule:
    """Step `index` at place `to` of those that remain."""
    order = [i for i in range(len(schedule.steps)) if i != index]
    order.insert(to, index)
    return reordered(schedule, order)


def at(operands: tuple[Operand, ...], number: int, **changes: object) -> tuple[Operand, ...]:
    """`operands` with fields of one changed."""
    changed = operands[number]._replace(**changes)
    return (*operands[:number], changed, *operands[number + 1 :])


def shifts(schedule: Schedule, operand: Operand) -> Iterator[int]:
    """Offsets near an operand's own at which it still fits its space and its type."""
    size = schedule.sizes[operand.space]
    for step in (8, -8, operand.nbytes, -operand.nbytes):
        if operand.offset + step >= 0 and operand.end + step <= size:
            yield operand.offset + step
