"""Launches of dropout.py and dropout_parts.py to compile."""

import torch

from tests.support.offline import Case
from tvdnn.kernels.pointwise.dropout import dropout
from tvdnn.kernels.pointwise.dropout_blocks import PARTS, dropout_parts


def _dropout() -> None:
    x = torch.empty(256, 4096, dtype=torch.bfloat16, device="meta")
    seed = torch.empty(1, dtype=torch.int64, device="meta")
    dropout(x, x, seed, p=0.5, op_id=2, first_sample=256)


def _dropout_parts() -> None:
    seed = torch.empty(1, dtype=torch.int64, device="meta")
    for dtype, precision in ((torch.bfloat16, "ieee"), (torch.float32, "tf32")):
        x = torch.empty(2, 784, 96, dtype=dtype, device="meta")
        for part in PARTS:
            settings = {"part": part, "precision": precision}
            dropout_parts(x, x, seed, p=0.5, op_id=2, first_sample=256, **settings)


CASES = [Case("dropout", _dropout), Case("dropout of parts", _dropout_parts)]
