"""Updates of parameters from the partial sums of their gradients."""

from typing import Any

import torch
from torch import Tensor

from bench.cases.case import At, KernelCase, Measured, checked
from bench.cases.launch import Launch, Peer, launching
from bench.cases.operands import Operands, Shape
from bench.cases.optim.update import SGD, adamw_values, exact_sgd, sgd_values, torch_sgd, updated
from bench.cases.shapes import PARTIALS
from tvdnn.kernels.optim.from_partials import adamw_partials, sgd_partials


def _sgd(o: Operands, size: Shape, splits: int = 4, **settings: Any) -> Launch:
    param, momentum = updated(o, 2, size)
    operands = (param, o.randn(splits, *size), momentum, sgd_values(o))
    return launching(sgd_partials, *operands, **SGD | settings)


def _adamw(o: Operands, size: Shape, splits: int = 4) -> Launch:
    param, *states = updated(o, 3, size)
    operands = (param, o.randn(splits, *size), *states, adamw_values(o))
    return launching(adamw_partials, *operands, maximize=False)


def _beside_torch(o: Operands, size: Shape) -> Launch:
    """An update from partials [splits, K, R, S, C] by one launch, beside torch's two."""
    partials, start = o.randn(*size), o.randn(*size[1:]).permute(0, 3, 1, 2).contiguous()
    param, momentum = o.updated(start), o.updated(torch.zeros_like(start))

    def summed(values: Tensor) -> Tensor:
        return values.sum(0).permute(0, 3, 1, 2).contiguous()

    peer = Peer(
        lambda: param,
        torch_sgd(start, lambda: summed(partials)),
        lambda: exact_sgd(start, summed(partials.double())),
    )
    operands = (param, partials, momentum, sgd_values(o))
    return launching(sgd_partials, *operands, peer=peer, **SGD)


SHAPES = ((512, 256, 3, 3), (64, 3, 7, 7), (2048, 512, 1, 1), (4096, 4096), (1000,))
COMPILED = tuple(At(shape) for shape in (*SHAPES, (1, 1, 1, 1)))
CASES = (
    KernelCase(
        sgd_partials,
        _sgd,
        checked(nesterov=[False, True], splits=[1, 5]),
        COMPILED,
        [Measured("sgd_partials", PARTIALS, {}, (3, 8, 3, 3, 4), make=_beside_torch, typed=False)],
    ),
    KernelCase(adamw_partials, _adamw, compiled=(*COMPILED, At((1,), {"splits": 1}))),
)
