"""Pooling over the kernels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..functional import Ints, pair, window
from ..kernels.pool import avg as pool_avg
from ..kernels.pool import max as pool_max
from ..kernels.pool import max_grad as pool_max_grad
from .maps import apply, checked, choose, nchw, nhwc, shape_only, torchs_own


class MaxPool2d(torch.nn.MaxPool2d):
    """torch.nn.MaxPool2d of maps [N, C, H, W], run by tvdnn's kernels; torch's own with indices."""

    def forward(self, input: Tensor) -> Any:
        if self.return_indices:
            return super().forward(input)
        return max_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )


class AvgPool2d(torch.nn.AvgPool2d):
    """torch.nn.AvgPool2d of maps [N, C, H, W], run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return avg_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class AdaptiveAvgPool2d(torch.nn.AdaptiveAvgPool2d):
    """torch.nn.AdaptiveAvgPool2d of maps [N, C, H, W], run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return adaptive_avg_pool2d(input, self.output_size)


def max_pool2d(
    x: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """torch.nn.functional.max_pool2d of maps [N, C, H, W]."""
    arguments = (kernel_size, stride, padding, dilation, ceil_mode)
    if torchs_own(x):
        return functional.max_pool2d(x, *arguments)
    shape = functional.max_pool2d(shape_only(x), *arguments).shape
    settings = window(kernel_size, stride, padding) | {"dilation": pair(dilation)}
    return _pooled(x, shape, _MAX, settings)


def avg_pool2d(
    x: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """torch.nn.functional.avg_pool2d of maps [N, C, H, W]."""
    arguments = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    if torchs_own(x):
        return functional.avg_pool2d(x, *arguments)
    shape = functional.avg_pool2d(shape_only(x), *arguments).shape
    averaging = {"count_include_pad": count_include_pad, "divisor_override": divisor_override}
    return _pooled(x, shape, _AVG, window(kernel_size, stride, padding) | averaging)


def adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Tensor:
    """torch.nn.functional.adaptive_avg_pool2d of maps [N, C, H, W]."""
    if torchs_own(x):
        return functional.adaptive_avg_pool2d(x, output_size)
    shape = functional.adaptive_avg_pool2d(shape_only(x), output_size).shape
    return _pooled(x, shape, _ADAPTIVE, {})


@dataclass(frozen=True, slots=True)
class _Pooling:
    """The launchers of one kind of pooling, each with its reference."""

    forward: tuple[Callable[..., None], Callable[..., None]]
    grad: tuple[Callable[..., None], Callable[..., None]]
    grad_reads_input: bool = False


_MAX = _Pooling(
    (pool_max.max_pool2d, pool_max.max_pool2d_reference),
    (pool_max_grad.max_pool2d_grad, pool_max_grad.max_pool2d_grad_reference),
    grad_reads_input=True,
)
_AVG = _Pooling(
    (pool_avg.avg_pool2d, pool_avg.avg_pool2d_reference),
    (pool_avg.avg_pool2d_grad, pool_avg.avg_pool2d_grad_reference),
)
_ADAPTIVE = _Pooling(
    (pool_avg.adaptive_avg_pool2d, pool_avg.adaptive_avg_pool2d_reference),
    (pool_avg.adaptive_avg_pool2d_grad, pool_avg.adaptive_avg_pool2d_grad_reference),
)


def _pooled(x: Tensor, shape: torch.Size, pooling: _Pooling, settings: dict[str, Any]) -> Tensor:
    return apply(_Pool, checked(x), tuple(shape[-2:]), pooling, settings)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, sides: tuple[int, int], pooling: _Pooling, settings: dict[str, Any]
    ) -> Tensor:
        maps = nhwc(x)
        samples, _, _, channels = maps.shape
        y = maps.new_empty(samples, *sides, channels)
        choose(x, *pooling.forward)(maps, y, **settings)
        ctx.save_for_backward(*([x] if pooling.grad_reads_input else []))
        ctx.shape, ctx.pooling, ctx.settings = maps.shape, pooling, settings
        return nchw(y, like=x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        dx = dy.new_empty(ctx.shape)
        inputs = [nhwc(x) for x in ctx.saved_tensors]
        choose(dy, *ctx.pooling.grad)(*inputs, nhwc(dy), dx, **ctx.settings)
        return dx.permute(0, 3, 1, 2), None, None, None
