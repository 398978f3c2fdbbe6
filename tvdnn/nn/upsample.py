"""Upsampling and other resizing of maps over the kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels.pointwise import resize as kernels
from ..ops.resize import resizing
from ..ops.traced_op import UnsupportedCallError
from .maps import apply, checked, choose, nchw, nhwc, torchs_own


class Upsample(torch.nn.Upsample):
    """torch.nn.Upsample, run by tvdnn's kernels; by torch in modes but nearest and bilinear."""

    def forward(self, input: Tensor) -> Tensor:
        return interpolate(
            input,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            self.recompute_scale_factor,
        )


def interpolate(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Tensor:
    """torch.nn.functional.interpolate of maps [N, C, H, W], nearest and bilinear."""
    settings = (size, scale_factor, mode, align_corners, recompute_scale_factor)
    if torchs_own(x) or x.dim() != 4 or x.numel() == 0:
        return functional.interpolate(x, *settings)
    out = functional.interpolate(torch.empty(x.shape, device="meta"), *settings).shape
    try:
        known = resizing(tuple(out), tuple(x.shape), *settings)
    except UnsupportedCallError:
        return functional.interpolate(x, *settings)
    return apply(_Resize, checked(x), tuple(out), known)


class _Resize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, out: tuple[int, ...], settings: dict[str, Any]) -> Tensor:
        maps = nhwc(x)
        y = maps.new_empty(out[0], *out[2:], out[1])
        launch = choose(x, kernels.resize, kernels.resize_reference)
        launch(maps, y, **settings)
        ctx.settings, ctx.shape = settings, maps.shape
        return nchw(y, like=x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        maps = nhwc(dy)
        dx = maps.new_empty(ctx.shape)
        launch = choose(dy, kernels.resize_grad, kernels.resize_grad_reference)
        launch(maps, dx, **ctx.settings)
        return nchw(dx, like=dy), None, None
