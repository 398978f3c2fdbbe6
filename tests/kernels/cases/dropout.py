"""Launches of dropout.py to compile."""

import torch

from tests.offline import Case
from tvdnn.kernels.dropout import dropout


def _dropout() -> None:
    x = torch.empty(256, 4096, dtype=torch.bfloat16, device="meta")
    seed = torch.empty(1, dtype=torch.int64, device="meta")
    dropout(x, x, seed, p=0.5, op_id=2, first_sample=256)


CASES = [Case("dropout", _dropout)]
