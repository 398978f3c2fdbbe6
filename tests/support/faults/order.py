"""Faults of order: waits lost and impossible, steps lost, repeated and out of order."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random

from tests.support.faults.changes import (
    changed,
    copies_on,
    exchanged,
    moved,
    reordered,
    shuffled,
    without,
    without_waits_on,
)
from tvdnn.planner.ir.schedule import Action, Lane, Schedule


def wait_removed(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng):
        waits = schedule.steps[index].waits
        for wait in waits:
            yield changed(schedule, index, waits=tuple(w for w in waits if w != wait))


def bytes_reused_before_offload_ended(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Nothing waits for an offload any more."""
    for copy in copies_on(schedule, rng, Lane.OFFLOAD):
        yield without_waits_on(schedule, copy)


def read_before_prefetch(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A prefetch right after the launch that needs it."""
    for copy in copies_on(schedule, rng, Lane.PREFETCH):
        name, start = schedule.steps[copy].writes[0].buffer, schedule.steps[copy].start
        for index in range(copy + 1, len(schedule.steps)):
            reads = schedule.steps[index].reads
            if any(o.buffer == name and o.start <= start < o.stop for o in reads):
                yield moved(schedule, copy, index)
                break


def prefetch_before_its_offload(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for copy in copies_on(schedule, rng, Lane.PREFETCH):
        source = schedule.steps[copy].reads[0]
        for index in range(copy):
            if source in schedule.steps[index].writes:
                yield moved(schedule, copy, index)


def copies_swapped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Two copies of one lane at each other's place in it."""
    for lane in (Lane.OFFLOAD, Lane.PREFETCH):
        found = copies_on(schedule, rng, lane)
        for first, second in zip(found[::2], found[1::2], strict=False):
            yield exchanged(schedule, first, second)


def wait_on_later_step(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A cycle: an earlier step waits for one that waits for it."""
    for index in shuffled(schedule, rng):
        for wait in schedule.steps[index].waits:
            waits = tuple(sorted({*schedule.steps[wait].waits, index}))
            yield changed(schedule, wait, waits=waits)


def wait_on_no_step(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng):
        yield changed(schedule, index, waits=(*schedule.steps[index].waits, len(schedule.steps)))


def wait_on_own_lane(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng):
        lane = schedule.steps[index].lane
        earlier = [i for i in range(index) if schedule.steps[i].lane is lane]
        if earlier:
            waits = tuple(sorted({*schedule.steps[index].waits, earlier[-1]}))
            yield changed(schedule, index, waits=waits)


# Steps lost, repeated, out of order


def offload_dropped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for copy in copies_on(schedule, rng, Lane.OFFLOAD):
        yield without(schedule, copy)


def prefetch_dropped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for copy in copies_on(schedule, rng, Lane.PREFETCH):
        yield without(schedule, copy)


def launch_dropped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    for index in shuffled(schedule, rng, Action.LAUNCH):
        yield without(schedule, index)


def launch_twice(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch that changes its input, or adds to a sum, runs twice."""
    for index in shuffled(schedule, rng, Action.LAUNCH):
        order = list(range(len(schedule.steps)))
        order.insert(index + 1, index)
        yield reordered(schedule, order)


def in_place_pass_skipped(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    passes = schedule.graph.passes
    for number in rng.sample(range(len(passes)), len(passes)):
        if {u.buffer for u in passes[number].reads} & {u.buffer for u in passes[number].writes}:
            gone = (i for i, s in enumerate(schedule.steps) if s.pass_index == number)
            yield without(schedule, *gone)


def sum_out_of_order(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """Two launches of a reduction change places."""
    for first in shuffled(schedule, rng, Action.LAUNCH):
        step = schedule.steps[first]
        if not schedule.graph.passes[step.pass_index].reduction:
            continue
        later = range(first + 1, len(schedule.steps))
        twins = [i for i in later if schedule.steps[i].pass_index == step.pass_index]
        for second in twins[:1]:
            yield exchanged(schedule, first, second)


def reader_before_writer(schedule: Schedule, rng: Random) -> Iterator[Schedule]:
    """A launch at the place of one just before it on its lane."""
    launches = sorted(shuffled(schedule, rng, Action.LAUNCH))
    pairs = list(pairwise(launches))
    for first, second in rng.sample(pairs, len(pairs)):
        yield moved(schedule, second, first)
