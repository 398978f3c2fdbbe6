"""Local response normalization, and its gradient."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import BY_TYPE, At, KernelCase, Measured
from bench.cases.launch import Launch, launching, nchw, per_sample
from bench.cases.operands import BF16, F32, Operands, Shape
from bench.cases.shapes import ALEXNET_MAP
from tvdnn.kernels.norm.local_response_norm import local_response_norm, local_response_norm_grad

OF: Final = {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0}


def _normalized(maps: Tensor) -> Tensor:
    return functional.local_response_norm(maps, *OF.values())


def _norm(o: Operands, size: Shape, dtype: torch.dtype = BF16, width: int = 5) -> Launch:
    x, y = o.randn(*size, dtype=dtype), o.out(*size, dtype=dtype)
    peer = per_sample(lambda: nchw(y), _normalized, nchw(x))
    return launching(local_response_norm, x, y, peer=peer, **OF | {"size": width})


def _norm_grad(o: Operands, size: Shape, dtype: torch.dtype = BF16, width: int = 5) -> Launch:
    """torch's time has its forward pass too: only autograd knows the gradient."""
    x, dy = (o.randn(*size, dtype=dtype) for _ in range(2))
    dx = o.out(*size, dtype=dtype)

    def gradient(maps: Tensor, upper: Tensor) -> Tensor:
        leaf = maps.detach().requires_grad_()
        return torch.autograd.grad(_normalized(leaf), leaf, upper)[0]

    peer = per_sample(lambda: nchw(dx), gradient, nchw(x), nchw(dy))
    settings: dict[str, Any] = OF | {"size": width}
    return launching(local_response_norm_grad, x, dy, dx, peer=peer, **settings)


COMPILED = (At((2, 27, 27, 256)), At((1, 1, 1, 1), {"dtype": F32, "width": 1}))
CASES = (
    KernelCase(
        local_response_norm,
        _norm,
        BY_TYPE,
        COMPILED,
        [Measured("local_response_norm", ALEXNET_MAP)],
    ),
    KernelCase(
        local_response_norm_grad,
        _norm_grad,
        BY_TYPE,
        COMPILED,
        [Measured("local_response_norm_grad", ALEXNET_MAP)],
    ),
)
