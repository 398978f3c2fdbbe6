"""Gradients of maps with gates, and of their gates."""

from typing import Any

import torch
from torch import Tensor

from bench.cases.case import BY_TYPE, KINDS, TYPES, KernelCase, Measured, at, checked, over
from bench.cases.launch import Call, Launch, launching, per_sample
from bench.cases.operands import BF16, F32, U8, Operands, Shape
from bench.cases.pointwise.channel_broadcast import (
    MAKERS,
    MAPS,
    ONE,
    SINGLE,
    WHOLE,
    WIDEST,
    made_by,
)
from tvdnn.kernels.pointwise.channel_broadcast import gate_slices
from tvdnn.kernels.pointwise.channel_broadcast_grad import gate_grad, sum_slices


def _gate_grad(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    reads: bool = True,
    mask: str = "",
    maker: str | None = None,
    **settings: Any,
) -> Launch:
    """Both gradients; without `reads` that of values which are added.

    The gradient may be masked by an output's "values" or "signs". The map may be made by a `maker`.
    """
    x, dy = (o.randn(*size, dtype=dtype).flatten(1, -2) for _ in range(2))
    gates, slices = o.randn(size[0], size[-1], dtype=dtype), gate_slices(*x.shape[1:])
    sums = o.out(size[0], slices, size[-1], compared=lambda sums: sums.sum(1))
    if not reads:
        return launching(gate_grad, None, None, dy, None, sums)
    dx = o.out(*x.shape, dtype=dtype)
    if not mask:
        operands = (x, gates, dy, dx, sums)
    else:
        output = o.randn(*x.shape, dtype=dtype)
        if mask == "signs":
            output = o.integers(256, *x.shape[:-1], size[-1] // 8, dtype=U8)
        operands = (x, gates, dy, dx, sums, output, o.out(*x.shape, dtype=dtype))
    return launching(gate_grad, *operands, **made_by(o, size, maker), **settings)


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


MASKED = over(mask=["values", "signs"], maker=[None, *MAKERS])
CASES = (
    KernelCase(
        gate_grad,
        _gate_grad,
        checked(reads=[True, False], dtype=TYPES),
        (
            *at(MAPS, over(KINDS)),
            *at(MAPS, over(dtype=TYPES, reads=[False])),
            *at(WHOLE, over(mask=["", "values", "signs"], maker=[None, *MAKERS])),
            *at(WHOLE, over(maker=MAKERS, dtype=[F32])),
            *SINGLE,
        ),
        [Measured("gate_grad", WIDEST, make=_gradients)],
    ),
    KernelCase(gate_grad, _gate_grad, {str(each): each for each in MASKED}, odd=False),
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
