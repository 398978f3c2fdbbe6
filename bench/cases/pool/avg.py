"""Averages of windows and of shares of a map, and the gradients."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import TYPES, At, KernelCase, Measured, at, checked
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
SQUEEZED: Final = {  # maps of EfficientNet-B0 that squeeze and excitation averages
    "128x112x112x32": (128, 112, 112, 32),
    "128x56x56x144": (128, 56, 56, 144),
    "128x28x28x240": (128, 28, 28, 240),
}
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


def _shares(size: Shape, whole: bool) -> Shape:
    """Maps of half the sides, or of one pixel for `whole` maps."""
    if whole:
        return (size[0], 1, 1, size[3])
    return (size[0], -(-size[1] // 2), -(-size[2] // 2), size[3])


def _adaptive(o: Operands, size: Shape, dtype: torch.dtype = BF16, whole: bool = False) -> Launch:
    x, y = o.randn(*size, dtype=dtype), o.out(*_shares(size, whole), dtype=dtype)

    def averages(maps: Tensor) -> Tensor:
        return functional.adaptive_avg_pool2d(maps, y.shape[1:3])

    peer = per_sample(lambda: nchw(y), averages, nchw(x))
    return launching(adaptive_avg_pool2d, x, y, peer=peer)


def _adaptive_grad(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, whole: bool = False
) -> Launch:
    dy, dx = o.randn(*_shares(size, whole), dtype=dtype), o.out(*size, dtype=dtype)
    return launching(adaptive_avg_pool2d_grad, dy, dx)


ONE: Final = (1, 1, 1, 1)
COMPILED: Final = (
    *at([(2, 57, 57, 64), (2, 57, 57, 52), (2, 57, 57, 26)], [THREES]),
    At(ONE, {"dtype": F32, **SINGLE}),
)
SHARES = checked(dtype=TYPES, whole=[False, True])
SHARED = (
    At((2, 14, 14, 512)),
    At(ONE, {"dtype": F32}),
    *at([(2, 56, 56, 144), (2, 28, 28, 228), (2, 112, 112, 24), (2, 7, 7, 122)], [{"whole": True}]),
    At((2, 28, 28, 240), {"whole": True, "dtype": F32}),
)
WINDOWS = checked(count_include_pad=[True, False], divisor_override=[None, 3])
CASES = (
    KernelCase(avg_pool2d, _avg, WINDOWS, COMPILED),
    KernelCase(avg_pool2d_grad, _avg_grad, WINDOWS, COMPILED),
    KernelCase(
        adaptive_avg_pool2d,
        _adaptive,
        SHARES,
        SHARED,
        [
            Measured("adaptive_avg_pool2d", LAST, small=(2, 14, 14, 8)),
            *(
                Measured("adaptive_avg_pool2d", size, {"whole": True}, title=f"{title} to 1")
                for title, size in SQUEEZED.items()
            ),
        ],
    ),
    KernelCase(
        adaptive_avg_pool2d_grad,
        _adaptive_grad,
        SHARES,
        SHARED,
    ),
)
