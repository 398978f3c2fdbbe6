"""Convolution over the kernels."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..errors import InputError
from ..functional import Ints, pair
from ..kernels.conv import conv2d as kernels
from ..kernels.conv import grad_bias as bias_kernels
from ..kernels.conv import pack_weight as conv_pack
from ..kernels.conv.grad_weight import launch as grad_kernels
from ..kernels.reduce import partials as reduce
from . import conv_depthwise
from .maps import apply, autocast, choose, nchw, nhwc, shape_only, torchs_own

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
    x = autocast(x)
    if isinstance(padding, str):
        x, padding = _padded(x, weight, padding, pair(dilation))
    settings = Settings(pair(stride), pair(padding), pair(dilation), groups)
    with torch.autocast(x.device.type, enabled=False):
        return apply(_Conv2d, x, weight, bias, settings)


@dataclass(frozen=True, slots=True)
class Settings:
    """The geometry of a convolution."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def geometry(self) -> dict[str, tuple[int, int]]:
        """All but the groups."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}


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


class _Conv2d(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings
    ) -> Tensor:
        shape = _result_shape(x, weight, settings)
        maps = nhwc(x)
        y = maps.new_empty(shape[0], *shape[2:], shape[1])
        _launch_forward(maps, weight, bias, y, settings)
        ctx.save_for_backward(x, weight, bias)
        ctx.settings = settings
        return nchw(y, like=x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        grads = nhwc(dy)
        return (
            _grad_input(x, weight, grads, ctx.settings) if wants_x else None,
            grad_weight(x, weight, grads, ctx.settings) if wants_weight else None,
            grad_bias(bias, grads) if wants_bias else None,
            None,
        )


def _launch_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, settings: Settings
) -> None:
    precision = precision_of(x)
    if conv_depthwise.is_depthwise(weight, settings.groups):
        conv_depthwise.forward(x, weight, bias, y, **settings.geometry, precision=precision)
        return
    packed = x.new_empty(packed_shape(weight))
    pack = choose(x, conv_pack.pack_weight, conv_pack.pack_weight_reference)
    pack(weight.float(), packed, groups=settings.groups, precision=precision)
    launch = choose(x, kernels.conv2d, kernels.conv2d_reference)
    added = None if bias is None else bias.float()
    launch(x, packed, added, y, **asdict(settings), precision=precision)


def _result_shape(x: Tensor, weight: Tensor, settings: Settings) -> torch.Size:
    """What torch says of the result, which also checks the arguments."""
    kernel = shape_only(weight).to(x.dtype)
    return functional.conv2d(shape_only(x), kernel, None, **asdict(settings)).shape


def packed_shape(weight: Tensor) -> tuple[int, ...]:
    """Of a copy of the weight that a forward pass reads."""
    out_channels, in_channels, height, width = weight.shape
    return out_channels, height, width, in_channels


def _grad_input(x: Tensor, weight: Tensor, grads: Tensor, settings: Settings) -> Tensor:
    samples, channels, *sides = x.shape
    dx, precision = grads.new_empty(samples, *sides, channels), precision_of(x)
    if conv_depthwise.is_depthwise(weight, settings.groups):
        conv_depthwise.grad_input(grads, weight, dx, **settings.geometry, precision=precision)
        return dx.permute(0, 3, 1, 2)
    out_channels, in_channels, height, width = weight.shape
    groups = settings.groups
    packed = grads.new_empty(in_channels * groups, height, width, out_channels // groups)
    pack = choose(x, conv_pack.pack_weight_grad_input, conv_pack.pack_weight_grad_input_reference)
    pack(weight.float(), packed, groups=groups, precision=precision)
    launch = choose(x, kernels.conv2d_grad_input, kernels.conv2d_grad_input_reference)
    launch(grads, packed, dx, **asdict(settings), precision=precision)
    return dx.permute(0, 3, 1, 2)


def grad_weight(x: Tensor, weight: Tensor, grads: Tensor, settings: Settings) -> Tensor:
    """The weight's gradient; `grads` are maps [N, P, Q, K]."""
    if conv_depthwise.is_depthwise(weight, settings.groups):
        partials = conv_depthwise.weight_partials(nhwc(x), grads, weight, **settings.geometry)
        return _summed(partials, weight)
    sides = (x.shape[2], x.shape[3]), (grads.shape[1], grads.shape[2])
    k, c, r, s = weight.shape
    arithmetic = {"precision": precision_of(x)} | asdict(settings)
    plan = grad_kernels.grad_weight_plan(*sides, (k, c, r, s), **arithmetic, dtype=grads.dtype)
    partials = grads.new_zeros(plan.splits, *packed_shape(weight), dtype=torch.float32)
    launch = choose(x, grad_kernels.conv2d_grad_weight, grad_kernels.conv2d_grad_weight_reference)
    launch(nhwc(x), grads, partials, first=True, **arithmetic)
    return _summed(partials, weight)


def grad_bias(bias: Tensor, grads: Tensor) -> Tensor:
    """The bias's gradient; `grads` are maps [N, P, Q, K]."""
    _, height, width, channels = grads.shape
    plan = bias_kernels.grad_bias_plan((height, width), channels)
    partials = grads.new_zeros(plan.splits, channels, dtype=torch.float32)
    launch = choose(grads, bias_kernels.conv2d_grad_bias, bias_kernels.conv2d_grad_bias_reference)
    launch(_cell_sums(grads, plan.cell), partials, first=True, cell=plan.cell)
    return _summed(partials, bias)


def _cell_sums(grads: Tensor, cell: int) -> Tensor:
    if cell == 1:
        return grads
    samples, height, width, channels = grads.shape
    sums = grads.new_empty(samples, height // cell, width // cell, channels, dtype=torch.float32)
    choose(grads, bias_kernels.sum_cells, bias_kernels.sum_cells_reference)(grads, sums)
    return sums


def _summed(partials: Tensor, param: Tensor) -> Tensor:
    grad = torch.empty_like(param, dtype=torch.float32)
    choose(partials, reduce.sum_partials, reduce.sum_partials_reference)(partials, grad, first=True)
    return grad.to(param.dtype)


def precision_of(x: Tensor) -> str:
    """What torch's own switches ask of a float32 convolution; the CPU knows no TF32."""
    return "tf32" if x.is_cuda and _SWITCH.fp32_precision == "tf32" else "ieee"
