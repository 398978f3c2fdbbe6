"""Faults of form: steps, residencies and sizes that no schedule may hold."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from tests.support.faults.changes import at, changed, kept, shuffled
from tvdnn.graph import Graph, Use, in_form
from tvdnn.planner.ir.schedule import Action, Lane, Operand, Schedule, Space, Step


def rows_wrong(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch works on the rows beside those that its range names."""
    for index in shuffled(schedule, rng, Action.LAUNCH):
        reads = schedule.steps[index].reads
        for number, operand in enumerate(reads):
            count = operand.stop - operand.start
            if operand.start >= count:
                rows = {"start": operand.start - count, "stop": operand.start}
                yield kept(schedule, index, reads=at(reads, number, **rows))


def range_cut_short(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch leaves out its last unit, with operands to match."""
    for index in shuffled(schedule, rng, Action.LAUNCH):
        step = schedule.steps[index]
        pass_ = schedule.graph.passes[step.pass_index]
        stop = (step.stop - 1) // pass_.unit * pass_.unit
        if stop > step.start:
            short = step._replace(stop=stop)
            codes = step.writes[len(pass_.writes) :]
            left = (use for code in codes for use in pass_.writes if use.buffer == code.buffer)
            reads = _operands_of(schedule.graph, short, pass_.reads, step.reads)
            writes = _operands_of(schedule.graph, short, (*pass_.writes, *left), step.writes)
            yield changed(schedule, index, stop=stop, reads=reads, writes=writes)


def _operands_of(
    graph: Graph, step: Step, uses: Sequence[Use], old: Sequence[Operand]
) -> tuple[Operand, ...]:
    """Operands that begin as the old ones do and have the rows that the step's range names."""
    operands = []
    for use, operand in zip(uses, old, strict=True):
        buffer = in_form(graph.buffers[use.buffer], operand.form)
        start, stop = use.rows(step.start, step.stop, buffer)
        nbytes = (stop - start) * buffer.row_nbytes
        operands.append(operand._replace(start=start, stop=stop, nbytes=nbytes))
    return tuple(operands)


def unit_cut(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng, Action.LAUNCH):
        step = schedule.steps[index]
        if schedule.graph.passes[step.pass_index].unit > 1:
            yield kept(schedule, index, start=step.start + 1)


def operands_exchanged(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng, Action.LAUNCH):
        reads = schedule.steps[index].reads
        if len(reads) > 1 and reads[0] != reads[1]:
            yield kept(schedule, index, reads=(reads[1], reads[0], *reads[2:]))


def launch_on_copy_lane(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng, Action.LAUNCH):
        yield kept(schedule, index, lane=Lane.OFFLOAD, waits=())


def copy_backwards(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng, Action.COPY):
        step = schedule.steps[index]
        yield kept(schedule, index, reads=step.writes, writes=step.reads)


def copy_cut_short(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A copy leaves out half of its bytes."""
    for index in shuffled(schedule, rng, Action.COPY):
        step = schedule.steps[index]
        half = step.reads[0].nbytes // 2
        yield kept(
            schedule,
            index,
            reads=at(step.reads, 0, nbytes=half),
            writes=at(step.writes, 0, nbytes=half),
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
    end = _end_of(schedule, Space.ARENA)
    yield replace(schedule, arena_nbytes=end - 1 - rng.randrange(end // 2))


def slab_too_small(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    if end := _end_of(schedule, Space.SLAB):
        yield replace(schedule, slab_nbytes=end - 1 - rng.randrange(end // 2))


def _end_of(schedule: Schedule, space: Space) -> int:
    """One past the last byte of a space that a step touches."""
    operands = (o for step in schedule.steps for o in (*step.reads, *step.writes))
    return max((o.end for o in operands if o.space is space), default=0)


def over_budget(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    yield replace(schedule, budget_nbytes=schedule.peak_nbytes - 1 - rng.randrange(9))


def over_host_budget(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    if schedule.slab_nbytes:
        yield replace(schedule, host_budget_nbytes=rng.randrange(schedule.slab_nbytes))
