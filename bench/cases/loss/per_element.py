"""Losses of single elements, and their gradients."""

from math import prod
from typing import Any

import torch

from bench.cases.case import KINDS, TYPES, At, KernelCase, at, checked, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.loss.per_element import element_loss, element_loss_grad, element_splits


def _weights(o: Operands, size: Shape, weighted: bool) -> list[torch.Tensor | None]:
    """A weight of each channel, and a weight of each channel's positive targets."""
    return [o.randn(size[-1]).abs_() if weighted else None for _ in range(2)]


def _loss(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, weighted: bool = False, **settings: Any
) -> Launch:
    """The gradient alone has a precision, which may be among the settings."""
    x, target = o.randn(*size, dtype=dtype), o.randn(*size).sigmoid_()
    splits = element_splits(prod(size[1:]))
    partials = o.out(size[0], splits, 2, compared=lambda sums: sums.sum(1))
    operands = (x, target, *_weights(o, size, weighted), partials)
    return launching(element_loss, *operands, function=settings.get("function", "mse"))


def _loss_grad(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, weighted: bool = False, **settings: Any
) -> Launch:
    x, target = o.randn(*size, dtype=dtype), o.randn(*size).sigmoid_()
    weights = _weights(o, size, weighted)
    operands = (x, target, *weights, o.full(2.0, 2), o.full(0.5, 1), o.out(*size, dtype=dtype))
    return launching(element_loss_grad, *operands, **{"function": "mse", **settings})


MAPS, ONE = (4, 32, 32, 64), (1, 1)
BCE = {"function": "bce_with_logits", "weighted": True}
COMPILED = (*at([MAPS], KINDS), *at([MAPS], over([BCE], KINDS)))
BOTH = checked(function=["mse", "bce_with_logits"], weighted=[False, True], dtype=TYPES)
SINGLE = {"dtype": F32, "weighted": True}
CASES = (
    KernelCase(element_loss, _loss, BOTH, (*COMPILED, At(ONE, SINGLE))),
    KernelCase(
        element_loss_grad,
        _loss_grad,
        BOTH,
        (*COMPILED, At(ONE, {**SINGLE, "function": "bce_with_logits"})),
    ),
)
