"""Padded, cropped, flipped and strided maps, and the gradients."""

from typing import Any

import torch

from bench.cases.case import TYPES, At, KernelCase, checked
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.copy.remap import MODES, Axis, remap, remap_grad


def _axes(mode: str, by: int) -> tuple[Axis, Axis, Axis]:
    """Rows and columns padded by `by` elements on both sides."""
    return Axis(-by, mode=mode), Axis(-by, mode=mode), Axis()


def _padded(size: Shape, by: int) -> Shape:
    return (size[0], size[1] + 2 * by, size[2] + 2 * by, size[3])


def _remap(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, mode: str = "reflect", by: int = 2,
    **settings: Any,
) -> Launch:  # fmt: skip
    x, y = o.randn(*size, dtype=dtype), o.out(*_padded(size, by), dtype=dtype)
    return launching(remap, x, y, **{"axes": _axes(mode, by), **settings})


def _remap_grad(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, mode: str = "reflect", by: int = 2,
    **settings: Any,
) -> Launch:  # fmt: skip
    dy, dx = o.randn(*_padded(size, by), dtype=dtype), o.out(*size, dtype=dtype)
    return launching(remap_grad, dy, dx, **{"axes": _axes(mode, by), **settings})


ONE, MAPS, ODD = (1, 1, 1, 1), (2, 14, 14, 64), (2, 14, 14, 21)
SINGLE = {"dtype": F32, "by": 0}
BY_MODE = checked(mode=MODES, dtype=TYPES)
CASES = (
    KernelCase(
        remap,
        _remap,
        BY_MODE,
        (
            *(At(MAPS, {"mode": mode, "precision": "tf32"}) for mode in MODES),
            At(ODD, {"precision": "tf32"}),
            At(ONE, SINGLE | {"axes": (Axis(1, 1, "circular"),) * 3}),
        ),
    ),
    KernelCase(
        remap_grad,
        _remap_grad,
        BY_MODE,
        (
            *(At(MAPS, {"mode": mode}) for mode in MODES),
            At(ODD),
            At(ONE, SINGLE | {"axes": (Axis(),) * 3}),
        ),
    ),
)
