"""Changes of a schedule, and the residencies that its changed steps imply."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from tvdnn.graph import Graph
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


def shuffled(schedule: Schedule, rng: Random, action: Action | None = None) -> list[int]:
    """The steps of an action (all) in random order."""
    found = [i for i, s in enumerate(schedule.steps) if action is None or s.action is action]
    return rng.sample(found, len(found))


def copies_on(schedule: Schedule, rng: Random, lane: Lane) -> list[int]:
    copies = shuffled(schedule, rng, Action.COPY)
    return [index for index in copies if schedule.steps[index].lane is lane]


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
    size = schedule.arena_nbytes if operand.space is Space.ARENA else schedule.slab_nbytes
    for step in (8, -8, operand.nbytes, -operand.nbytes):
        if operand.offset + step >= 0 and operand.end + step <= size:
            yield operand.offset + step
