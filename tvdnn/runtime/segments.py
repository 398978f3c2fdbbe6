"""Segments: ranges of a phase's steps. A CUDA graph holds those of each but sums and files."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import ceil
from typing import Final

from ..planner.ir.schedule import Lane, Step
from .host_counts import FILE_LANES
from .lane_sync import DEVICE_COPIES

# Most copies of a lane in a segment. With waits, events and delays that is 840 operations.
SEGMENT_COPIES = 120
# The same where steps of a file are told of copies: one more write, and up to two more waits.
FILE_SEGMENT_COPIES: Final = 90
# Most launches of a segment. With waits that is 768 kernels, beside those left of the last segment.
SEGMENT_LAUNCHES = 384
# The next segment is issued when this fraction (1 / LOW_WATER) of the launches is left.
LOW_WATER: Final = 4


def segments_of(
    steps: Sequence[Step], first: int, end: int, begins: Collection[int] = ()
) -> Iterator[range]:
    """Ranges of steps [first, end) with few launches, evenly spread, and few copies each way.

    One range where nothing is copied. Each of `begins` is the first step of a range, too.
    """
    lanes = Counter(step.lane for step in steps[first:end])
    launches = lanes[Lane.COMPUTE]
    copied = any(lanes[lane] for lane in (*DEVICE_COPIES, *FILE_LANES))
    parts = ceil(launches / SEGMENT_LAUNCHES) or 1 if copied else 1
    copies = FILE_SEGMENT_COPIES if any(lanes[lane] for lane in FILE_LANES) else SEGMENT_COPIES
    most = {**dict.fromkeys(DEVICE_COPIES, copies), Lane.COMPUTE: ceil(launches / parts)}
    begin, counts = first, Counter[Lane]()
    for index in range(first, end):
        lane = steps[index].lane
        if counts[lane] == most.get(lane) or (index in begins and index > begin):
            yield range(begin, index)
            begin, counts = index, Counter()
        counts[lane] += 1
    if begin < end:
        yield range(begin, end)


def behind_sums(awaited: Mapping[int, Mapping[Lane, int]]) -> frozenset[int]:
    """The steps that wait for sums over processes: each begins a segment behind these."""
    return frozenset(index for index, before in awaited.items() if Lane.REDUCE in before)


def low_water_of(launches: int) -> int:
    """Launches of a segment that are left when the next segment is issued. At least one."""
    return ceil(launches / LOW_WATER)


def are_followed(
    steps: Sequence[Step], segments: Sequence[range], begins: Collection[int]
) -> list[bool]:
    """By segment, whether the host waits for its low water before it issues the next.

    Not where it has no launches, nor where `begins` ended it early: the steps of several are then
    queued together.
    """
    found, queued = list[bool](), 0
    for segment in segments:
        queued += len(segment)
        launches = any(steps[index].lane is Lane.COMPUTE for index in segment)
        many = segment.stop not in begins or queued >= SEGMENT_LAUNCHES // LOW_WATER
        found.append(launches and many)
        queued = 0 if found[-1] else queued
    return found
