"""Crossings: how far other lanes must have come before a step of one lane starts."""

from collections.abc import Mapping, Sequence

from ..planner.schedule import Lane, Step


def crossings(steps: Sequence[Step], first: int, end: int) -> Mapping[int, Mapping[Lane, int]]:
    """By step of [first, end) how far other lanes must have come, if its lane does not know yet.

    A lane runs its steps in their order. It has come as far as the number of its last step that has
    ended, counted from 1; steps before the first have ended.
    """
    known: dict[tuple[Lane, Lane], int] = {}
    found: dict[int, Mapping[Lane, int]] = {}
    for index in range(first, end):
        lane = steps[index].lane
        last = {steps[wait].lane: wait + 1 for wait in sorted(steps[index].waits)}
        found[index] = {
            other: count
            for other, count in last.items()
            if other is not lane and count > max(first, known.get((lane, other), 0))
        }
        known |= {(lane, other): count for other, count in found[index].items()}
    return found
