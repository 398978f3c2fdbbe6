"""Sums, products and multiples of maps."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from bench.cases.case import KINDS, KernelCase, Measured, at, checked, over
from bench.cases.launch import Launch, Settings, launching, per_sample
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.pointwise.arithmetic import add_multiple, affine, multiply, multiply_grad

FIRST: Final = (256, 224, 224, 64)  # VGG-16's largest map


def _arithmetic(
    launcher: Callable[..., None],
    reads: int,
    writes: int,
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    **settings: Any,
) -> Launch:
    """A launcher that takes so many maps, then so many outputs."""
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
    by_type = {name: {**settings, **each} for name, each in checked(dtype=[BF16, F32]).items()}
    make = partial(_arithmetic, launcher, reads, writes)
    return KernelCase(launcher, make, by_type, (*compiled, *single), measured)


CASES = (
    _case(affine, 1, 1, {"scale": 2, "shift": 0.5}, {"scale": 1, "shift": 1}),
    _case(add_multiple, 2, 1, {"scale": -1}, {"scale": 1}),
    _case(multiply, 2, 1, {}, {}, (Measured("multiply", FIRST),)),
    _case(multiply_grad, 3, 2, {}, {}),
)
