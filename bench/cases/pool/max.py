"""Maxima of windows, alone and with codes of their places."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import At, KernelCase, Measured
from bench.cases.launch import Launch, launching, nchw, per_sample
from bench.cases.operands import BF16, F32, U8, Operands, Shape
from bench.cases.shapes import ALEXNET_MAP, VGG16_MAP
from tvdnn.kernels.pool.max import max_pool2d, max_pool2d_codes

Window = dict[str, tuple[int, int]]
MEASURED: Final = ((VGG16_MAP, 2), (ALEXNET_MAP, 3))


def window(side: int = 2, stride: int = 2, padding: int = 0) -> Window:
    sides = {"kernel": side, "stride": stride, "padding": padding, "dilation": 1}
    return {name: (each, each) for name, each in sides.items()}


def pooled(shape: Shape, of: Window) -> Shape:
    sides = [
        (side + 2 * of["padding"][0] - of["kernel"][0]) // of["stride"][0] + 1
        for side in shape[1:3]
    ]
    return (shape[0], *sides, shape[3])


def code_shape(shape: Shape, of: Window) -> Shape:
    """The shape of the codes of pooled maps: 2 bits a channel for windows 2x2, else 4."""
    return (*shape[:3], shape[3] // (4 if of["kernel"] == (2, 2) else 2))


def _max_pool(o: Operands, size: Shape, dtype: torch.dtype = BF16, **windows: int) -> Launch:
    of = window(**windows)
    x, y = o.randn(*size, dtype=dtype), o.out(*pooled(size, of), dtype=dtype)

    def maxima(maps: Tensor) -> Tensor:
        return functional.max_pool2d(maps, *of.values())

    return launching(max_pool2d, x, y, peer=per_sample(lambda: nchw(y), maxima, nchw(x)), **of)


def _codes(o: Operands, size: Shape, dtype: torch.dtype = BF16, **windows: int) -> Launch:
    """torch leaves indices, 8 bytes an output."""
    of = window(**windows)
    x, y = o.randn(*size, dtype=dtype), o.out(*pooled(size, of), dtype=dtype)
    codes = o.out(*code_shape(pooled(size, of), of), dtype=U8)

    def maxima(maps: Tensor) -> Tensor:
        return functional.max_pool2d(maps, *of.values(), return_indices=True)[0]

    peer = per_sample(lambda: nchw(y), maxima, nchw(x))
    return launching(max_pool2d_codes, x, y, codes, peer=peer, **of)


def measured_windows(kernel: str) -> list[Measured]:
    """Windows of VGG-16, of AlexNet, of ShuffleNet-v2's few channels, and of GoogLeNet's at 1."""
    rows = [Measured(f"{kernel} {size}x{size}", maps, {"side": size}) for maps, size in MEASURED]
    few = {"side": 3, "padding": 1}
    rows.append(Measured(f"{kernel} 3x3", (256, 112, 112, 24), few))
    return [*rows, Measured(f"{kernel} 3x3 by 1", (256, 14, 14, 512), few | {"stride": 1})]


def compiled_windows() -> list[At]:
    """Windows 2x2, and 3x3 in both types, of few channels and at stride 1."""
    threes: dict[str, Any] = {"side": 3, "padding": 1}
    maps, few = (2, 112, 112, 64), (2, 112, 112, 24)
    rest = [At(maps, threes), At(maps, threes | {"dtype": F32}), At(few, threes)]
    rest += [At((2, 14, 14, 512), threes | {"stride": 1, "dtype": each}) for each in (BF16, F32)]
    return [At((2, 224, 224, 64)), *rest]


ONE: Final = At((1, 1, 1, 1), {"dtype": F32, "side": 1, "stride": 1})
WINDOWS: Final[dict[str, dict[str, Any]]] = {
    "2x2": {},
    "3x3": {"side": 3, "padding": 1},
    "3x3 by 1, float32": {"side": 3, "stride": 1, "dtype": F32},
}
APART: Final[dict[str, dict[str, Any]]] = {"2x2 by 3": {"stride": 3}}
CASES = (
    KernelCase(
        max_pool2d,
        _max_pool,
        WINDOWS | APART,
        (*compiled_windows(), ONE),
        measured_windows("max_pool2d"),
    ),
    KernelCase(
        max_pool2d_codes,
        _codes,
        WINDOWS,
        compiled_windows(),
        measured_windows("max_pool2d_codes"),
        odd=False,
    ),
)
