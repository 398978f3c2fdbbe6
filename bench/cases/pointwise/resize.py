"""Maps of other sides by interpolation, and the gradients."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import TYPES, At, KernelCase, Measured, at, checked, over
from bench.cases.launch import Launch, launching, nchw, per_sample
from bench.cases.operands import BF16, F32, Operands, Shape, padding_beside
from tvdnn.kernels.pointwise.resize import MODES, resize, resize_grad

INNER: Final = (64, 64, 64, 256)  # U-Net's upsampling


def _settings(by: int, settings: dict[str, Any]) -> dict[str, Any]:
    return {"mode": "bilinear", "scales": (1 / by, 1 / by), **settings}


def _larger(size: Shape, by: int) -> Shape:
    return (size[0], by * size[1], by * size[2], size[3])


def _resize(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, by: int = 2, **settings: Any
) -> Launch:
    """Maps of sides `by` times as large, padded or not."""
    place = padding_beside(size[-1], **settings)
    x, y = o.randn(*size, dtype=dtype, **place), o.out(*_larger(size, by), dtype=dtype, **place)
    settings = _settings(by, settings)

    def larger(maps: Tensor) -> Tensor:
        return functional.interpolate(maps, scale_factor=by, mode=settings["mode"])

    peer = per_sample(lambda: nchw(y), larger, nchw(x))
    return launching(resize, x, y, peer=peer, **settings)


def _resize_grad(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, by: int = 2, **settings: Any
) -> Launch:
    place = padding_beside(size[-1], **settings)
    dy, dx = o.randn(*_larger(size, by), dtype=dtype, **place), o.out(*size, dtype=dtype, **place)
    settings = _settings(by, settings)

    def gradient(upper: Tensor) -> Tensor:
        shape = [len(upper), size[3], *size[1:3]]
        backward = getattr(torch.ops.aten, f"upsample_{settings['mode']}2d_backward")
        corners = (False,) if settings["mode"] == "bilinear" else ()
        result: Tensor = backward(upper, upper.shape[2:], shape, *corners)
        return result

    peer = per_sample(lambda: nchw(dx), gradient, nchw(dy))
    return launching(resize_grad, dy, dx, peer=peer, **settings)


def _measured(kernel: str) -> list[Measured]:
    return [
        Measured(f"{kernel} {mode}", INNER, {"mode": mode}, small=(2, 3, 3, 16))
        for mode in ("nearest", "bilinear")
    ]


COMPILED = (
    *at([(2, 14, 14, 64)], over(mode=MODES)),
    At((2, 14, 14, 21), {"mode": "bilinear"}),
    # large enough that a program computes several rows
    *at([(32, 120, 120, 21)], over(mode=MODES, by=[8], padded=[True], dtype=TYPES)),
)
ONE = {"dtype": F32, "by": 1, "scales": (1, 1)}
BY_MODE = checked(mode=MODES, dtype=TYPES)
CASES = (
    KernelCase(resize, _resize, BY_MODE, (*COMPILED, At((1, 1, 1, 1), ONE)), _measured("resize")),
    KernelCase(
        resize_grad,
        _resize_grad,
        BY_MODE,
        (*COMPILED, At((1, 1, 1, 1), ONE | {"mode": "nearest"})),
        _measured("resize_grad"),
    ),
)
