"""The launch of counts.py to compile."""

import torch

from tests.support.offline import Case
from tvdnn.kernels.copy.semaphore import meet


def _meet() -> None:
    meet(torch.empty(3, dtype=torch.int32, device="meta"), 2, (1, 0))


CASES = [Case("one is told and two are awaited", _meet)]
