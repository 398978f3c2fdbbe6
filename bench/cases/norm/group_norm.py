"""Normalization of groups of channels, and its gradients."""

from typing import Any

import torch

from bench.cases.case import KINDS, TYPES, At, KernelCase, checked
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, Operands, Shape
from tvdnn.kernels.language.channel_chunks import num_chunks
from tvdnn.kernels.norm.group_norm import group_norm, group_norm_grad


def _norm(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, groups: int = 0, **settings: Any
) -> Launch:
    """`groups`: by default one for each channel."""
    groups = groups or size[-1]
    x, y = o.randn(*size, dtype=dtype).flatten(1, -2), o.out(*size, dtype=dtype).flatten(1, -2)
    weight, bias = (o.randn(size[-1]) for _ in range(2))
    moments, partials = o.out(size[0], groups, 2), _sums(o, x, defined=False)
    operands = (x, weight, bias, y, moments, partials)
    return launching(group_norm, *operands, groups=groups, eps=1e-5, **settings)


def _norm_grad(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, groups: int = 0, **settings: Any
) -> Launch:
    groups = groups or size[-1]
    x, dy = (o.randn(*size, dtype=dtype).flatten(1, -2) for _ in range(2))
    dx, moments = o.out(*x.shape, dtype=dtype), o.randn(size[0], groups, 2).abs_()
    operands = (x, dy, o.randn(size[-1]), moments, dx, _sums(o, x), o.out(size[0], groups, 2))
    return launching(group_norm_grad, *operands, groups=groups, **settings)


def _sums(o: Operands, x: torch.Tensor, *, defined: bool = True) -> torch.Tensor:
    """Room for sums of every chunk of the pixels. The forward reference leaves none."""
    samples, pixels, channels = x.shape
    shape = (samples, num_chunks(pixels, channels), 2, channels)
    return o.out(*shape, compared=lambda sums: sums.sum(1) if defined else sums[:0])


COMPILED = (
    At((2, 1 << 20, 1, 64), {"groups": 32, **KINDS[0]}),
    At((2, 49, 1, 2048), {"groups": 1, **KINDS[1]}),
    At((2, 3136, 1, 30), {"groups": 30, **KINDS[1]}),
    At((2, 900, 1, 3), {"groups": 1, **KINDS[0]}),
)
GROUPS = checked(groups=[0, 1], dtype=TYPES)
CASES = (
    KernelCase(group_norm, _norm, GROUPS, COMPILED),
    KernelCase(group_norm_grad, _norm_grad, GROUPS, COMPILED),
)
