"""Layer normalization of rows, and its gradients."""

from math import prod
from typing import Any

import torch

from bench.cases.case import BY_TYPE, KINDS, At, KernelCase, at
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, Operands, Shape
from tvdnn.kernels.norm.layer_norm import LONGEST, layer_norm, layer_norm_chunks, layer_norm_grad

EPS = {"eps": 1e-6}


def _norm(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    x, y = o.randn(*size, dtype=dtype), o.out(*size, dtype=dtype)
    weight, bias = (o.randn(size[-1]) for _ in range(2))
    return launching(layer_norm, x, weight, bias, y, **EPS, **settings)


def _norm_grad(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    x, dy = (o.randn(*size, dtype=dtype) for _ in range(2))
    dx, chunks = o.out(*size, dtype=dtype), layer_norm_chunks(prod(size[1:-1]), size[-1])
    sums = o.out(size[0], chunks, 2, size[-1], compared=lambda sums: sums.sum(1))
    return launching(layer_norm_grad, x, dy, o.randn(size[-1]), dx, sums, **EPS, **settings)


IN_BOTH = [(2, 3136, 96), (2, 2, LONGEST + 1)]
COMPILED = (
    *at(IN_BOTH, KINDS),
    *at([(2, 49, 768), (2, 1, LONGEST - 1)], KINDS[:1]),
    At((2, 1, LONGEST), KINDS[1]),
)
CASES = (
    KernelCase(layer_norm, _norm, BY_TYPE, COMPILED),
    KernelCase(layer_norm_grad, _norm_grad, BY_TYPE, COMPILED),
)
