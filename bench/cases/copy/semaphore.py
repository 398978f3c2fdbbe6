"""Counts by which streams wait for each other."""

import torch

from bench.cases.case import At, KernelCase
from bench.cases.launch import Launch, launching
from bench.cases.operands import Operands, Shape
from tvdnn.kernels.copy.semaphore import meet


def _meet(o: Operands, size: Shape, reached: int = 1, least: tuple[int, int] = (0, 0)) -> Launch:
    """One count is told, and two are awaited that are there already."""
    counts = o.updated(o.full(0, 3, dtype=torch.int32))
    return launching(meet, counts, reached, least)


CASES = (KernelCase(meet, _meet, compiled=[At((), {"reached": 2, "least": (1, 0)})]),)
