"""Averages of windows and of shares of a map, and the gradients."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import BY_TYPE, At, KernelCase, Measured, checked
from bench.cases.launch import Launch, launching, nchw, per_sample
from bench.cases.operands import BF16, F32, Operands, Shape
from bench.cases.pool.max import pooled
from tvdnn.kernels.pool.avg import (
    adaptive_avg_pool2d,
    adaptive_avg_pool2d_grad,
    avg_pool2d,
    avg_pool2d_grad,
)

LAST: Final = (1024, 14, 14, 512)
PADDED: Final = {"kernel": (2, 2), "stride": (2, 2), "padding": (1, 1)}
THREES: Final = {"kernel": (3, 3), "stride": (2, 2), "padding": (0, 0)}
SINGLE: Final = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0)}


def _avg(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    settings = {**PADDED, "count_include_pad": True, "divisor_override": None, **settings}
    x, y = o.randn(*size, dtype=dtype), o.out(*pooled(size, settings), dtype=dtype)
    return launching(avg_pool2d, x, y, **settings)


def _avg_grad(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    settings = {**PADDED, "count_include_pad": False, "divisor_override": None, **settings}
    dy, dx = o.randn(*pooled(size, settings), dtype=dtype), o.out(*size, dtype=dtype)
    return launching(avg_pool2d_grad, dy, dx, **settings)


def _shares(size: Shape) -> Shape:
    """Maps of half the sides."""
    return (size[0], -(-size[1] // 2), -(-size[2] // 2), size[3])


def _adaptive(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    x, y = o.randn(*size, dtype=dtype), o.out(*_shares(size), dtype=dtype)

    def averages(maps: Tensor) -> Tensor:
        return functional.adaptive_avg_pool2d(maps, y.shape[1:3])

    peer = per_sample(lambda: nchw(y), averages, nchw(x))
    return launching(adaptive_avg_pool2d, x, y, peer=peer)


def _adaptive_grad(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    dy, dx = o.randn(*_shares(size), dtype=dtype), o.out(*size, dtype=dtype)
    return launching(adaptive_avg_pool2d_grad, dy, dx)


MAPS, ONE = At((2, 57, 57, 64), THREES), (1, 1, 1, 1)
WINDOWS = checked(count_include_pad=[True, False], divisor_override=[None, 3])
CASES = (
    KernelCase(avg_pool2d, _avg, WINDOWS, (MAPS, At(ONE, {"dtype": F32, **SINGLE}))),
    KernelCase(avg_pool2d_grad, _avg_grad, WINDOWS, (MAPS, At(ONE, {"dtype": F32, **SINGLE}))),
    KernelCase(
        adaptive_avg_pool2d,
        _adaptive,
        BY_TYPE,
        (At((2, 14, 14, 512)), At(ONE, {"dtype": F32})),
        [Measured("adaptive_avg_pool2d", LAST, small=(2, 14, 14, 8))],
    ),
    KernelCase(
        adaptive_avg_pool2d_grad,
        _adaptive_grad,
        BY_TYPE,
        (At((2, 14, 14, 512)), At(ONE, {"dtype": F32})),
    ),
)
