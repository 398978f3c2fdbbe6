"""Sums, products and multiples of maps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bench.cases.case import BY_TYPE, KINDS, KernelCase, Measured, at, over
from bench.cases.launch import Launch, Settings, launching, per_sample
from bench.cases.operands import BF16, F32, Operands, Shape
from bench.cases.shapes import VGG16_MAP
from tvdnn.kernels.pointwise.arithmetic import add_multiple, affine, multiply, multiply_grad


def _arithmetic(
    launcher: Callable[..., None],
    reads: int,
    writes: int,
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    **settings: Any,
) -> Launch:
    """A launch that reads `reads` maps, its first operands, and writes `writes` others."""
    read = [o.randn(*size, dtype=dtype) for _ in range(reads)]
    written = [o.out(*size, dtype=dtype) for _ in range(writes)]
    peer = per_sample(lambda: written[0], torch.mul, *read) if launcher is multiply else None
    return launching(launcher, *read, *written, peer=peer, **settings)


def _case(
    launcher: Callable[..., None],
    reads: int,
    writes: int,
    settings: Settings,
    ones: Settings,
    measured: tuple[Measured, ...] = (),
) -> KernelCase:
    compiled = at([(2, 9, 9, 64)], over([settings], KINDS))
    single = at([(1, 1, 1, 1)], over([ones], dtype=[F32]))
    by_type = {name: {**settings, **each} for name, each in BY_TYPE.items()}
    make = partial(_arithmetic, launcher, reads, writes)
    return KernelCase(launcher, make, by_type, (*compiled, *single), measured)


CASES = (
    _case(affine, 1, 1, {"scale": 2, "shift": 0.5}, {"scale": 1, "shift": 1}),
    _case(add_multiple, 2, 1, {"scale": -1}, {"scale": 1}),
    _case(multiply, 2, 1, {}, {}, (Measured("multiply", VGG16_MAP),)),
    _case(multiply_grad, 3, 2, {}, {}),
)
