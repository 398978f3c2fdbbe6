"""Splits of the sum of a weight gradient: how many, by idle programs and by bytes of sums."""

import itertools
from math import prod
from typing import Final

from triton import cdiv

from .shape import GradWeightShape

MOST_NBYTES: Final = 128 << 20  # bytes of a layer's running sums, at most
EDGE_SPLITS: Final = (1, 2, 4)  # numbers of edge splits to choose from
IDLE_COST: Final = 0.5  # weight of the time of idle programs: the others run faster meanwhile
NBYTES_RATE: Final = 4e12  # bytes a second of an H200
FLOPS_RATE: Final = 7e14  # operations a second of an H200
SAMPLES: Final = 256  # samples of the launch for which splits are chosen, unless they are few
SUM_PASSES: Final = 3  # writes and reads of the running sums by the launches of a batch
FEW_SUM_PASSES: Final = 2  # of few samples, which one launch mostly sums
SPLIT_S: Final = 1e-7  # seconds to add a split, without the time of its bytes


def splits_of(
    programs: int, steps: int, edge: int, slots: int, layer: GradWeightShape
) -> tuple[int, int]:
    """Splits and edge splits of a layer of the least cost of idle programs and of sums.

    A split has `programs` programs, of which the GPU runs `slots` at a time. A unit has `steps`
    steps, and `edge` more in edge splits.
    """
    nbytes = 4 * layer.taps.channels[1] * layer.taps.num_taps * layer.taps.widths[0]
    passes = FEW_SUM_PASSES if layer.few else SUM_PASSES
    added = (passes * nbytes / NBYTES_RATE + SPLIT_S) / _least_launch_s(layer)
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


def _least_launch_s(layer: GradWeightShape) -> float:
    """Seconds that a launch over a batch of few samples, or of SAMPLES, takes at least."""
    taps, (in_channels, out_channels) = layer.taps, layer.taps.channels
    flops = 2.0 * layer.out_pixels * out_channels * taps.num_taps * taps.in_channels
    values = layer.out_pixels * out_channels + prod(layer.in_sides) * in_channels
    nbytes = values * layer.dtype.itemsize
    return (layer.few or SAMPLES) * max(flops / FLOPS_RATE, nbytes / NBYTES_RATE, 1e-12)
