"""Harm: what the oracles see in changed schedules that the checker accepts."""

from collections.abc import Callable, Iterable, Iterator
from random import Random

from tests.support.schedules.order import races
from tests.support.schedules.results import results
from tvdnn.errors import ScheduleError
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.verify.check import check


def assert_no_harm(
    schedule: Schedule, faults: Iterable[Callable[[Schedule, Random], Iterator[Schedule]]]
) -> None:
    """Faults that the checker accepts, of which there are some, race nowhere and change nothing."""
    right = results(schedule)
    accepted = 0
    for mutations in faults:
        for mutant in mutations(schedule, Random(7)):
            try:
                check(mutant)
            except ScheduleError:
                continue
            accepted += 1
            assert not races(mutant), mutations.__name__
            assert results(mutant) == right, mutations.__name__
    assert accepted > 0
