"""Launches of transfer.py to compile."""

import torch

from tests.support.offline import Case
from tvdnn.kernels.copy.host import transfer


def _copies() -> None:
    for nbytes in (2**24, 1001):
        source = torch.empty(nbytes, dtype=torch.uint8, device="meta")
        transfer(source, torch.empty_like(source))


CASES = [Case("copies of bytes", _copies)]
