"""Launches of norm.py to compile."""

import torch

from tests.support.offline import Case
from tvdnn.kernels.norm.local_response_norm import local_response_norm, local_response_norm_grad


def _normalize() -> None:
    x = torch.empty(2, 27, 27, 256, dtype=torch.bfloat16, device="meta")
    settings = {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0}
    local_response_norm(x, x, **settings)
    local_response_norm_grad(x, x, x, **settings)


CASES = [Case("local response norm", _normalize)]
