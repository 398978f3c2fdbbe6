"""Lane waits: the progress of other lanes that a step must see before it starts."""

from collections.abc import Iterable, Mapping, Sequence

from ..ir.schedule import Lane, Step


def cross_lane_waits(
    steps: Sequence[Step], first: int, end: int
) -> Mapping[int, Mapping[Lane, int]]:
    """By step of [first, end), the progress of other lanes that its lane has not yet seen.

    The progress of a lane is the number of its last ended step, counted from 1. Steps before
    `first` have ended.
    """
    seen: dict[tuple[Lane, Lane], int] = {}
    found: dict[int, Mapping[Lane, int]] = {}
    for index in range(first, end):
        lane = steps[index].lane
        last = {steps[wait].lane: wait + 1 for wait in sorted(steps[index].waits)}
        found[index] = {
            other: count
            for other, count in last.items()
            if other is not lane and count > max(first, seen.get((lane, other), 0))
        }
        seen |= {(lane, other): count for other, count in found[index].items()}
    return found


def graph_segment_waits(
    steps: Sequence[Step], segments: Iterable[range]
) -> Mapping[int, Mapping[Lane, int]]:
    """By first step of a lane in a graph segment, the progress of that lane in earlier ones."""
    found: dict[int, Mapping[Lane, int]] = {}
    progress: dict[Lane, int] = {}
    for segment in segments:
        last = {steps[index].lane: index + 1 for index in segment}
        first = {steps[index].lane: index for index in reversed(segment)}
        found |= {first[lane]: {lane: progress[lane]} for lane in first if lane in progress}
        progress |= last
    return found
