"""Faults of codes on their way to the host and back, and of their residencies."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tests.support.faults.changes import (
    as_form,
    at,
    copies_on,
    ending_at,
    kept,
    replaced,
    shuffled,
    stays_of_codes,
)
from tvdnn.graph import BITS, RAW, Form, may_rest_in
from tvdnn.planner.ir.schedule import Action, Lane, Residency, Schedule


def code_copied_as_raw(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A copy calls its source, its destination or both raw, with the bytes of the code."""
    for index in shuffled(schedule, rng, Action.COPY):
        step = schedule.steps[index]
        if step.reads[0].form != RAW:
            source, target = at(step.reads, 0, form=RAW), at(step.writes, 0, form=RAW)
            yield kept(schedule, index, writes=target)
            yield kept(schedule, index, reads=source)
            yield kept(schedule, index, reads=source, writes=target)


def copy_changes_the_form(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A copy of raw rows arrives as a code, or a code arrives as raw rows, each of its size."""
    for index in shuffled(schedule, rng, Action.COPY):
        target = schedule.steps[index].writes[0]
        form = BITS if target.form == RAW else RAW
        if may_rest_in(schedule.graph.buffers[target.buffer], BITS):
            yield kept(schedule, index, writes=(as_form(schedule.graph, target, form),))


def copies_encode_and_decode(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Offloads leave a code of raw rows on the host, and prefetches make raw rows of the code."""
    for index in copies_on(schedule, rng, Lane.OFFLOAD):
        (target,) = schedule.steps[index].writes
        if target.form == RAW and may_rest_in(schedule.graph.buffers[target.buffer], BITS):
            yield replaced(schedule, target, as_form(schedule.graph, target, BITS))


def code_copied_in_part(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A copy of a code leaves out its last row, in its operands and in its range."""
    for index in shuffled(schedule, rng, Action.COPY):
        step = schedule.steps[index]
        if step.reads[0].form != RAW and step.stop - step.start > 1:
            yield ending_at(schedule, index, step.stop - 1)


# Residencies


def residency_of_code_missing(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    stays = schedule.residencies
    for number in stays_of_codes(schedule, rng):
        yield replace(schedule, residencies=(*stays[:number], *stays[number + 1 :]))


def residency_of_code_twice(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for number in stays_of_codes(schedule, rng):
        twice = (*schedule.residencies, schedule.residencies[number])
        yield replace(schedule, residencies=twice)


def residency_of_code_wrong(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A residency of a code has another form, other bytes, another place or another section."""
    for number in stays_of_codes(schedule, rng):
        stay = schedule.residencies[number]
        buffer = schedule.graph.buffers[stay.buffer]
        raw = {"form": RAW, "nbytes": buffer.section_nbytes(stay.section)}
        wrong: tuple[dict[str, object], ...] = (
            {"form": RAW},
            {"form": Form("zip")},
            raw,
            {"nbytes": raw["nbytes"]},
            {"nbytes": stay.nbytes - 1},
            {"offset": stay.offset + 1},
            {"section": stay.section + (1 if stay.section == 0 else -1)},
        )
        for changes in wrong:
            yield _with_stay(schedule, number, stay._replace(**changes))


def residency_of_code_split(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A residency of a code ends between its steps, and another without a write begins there."""
    stays = schedule.residencies
    for number in stays_of_codes(schedule, rng):
        stay = stays[number]
        for cut in range(1, len(stay.steps)):
            begins = stay._replace(steps=stay.steps[cut:])
            more = replace(schedule, residencies=(*stays, begins))
            yield _with_stay(more, number, stay._replace(steps=stay.steps[:cut]))


def residency_of_code_cut(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A residency of a code begins behind its first step, or ends before its last."""
    for number in stays_of_codes(schedule, rng):
        stay = schedule.residencies[number]
        if len(stay.steps) > 1:
            yield _with_stay(schedule, number, stay._replace(steps=stay.steps[1:]))
            yield _with_stay(schedule, number, stay._replace(steps=stay.steps[:-1]))


def _with_stay(schedule: Schedule, number: int, stay: Residency) -> Schedule:
    stays = schedule.residencies
    return replace(schedule, residencies=(*stays[:number], stay, *stays[number + 1 :]))
