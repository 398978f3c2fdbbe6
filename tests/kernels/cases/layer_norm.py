"""Launches of layer_norm.py and sample_sums.py to compile."""

from functools import partial

import torch

from tests.support.offline import Case
from tvdnn.kernels.norm.layer_norm import LONGEST, layer_norm, layer_norm_chunks, layer_norm_grad
from tvdnn.kernels.reduce.per_sample import add_sample_sums, sample_splits


def _normalize(rows: int, columns: int, dtype: torch.dtype, precision: str) -> None:
    x = torch.empty(2, rows, columns, dtype=dtype, device="meta")
    weight = torch.empty(columns, device="meta")
    chunks = layer_norm_chunks(rows, columns)
    sums = torch.empty(2, chunks, 2, columns, device="meta")
    layer_norm(x, weight, weight, x, eps=1e-6, precision=precision)
    layer_norm_grad(x, x, weight, x, sums, eps=1e-6, precision=precision)
    running = torch.empty(sample_splits(chunks), columns, device="meta")
    add_sample_sums(sums, running, kind=0, first=False)


BF16, F32 = (torch.bfloat16, "ieee"), (torch.float32, "tf32")
ROWS = (
    *((3136, 96, *BF16), (3136, 96, *F32), (49, 768, *BF16), (1, LONGEST - 1, *BF16)),
    *((1, LONGEST, *F32), (2, LONGEST + 1, *BF16), (2, LONGEST + 1, *F32)),
)
CASES = [
    Case(
        f"layer norm of {columns} columns, {dtype}",
        partial(_normalize, rows, columns, dtype, precision),
    )
    for rows, columns, dtype, precision in ROWS
]
