"""Crossings: how far lanes must have come before a step starts."""

from collections.abc import Iterable, Mapping, Sequence

from ..ir.schedule import Lane, Step


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


def joints(steps: Sequence[Step], windows: Iterable[range]) -> Mapping[int, Mapping[Lane, int]]:
    """By first step of a lane in a window how far that lane must have come, in windows before."""
    found: dict[int, Mapping[Lane, int]] = {}
    come: dict[Lane, int] = {}
    for window in windows:
        last = {steps[index].lane: index + 1 for index in window}
        first = {steps[index].lane: index for index in reversed(window)}
        found |= {first[lane]: {lane: come[lane]} for lane in first if lane in come}
        come |= last
    return found
