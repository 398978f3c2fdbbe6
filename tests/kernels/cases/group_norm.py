"""Launches of group_norm.py to compile."""

from functools import partial

import torch

from tests.support.offline import Case
from tvdnn.kernels.language.channel_chunks import num_chunks
from tvdnn.kernels.norm.group_norm import group_norm, group_norm_grad


def _normalize(pixels: int, channels: int, groups: int, dtype: torch.dtype, precision: str) -> None:
    x = torch.empty(2, pixels, channels, dtype=dtype, device="meta")
    weight, moments = torch.empty(channels, device="meta"), torch.empty(2, groups, 2, device="meta")
    sums = torch.empty(2, num_chunks(pixels, channels), 2, channels, device="meta")
    settings = {"groups": groups, "precision": precision}
    group_norm(x, weight, weight, x, moments, sums, eps=1e-5, **settings)
    group_norm_grad(x, x, weight, moments, x, sums, moments, **settings)


BF16, F32 = (torch.bfloat16, "ieee"), (torch.float32, "tf32")
MAPS = ((1 << 20, 64, 32, *BF16), (49, 2048, 1, *F32), (3136, 30, 30, *F32), (900, 3, 1, *BF16))
CASES = [
    Case(
        f"{channels} channels in {groups} groups, {dtype}",
        partial(_normalize, pixels, channels, groups, dtype, precision),
    )
    for pixels, channels, groups, dtype, precision in MAPS
]
