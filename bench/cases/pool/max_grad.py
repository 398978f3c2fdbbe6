"""Gradients of maxima of windows, from the map or from codes."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import KernelCase
from bench.cases.launch import Call, Launch, Peer, launching, nchw, per_sample
from bench.cases.operands import BF16, U8, Operands, Shape
from bench.cases.pool.max import (
    APART,
    ONE,
    WINDOWS,
    Window,
    code_shape,
    compiled_windows,
    measured_windows,
    pooled,
    window,
)
from tvdnn.kernels.pool.max import max_pool2d_codes
from tvdnn.kernels.pool.max_grad import max_pool2d_grad, max_unpool2d


def _grad(o: Operands, size: Shape, dtype: torch.dtype = BF16, **windows: int) -> Launch:
    of = window(**windows)
    x, dy = o.randn(*size, dtype=dtype), o.randn(*pooled(size, of), dtype=dtype)
    dx = o.out(*size, dtype=dtype)
    return launching(max_pool2d_grad, x, dy, dx, peer=_peer(x, dy, dx, of), **of)


def _unpool(o: Operands, size: Shape, dtype: torch.dtype = BF16, **windows: int) -> Launch:
    """Codes are left by the forward pass, which runs before."""
    of = window(**windows)
    x, shape = o.randn(*size, dtype=dtype), pooled(size, of)
    y, dy = (o.randn(*shape, dtype=dtype) for _ in range(2))
    codes, dx = o.integers(1, *code_shape(shape, of), dtype=U8), o.out(*size, dtype=dtype)
    call = Call(max_unpool2d, (dy, codes, dx), of)
    before = Call(max_pool2d_codes, (x, y, codes), of)
    return Launch((call,), _peer(x, dy, dx, of), (before,))


def _peer(x: Tensor, dy: Tensor, dx: Tensor, of: Window) -> Peer:
    """torch's gradient from the indices that its forward pass leaves before."""
    found: list[Tensor] = []

    def gradient(upper: Tensor, maps: Tensor) -> Tensor:
        if not found:
            found.append(functional.max_pool2d(nchw(x), *of.values(), return_indices=True)[1])
        settings: tuple[Any, ...] = (*of.values(), False, found[0][: len(upper)])
        result: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(upper, maps, *settings)
        return result

    return per_sample(lambda: nchw(dx), gradient, nchw(dy), nchw(x))


CASES = (
    KernelCase(
        max_pool2d_grad,
        _grad,
        WINDOWS | APART,
        (*compiled_windows(), ONE),
        measured_windows("max_pool2d_grad"),
    ),
    KernelCase(
        max_unpool2d,
        _unpool,
        WINDOWS,
        compiled_windows(),
        measured_windows("max_unpool2d"),
        odd=False,
    ),
)
