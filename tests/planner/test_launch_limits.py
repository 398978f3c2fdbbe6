"""Limits of launches, tightened round by round until all groups find places."""

from itertools import pairwise

import numpy as np
import pytest

from tvdnn.planner.lowering.launch_limits import (
    FEWEST_ROUNDS,
    ROUNDS_TO_FIRST,
    SCHEDULED_IN_ALL,
    Array,
    FragmentationError,
    with_tightened_limits,
)

LIMIT = 64_000


def rounds_of(num_intervals: int, failing: int) -> tuple[list[int], list[Array]]:
    """The rounds with a result where the first ones fail, and the limits of all rounds."""
    tried: list[Array] = []

    def attempt(limits: Array) -> int:
        tried.append(limits)
        if len(tried) <= failing:
            raise FragmentationError(((1, 2, 1000),))
        return len(tried)

    least = np.zeros(8, np.int64)
    return list(with_tightened_limits(attempt, LIMIT, least, num_intervals)), tried


@pytest.mark.parametrize("failing", [0, FEWEST_ROUNDS + 1, ROUNDS_TO_FIRST])
def test_rounds_of_many_intervals_end_with_the_first_result(failing: int) -> None:
    found, tried = rounds_of(SCHEDULED_IN_ALL, failing)
    assert found == [failing + 1] * (failing < ROUNDS_TO_FIRST)
    assert len(tried) == min(failing + 1, ROUNDS_TO_FIRST)
    assert all((after < before).all() for before, after in pairwise(tried))


def test_rounds_of_few_intervals_go_on_behind_a_result() -> None:
    found, tried = rounds_of(100, 2)
    assert found[0] == 3
    assert len(found) > 1
    assert (tried[0] == LIMIT).all()
