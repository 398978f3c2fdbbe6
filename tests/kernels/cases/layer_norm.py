"""Launches of layer_norm.py and sample_sums.py to compile."""

from functools import partial

import torch

from tests.offline import Case
from tvdnn.kernels.layer_norm import LONGEST, layer_norm, layer_norm_chunks, layer_norm_grad
from tvdnn.kernels.sample_sums import add_sample_sums, sample_splits


def _normalize(rows: int, columns: int, dtype: torch.dtype, precision: str) -> None:
    x = torch.empty(2, rows, columns, dtype=dtype, device="meta")
    weight = torch.empty(columns, device="meta")
    chunks = layer_norm_chunks(rows, columns)
    sums = torch.empty(2, chunks, 2, columns, device="meta")
    layer_norm(x, weight, weight, x, eps=1e-6, precision=precision)
    layer_norm_grad(x, x, weight, x, sums, eps=1e-6, precision=precision)
    running = torch.empty(sample_splits(chunks), columns, device="meta")
    add_sample_sums(sums, running, kind=0, first=False)


CASES = [
    Case(f"layer norm of {columns} columns, {precision}", partial(_normalize, *settings))
    for rows, columns in ((3136, 96), (49, 768), (1, LONGEST - 1), (1, LONGEST), (2, LONGEST + 1))
    for dtype, precision in ((torch.bfloat16, "ieee"), (torch.float32, "tf32"))
    for settings in [(rows, columns, dtype, precision)]
]
