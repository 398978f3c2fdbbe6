"""Dropout of whole channels, rows and samples."""

from typing import Any

import torch

from bench.cases.case import KINDS, TYPES, At, KernelCase, at, checked, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.pointwise.dropout_blocks import PARTS, dropout_parts


def _dropout(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    x, y = o.randn(*size, dtype=dtype).flatten(1, -2), o.out(*size, dtype=dtype).flatten(1, -2)
    drawn = {"p": 0.5, "op_id": 2, "first_sample": 256, **settings}
    return launching(dropout_parts, x, y, o.integers(9, 1), **drawn)


ONES = {"dtype": F32, "part": "channel", "p": 1.0, "op_id": 1, "first_sample": 1}
CASES = (
    KernelCase(
        dropout_parts,
        _dropout,
        checked(part=PARTS, dtype=TYPES),
        (*at([(2, 784, 1, 96)], over(KINDS, part=PARTS)), At((1, 1, 1, 1), ONES)),
    ),
)
