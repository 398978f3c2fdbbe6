"""Convolution over the kernels."""

from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import InputError
from ..functional import Ints, pair
from ..kernels.conv.depthwise import suits_depthwise
from .eager import autocast, checked_map, run, torchs_own

KNOWN_SHAPES: Final = 4096
_SWITCH: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]


class Conv2d(torch.nn.Conv2d):
    """torch.nn.Conv2d of maps [N, C, H, W], run by tvdnn's kernels in the input's type.

    With a padding_mode other than "zeros" it is torch's own.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.padding_mode != "zeros":
            return super().forward(input)
        return conv2d(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class LazyConv2d(torch.nn.LazyConv2d, Conv2d):  # type: ignore[misc]
    """A Conv2d that takes its input channels from its first input."""

    cls_to_become = Conv2d


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """torch.nn.functional.conv2d of maps [N, C, H, W]; weight and bias of any float type."""
    if torchs_own(x, weight):
        return functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
    if x.dim() == 4 and x.shape[1] != weight.shape[1] * groups:
        shapes = f"shape {tuple(x.shape)}; weight is {tuple(weight.shape)} in {groups} groups"
        raise InputError(f"the input has {shapes}")
    x = checked_map(autocast(x))
    if isinstance(padding, str):
        x, padding = _padded(x, weight, padding, pair(dilation))
    geometry = (pair(stride), pair(padding), pair(dilation))
    if x.numel() == 0:
        params = (weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
        return functional.conv2d(x, *params, *geometry, groups)
    kind, out = _kind_and_shape(x.shape, weight.shape, *geometry, groups)
    settings = named(*geometry) | {"groups": groups}
    precision = precision_of(x)
    return run(kind, x, weight, bias, attrs=settings, out=out, precision=precision)


def _padded(
    x: Tensor, weight: Tensor, padding: str, dilation: tuple[int, int]
) -> tuple[Tensor, tuple[int, int]]:
    """The even part of "same" or "valid" padding, and `x` with the odd row and column added."""
    if padding == "valid":
        return x, (0, 0)
    height, width = (d * (k - 1) for k, d in zip(weight.shape[2:], dilation, strict=True))
    if height % 2 or width % 2:
        x = functional.pad(x, (0, width % 2, 0, height % 2))
    return x, (height // 2, width // 2)


@lru_cache(maxsize=KNOWN_SHAPES)
def _kind_and_shape(
    x: torch.Size, weight: torch.Size, *settings: Any
) -> tuple[str, tuple[int, ...]]:
    """The kind of op, and what torch says of the result, which also checks the arguments."""
    maps, filters = torch.empty(x, device="meta"), torch.empty(weight, device="meta")
    n, k, p, q = functional.conv2d(maps, filters, None, *settings).shape
    depthwise = suits_depthwise(x[1], k, settings[-1], (weight[2], weight[3]))
    return "conv2d_depthwise" if depthwise else "conv2d", (n, p, q, k)


def named(*geometry: tuple[int, int]) -> dict[str, Any]:
    """Stride, padding and dilation by the names that ops have for them."""
    return dict(zip(("stride", "padding", "dilation"), geometry, strict=True))


def precision_of(x: Tensor) -> str:
    """What torch's own switches ask of a float32 convolution; the CPU knows no TF32."""
    return "tf32" if x.is_cuda and _SWITCH.fp32_precision == "tf32" else "ieee"
