"""Sums, means, deviations and norms over axes, and the gradients."""

from typing import Any

import torch

from bench.cases.case import TYPES, At, KernelCase, checked
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.reduce.axes import FUNCTIONS, READS_INPUT, reduce_axes, reduce_axes_grad


def _settings(size: Shape, settings: dict[str, Any]) -> dict[str, Any]:
    reduced = tuple(index % 2 == 0 for index in range(len(size) - 1))
    return {"sizes": size[1:], "reduced": reduced, **settings}


def _reduced(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    """Over the first of the axes behind that of samples, and every second."""
    settings, x = _settings(size, settings), o.randn(*size, dtype=dtype)
    y = o.out(size[0], _numel(settings), dtype=dtype)
    return launching(reduce_axes, x, y, **settings)


def _numel(settings: dict[str, Any]) -> int:
    numel = 1
    for side, reduced in zip(settings["sizes"], settings["reduced"], strict=True):
        numel *= 1 if reduced else side
    return numel


def _reduced_grad(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    settings, x = _settings(size, settings), o.randn(*size, dtype=dtype)
    dy, dx = o.randn(size[0], _numel(settings), dtype=dtype), o.out(*size, dtype=dtype)
    read = x if settings["function"] in READS_INPUT else None
    return launching(reduce_axes_grad, read, dy, dx, **settings)


COMPILED = (
    *(At((2, 196, 64), {"function": name, "precision": "tf32"}) for name in FUNCTIONS),
    At((2, 2, 3, 5, 7), {"function": "std", "precision": "tf32"}),
    At((1, 1), {"dtype": F32, "function": "std"}),
)
BY_FUNCTION = checked(function=FUNCTIONS, dtype=TYPES)
CASES = (
    KernelCase(reduce_axes, _reduced, BY_FUNCTION, COMPILED),
    KernelCase(reduce_axes_grad, _reduced_grad, BY_FUNCTION, COMPILED),
)
