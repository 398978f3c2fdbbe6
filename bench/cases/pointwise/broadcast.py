"""Arithmetic with an operand that is broadcast, its gradients and their sums."""

from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from bench.cases.case import At, KernelCase, at, checked, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.pointwise.broadcast import (
    FUNCTIONS,
    broadcast,
    broadcast_grad,
    broadcast_grad_sums,
    sum_slices_of,
)

Kept = tuple[bool, bool, bool]
OF_CHANNELS: Final = (False, False, True)


def _narrow(o: Operands, size: Shape, dtype: torch.dtype, kept: Kept, whole: bool) -> Tensor:
    """Values of the kept axes, of each sample unless `whole` batches share them, expanded."""
    sides = [side if keeps else 1 for side, keeps in zip(size[1:], kept, strict=True)]
    return o.randn(1 if whole else size[0], *sides, dtype=dtype).expand(size)


def _broadcast(
    o: Operands, size: Shape, dtype: torch.dtype = BF16,
    kept: Kept = OF_CHANNELS, whole: bool = False, **settings: Any,
) -> Launch:  # fmt: skip
    a, b = o.randn(*size, dtype=dtype), _narrow(o, size, dtype, kept, whole)
    return launching(broadcast, a, b, o.out(*size, dtype=dtype), **settings)


def _grad(
    o: Operands, size: Shape, dtype: torch.dtype = BF16,
    kept: Kept = OF_CHANNELS, whole: bool = False, **settings: Any,
) -> Launch:  # fmt: skip
    dy, a = (o.randn(*size, dtype=dtype) for _ in range(2))
    b = _narrow(o, size, dtype, kept, whole)
    return launching(broadcast_grad, dy, a, b, o.out(*size, dtype=dtype), **settings)


def _grad_sums(
    o: Operands, size: Shape, dtype: torch.dtype = BF16,
    kept: Kept = OF_CHANNELS, whole: bool = False, reads: bool = True, **settings: Any,
) -> Launch:  # fmt: skip
    """`reads`: the operand of the other side too."""
    dy, a = (o.randn(*size, dtype=dtype) for _ in range(2))
    b = _narrow(o, size, dtype, kept, whole)
    columns = prod(side for side, keeps in zip(size[1:], kept, strict=True) if keeps)
    slices = sum_slices_of(prod(size[1:]) // columns, columns)
    sums = o.out(size[0], slices, columns, compared=lambda sums: sums.sum(1))
    settings = {"kept": kept, **settings}
    return launching(broadcast_grad_sums, dy, a if reads else None, b, sums, **settings)


def _compiled(**settings: list[Any]) -> tuple[At, ...]:
    """All functions in bfloat16 and quotients in float32, with operands of three shapes."""
    shapes = [
        {"kept": OF_CHANNELS},
        {"kept": (True, True, False)},
        {"kept": (False, False, False), "whole": True},
    ]
    bf16 = over(shapes, function=FUNCTIONS, dtype=[BF16], **settings)
    wide = over(shapes, function=["divide"], dtype=[F32], **settings)
    return at([(2, 28, 28, 96)], [*bf16, *wide])


def _with_precision(compiled: tuple[At, ...], **more: Any) -> tuple[At, ...]:
    """Add the precision in which products of the type read what is stored."""
    return tuple(
        At(each.size, {**each.settings, **more, "precision": _PRECISIONS[each.settings["dtype"]]})
        for each in compiled
    )


_PRECISIONS: Final = {BF16: "ieee", F32: "tf32"}
ONE, SINGLE = (1, 1, 1, 1), {"dtype": F32, "kept": (True, True, True)}
KEPT = [OF_CHANNELS, (True, True, False), (False, False, False)]
CASES = (
    KernelCase(
        broadcast,
        _broadcast,
        checked(function=FUNCTIONS, kept=KEPT),
        (*_with_precision(_compiled(), scale=2), At(ONE, SINGLE | {"function": "add", "scale": 1})),
    ),
    KernelCase(
        broadcast_grad,
        _grad,
        checked(function=FUNCTIONS, first=[True, False]),
        (
            *_with_precision(_compiled(first=[True, False])),
            At(ONE, SINGLE | {"function": "divide", "first": False}),
        ),
    ),
    KernelCase(
        broadcast_grad_sums,
        _grad_sums,
        checked(function=["divide", "multiply"], kept=KEPT, first=[True, False]),
        (
            *_compiled(first=[True, False]),
            At(
                ONE,
                {
                    "dtype": F32,
                    "kept": (True, False, True),
                    "function": "multiply",
                    "first": True,
                    "reads": False,
                },
            ),
        ),
    ),
)
