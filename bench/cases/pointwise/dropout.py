"""Dropout of single values."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import BY_TYPE, At, KernelCase, Measured
from bench.cases.launch import EXACT_SAMPLES, Launch, Peer, first_samples, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.pointwise.dropout import dropout, dropout_reference


def _dropout(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, first_sample: int = 3, op_id: int = 2
) -> Launch:
    x, y, seed = o.randn(*size, dtype=dtype), o.out(*size, dtype=dtype), o.integers(9, 1)
    drawn: dict[str, Any] = {"p": 0.5, "op_id": op_id, "first_sample": first_sample}

    def exact() -> Tensor:
        few = slice(EXACT_SAMPLES)
        wanted = torch.empty_like(x[few])
        dropout_reference(x[few], wanted, seed, **drawn)
        return wanted.double()

    peer = Peer(
        lambda: y, lambda: functional.dropout(x, 0.5), exact, first_samples, same_numbers=False
    )
    return launching(dropout, x, y, seed, peer=peer, **drawn)


CASES = (
    KernelCase(
        dropout,
        _dropout,
        BY_TYPE,
        (
            At((256, 4096), {"first_sample": 256}),
            At((1, 1, 1, 1), {"dtype": F32, "first_sample": 1, "op_id": 1}),
        ),
        [Measured("dropout", (32768, 4096), small=(4, 40))],
    ),
)
