"""ReLU with learned slopes, and its gradients."""

from typing import Any

import torch

from bench.cases.case import KINDS, TYPES, KernelCase, at, checked, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.pointwise.prelu import prelu, prelu_grad, prelu_terms


def _prelu(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, slopes: int = 0, **settings: Any
) -> Launch:
    """`slopes`: by default one for each channel."""
    x, y = (
        each.flatten(1, -2) for each in (o.randn(*size, dtype=dtype), o.out(*size, dtype=dtype))
    )
    return launching(prelu, x, o.randn(slopes or size[-1]), y, **settings)


def _prelu_grad(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    slopes: int = 0,
    left: tuple[str, ...] = ("dx", "sums"),
    **settings: Any,
) -> Launch:
    """The gradients that are `left`: of the map, and sums of the slopes'."""
    x, dy = (o.randn(*size, dtype=dtype).flatten(1, -2) for _ in range(2))
    slope, (samples, pixels, channels) = o.randn(slopes or size[-1]), x.shape
    terms = prelu_terms(pixels, channels, slope.numel())
    dx = o.out(*x.shape, dtype=dtype) if "dx" in left else None
    shape = (samples, terms, 1, slope.numel())
    sums = o.out(*shape, compared=lambda sums: sums.sum(1)) if "sums" in left else None
    return launching(prelu_grad, x, dy, slope, dx, sums, **settings)


ONE = at([(1, 1, 1, 1)], over(dtype=[F32]))
WIDE, ODD = (2, 784, 1, 96), (2, 784, 1, 65)
LEFT = [("dx", "sums"), ("dx",), ("sums",)]
CASES = (
    KernelCase(
        prelu,
        _prelu,
        checked(slopes=[0, 1], dtype=TYPES),
        (*at([WIDE], over(KINDS, slopes=[1])), *at([ODD], over(KINDS)), *ONE),
    ),
    KernelCase(
        prelu_grad,
        _prelu_grad,
        checked(slopes=[0, 1], left=LEFT),
        (*at([WIDE], over(KINDS, slopes=[1], left=LEFT)), *at([ODD], over(KINDS, left=LEFT)), *ONE),
    ),
)
