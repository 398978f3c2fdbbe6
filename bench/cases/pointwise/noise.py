"""Maps of random numbers."""

from typing import Any

import torch
from torch import Tensor

from bench.cases.case import KINDS, TYPES, At, KernelCase, Measured, at, checked, over
from bench.cases.launch import EXACT_SAMPLES, Launch, Peer, first_samples, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.pointwise.noise import DISTRIBUTIONS, noise, noise_reference


def _noise(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    y, seed = o.out(*size, dtype=dtype), o.integers(9, 1)
    drawn = {"distribution": "normal", "op_id": 2, "first_sample": 3} | settings

    def exact() -> Tensor:
        few = torch.empty_like(y[:EXACT_SAMPLES], dtype=torch.float64)
        noise_reference(few, seed, **drawn)
        return few

    peer = Peer(lambda: y, lambda: torch.randn_like(y), exact, first_samples, same_numbers=False)
    return launching(noise, y, seed, peer=peer, **drawn)


ONE = {"dtype": F32, "first_sample": 1, "op_id": 1, "p": 1.0, "scale": 1, "shift": 1}
CASES = (
    KernelCase(
        noise,
        _noise,
        checked(distribution=DISTRIBUTIONS, dtype=TYPES),
        (*at([(256, 4096)], over(KINDS, distribution=DISTRIBUTIONS)), At((1, 1, 1, 1), ONE)),
        [Measured("noise", (32768, 4096), small=(4, 40))],
    ),
)
