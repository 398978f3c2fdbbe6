"""Splits of the sum of a weight gradient: how many, by idle programs and by bytes of sums."""

import itertools
from typing import Final

from triton import cdiv

MOST_NBYTES: Final = 128 << 20  # bytes of a layer's running sums, at most
EDGE_SPLITS: Final = (1, 2, 4)  # numbers of edge splits to choose from
IDLE_COST: Final = 0.5  # weight of the time of idle programs: the others run faster meanwhile
NBYTES_RATE: Final = 4e12  # bytes a second of an H200
SUM_PASSES: Final = 3  # writes and reads of the running sums by the launches of a batch
SPLIT_S: Final = 1e-7  # seconds to add a split, without the time of its bytes


def splits_of(
    programs: int, steps: int, edge: int, slots: int, nbytes: int, launch_s: float
) -> tuple[int, int]:
    """Splits and edge splits of the least cost of idle programs and of sums.

    A split has `programs` programs, of which the GPU runs `slots` at a time, and sums of `nbytes`
    bytes. A unit has `steps` steps, and `edge` more in edge splits. `launch_s` are the seconds that
    a launch takes at least.
    """
    added = (SUM_PASSES * nbytes / NBYTES_RATE + SPLIT_S) / launch_s
    least = programs * (steps + edge) / slots

    def cost(numbers: tuple[int, int]) -> float:
        idle = _rounds(programs, steps, edge, slots, numbers) / least - 1
        return IDLE_COST * idle + added * sum(numbers)

    most = max(1, min(steps, MOST_NBYTES // max(1, nbytes)))
    edge_splits = EDGE_SPLITS if edge else (0,)
    return min(itertools.product(range(1, most + 1), edge_splits), key=cost)


def _rounds(programs: int, steps: int, edge: int, slots: int, numbers: tuple[int, int]) -> int:
    """Steps until the last program ends. Edge splits fill the free slots of the last round."""
    splits, edges = numbers
    rounds, share = cdiv(programs * splits, slots), cdiv(steps, splits)
    if edges == 0:
        return rounds * share
    edge_share = cdiv(edge, edges)
    room = (rounds * slots - programs * splits) * (share // edge_share)
    return rounds * share + (0 if room >= programs * edges else edge_share)
