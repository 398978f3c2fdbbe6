"""Counts by which streams wait for each other."""

from collections.abc import Mapping
from typing import Final

import torch

from bench.cases.case import At, KernelCase
from bench.cases.launch import Launch, launching
from bench.cases.operands import Operands, Shape
from tvdnn.kernels.copy.semaphore import meet

AWAITED: Final = {1: 0, 2: 0}  # by lane, a count that is there already


def _meet(
    o: Operands, size: Shape, reached: int = 1, awaited: Mapping[int, int] = AWAITED
) -> Launch:
    """One count is told, and two are awaited that are there already."""
    counts = o.updated(o.full(0, 3, dtype=torch.int32))
    return launching(meet, counts, 0, reached, awaited)


CASES = (KernelCase(meet, _meet, compiled=[At((), {"reached": 2, "awaited": {1: 1}})]),)
