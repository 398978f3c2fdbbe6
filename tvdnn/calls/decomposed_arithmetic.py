"""Arithmetic that the tracer follows as several calls: `normalize`, `addcmul`, `rsub`, `lerp`."""

from typing import Any

import torch
from torch import Tensor


def normalize(
    input: Tensor,  # noqa: A002 (torch's name)
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
    out: None = None,
) -> Tensor:
    norms = torch.norm(input, p, dim, keepdim=True)
    return torch.div(input, norms.clamp_min(eps))


def addcmul(
    input: Tensor,  # noqa: A002 (torch's name)
    tensor1: Tensor,
    tensor2: Tensor,
    *,
    value: float = 1,
    out: None = None,
) -> Tensor:
    return torch.add(input, tensor1 * tensor2, alpha=value)


def rsub(input: Tensor, other: Any, *, alpha: float = 1) -> Tensor:  # noqa: A002 (torch's name)
    """`other` less `alpha` times `input`."""
    return torch.add(other, input, alpha=-alpha)


def lerp(
    input: Tensor,  # noqa: A002 (torch's name)
    end: Tensor,
    weight: Any,
    *,
    out: None = None,
) -> Tensor:
    """The weighted mean; it starts from what the weight is nearer to, as torch does by a number."""
    step = end - input
    if not isinstance(weight, (int, float)):
        return torch.add(input, step * weight)
    if abs(weight) < 0.5:
        return torch.add(input, step, alpha=weight)
    return torch.sub(end, step, alpha=1 - weight)
