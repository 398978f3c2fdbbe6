"""Weight gradients of linear layers that update the weight as they are found."""

from typing import Any, Final

import torch
from torch import Tensor

from bench.cases.case import At, KernelCase
from bench.cases.launch import Launch, launching
from bench.cases.linear.passes import (
    FC6,
    FC8,
    HALF,
    KINDS_OF_PRODUCTS,
    ONES,
    TF32,
    layer_of,
    rounded,
    transposed,
)
from bench.cases.operands import BF16, Operands, Shape
from bench.cases.optim.update import adamw_values, sgd_values, updated
from tvdnn.kernels.linear.fused_update import linear_grad_weight_adamw, linear_grad_weight_sgd


def _inputs(o: Operands, size: Shape, dtype: torch.dtype, precision: str) -> list[Tensor]:
    samples, *features = layer_of(size)
    return [rounded(o.randn(samples, each, dtype=dtype), precision) for each in features]


def _settings(
    o: Operands, size: Shape, dtype: torch.dtype, precision: str, turned: bool
) -> dict[str, Any]:
    room = transposed(o, size, dtype, precision) if turned else None
    return {"precision": precision, "turned": room, "maximize": False}


def _sgd(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    precision: str = "tf32",
    turned: bool = True,
) -> Launch:
    param, momentum = updated(o, 2, layer_of(size)[:0:-1])
    operands = (*_inputs(o, size, dtype, precision), param, momentum, sgd_values(o))
    settings = _settings(o, size, dtype, precision, turned)
    return launching(linear_grad_weight_sgd, *operands, nesterov=True, **settings)


def _adamw(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    precision: str = "tf32",
    turned: bool = True,
) -> Launch:
    operands = (*_inputs(o, size, dtype, precision), *updated(o, 3, layer_of(size)[:0:-1]))
    settings = _settings(o, size, dtype, precision, turned)
    return launching(linear_grad_weight_adamw, *operands, adamw_values(o), **settings)


FUSED: Final = (At(FC6, HALF, wgmma=True), At(FC8, TF32))
SINGLE: Final = tuple(At(each.size, {**each.settings, "turned": False}) for each in ONES)
CASES = (
    KernelCase(linear_grad_weight_sgd, _sgd, KINDS_OF_PRODUCTS, FUSED),
    KernelCase(linear_grad_weight_adamw, _adamw, KINDS_OF_PRODUCTS, (*FUSED, *SINGLE)),
)
