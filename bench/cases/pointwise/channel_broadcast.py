"""Maps times or plus a value of each sample's channel, and the gradients."""

from typing import Any, Final

import torch
from torch import Tensor

from bench.cases.case import BY_TYPE, KINDS, TYPES, KernelCase, Measured, at, checked, over
from bench.cases.launch import Call, Launch, launching, per_sample
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.pointwise.channel_broadcast import (
    FUNCTIONS,
    gate,
    gate_grad,
    gate_slices,
    sum_slices,
)

WIDEST: Final = (256, 112, 112, 96)  # of EfficientNet's maps with gates


def _gate(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    x, y = o.randn(*size, dtype=dtype), o.out(*size, dtype=dtype)
    gates = o.randn(size[0], size[-1], dtype=dtype)
    peer = per_sample(lambda: y, torch.mul, x, gates[:, None, None])
    return launching(gate, x.flatten(1, -2), gates, y.flatten(1, -2), peer=peer, **settings)


def _gate_grad(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    reads: bool = True,
    **settings: Any,
) -> Launch:
    """Both gradients; without `reads` that of values which are added."""
    x, dy = (o.randn(*size, dtype=dtype).flatten(1, -2) for _ in range(2))
    gates, slices = o.randn(size[0], size[-1], dtype=dtype), gate_slices(*x.shape[1:])
    sums = o.out(size[0], slices, size[-1], compared=lambda sums: sums.sum(1))
    if not reads:
        return launching(gate_grad, None, None, dy, None, sums)
    return launching(gate_grad, x, gates, dy, o.out(*x.shape, dtype=dtype), sums, **settings)


def _sum_slices(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, slices: int = 9, **settings: Any
) -> Launch:
    sums, gates = o.randn(size[0], slices, size[-1]), o.out(size[0], size[-1], dtype=dtype)
    return launching(sum_slices, sums, gates, **settings)


def _gradients(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    """The gradients of the map and of its gates. The gates' gradient is compared."""
    (call,) = _gate_grad(o, size, dtype).calls
    x, gates, dy, _, sums = call.operands
    dgates = o.out(*gates.shape, dtype=dtype)

    def gradient(x: Tensor, gates: Tensor, dy: Tensor) -> Tensor:
        both = dy * gates[:, None], (dy * x).sum(1)
        return both[1]

    peer = per_sample(lambda: dgates, gradient, x, gates, dy)
    return Launch((call, Call(sum_slices, (sums, dgates), {})), peer, scratch=(sums,))


def _slices(channels: int) -> int:
    return gate_slices(784, channels)


MAPS, ONE = [(2, 784, 1, channels) for channels in (96, 63, 72, 300)], (1, 1, 1, 1)
SINGLE = at([ONE], over(dtype=[F32]))
CASES = (
    KernelCase(
        gate,
        _gate,
        checked(function=FUNCTIONS, dtype=TYPES),
        (*at(MAPS, over(KINDS, function=FUNCTIONS)), *SINGLE),
        [Measured("gate", WIDEST)],
    ),
    KernelCase(
        gate_grad,
        _gate_grad,
        checked(reads=[True, False], dtype=TYPES),
        (*at(MAPS, over(KINDS)), *at(MAPS, over(dtype=TYPES, reads=[False])), *SINGLE),
        [Measured("gate_grad", WIDEST, make=_gradients)],
    ),
    KernelCase(
        sum_slices,
        _sum_slices,
        BY_TYPE,
        (
            *(
                each
                for size in MAPS
                for each in at([size], over(KINDS, slices=[_slices(size[-1])]))
            ),
            *at([ONE], over(dtype=[F32], slices=[1])),
        ),
    ),
)
