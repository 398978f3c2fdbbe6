"""Launches of group_norm.py to compile."""

from functools import partial

import torch

from tests.offline import Case
from tvdnn.kernels.chunks import num_chunks
from tvdnn.kernels.group_norm import group_norm, group_norm_grad


def _normalize(pixels: int, channels: int, groups: int, dtype: torch.dtype, precision: str) -> None:
    x = torch.empty(2, pixels, channels, dtype=dtype, device="meta")
    weight, moments = torch.empty(channels, device="meta"), torch.empty(2, groups, 2, device="meta")
    sums = torch.empty(2, num_chunks(pixels, channels), 2, channels, device="meta")
    settings = {"groups": groups, "precision": precision}
    group_norm(x, weight, weight, x, moments, sums, eps=1e-5, **settings)
    group_norm_grad(x, x, weight, moments, x, sums, moments, **settings)


CASES = [
    Case(f"{channels} channels in {groups} groups, {precision}", partial(_normalize, *settings))
    for pixels, channels, groups in ((1 << 20, 64, 32), (49, 2048, 1), (3136, 30, 30), (900, 3, 1))
    for dtype, precision in ((torch.bfloat16, "ieee"), (torch.float32, "tf32"))
    for settings in [(pixels, channels, groups, dtype, precision)]
]
