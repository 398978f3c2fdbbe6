"""Transposed convolution over the kernels."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..errors import InputError
from ..functional import Ints, pair
from ..kernels.conv import conv2d as kernels
from ..kernels.conv import pack_weight as conv_pack
from .conv import Settings, grad_bias, grad_weight, packed_shape, precision_of
from .maps import apply, autocast, choose, nchw, nhwc, shape_only, torchs_own


class ConvTranspose2d(torch.nn.ConvTranspose2d):
    """torch.nn.ConvTranspose2d of maps [N, C, H, W], run by tvdnn's kernels in the input's type."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if torchs_own(input):
            return super().forward(input, output_size)
        assert not isinstance(self.padding, str)  # which torch's constructor refuses
        sizes = (self.stride, self.padding, self.kernel_size, self.dilation)
        stride, padding, kernel, dilation = ([*pair(size)] for size in sizes)
        added = self._output_padding(input, output_size, stride, padding, kernel, 2, dilation)
        geometry = (self.stride, self.padding, (added[0], added[1]), self.groups, self.dilation)
        return conv_transpose2d(input, self.weight, self.bias, *geometry)


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """torch.nn.functional.conv_transpose2d of maps [N, C, H, W]; parameters of any float type."""
    if torchs_own(x, weight):
        return functional.conv_transpose2d(
            x, weight, bias, stride, padding, output_padding, groups, dilation
        )
    if x.dim() == 4 and x.shape[1] != weight.shape[0]:
        raise InputError(f"the input has shape {tuple(x.shape)}; weight is {tuple(weight.shape)}")
    x = autocast(x)
    settings = Settings(pair(stride), pair(padding), pair(dilation), groups)
    with torch.autocast(x.device.type, enabled=False):
        return apply(_ConvTranspose2d, x, weight, bias, settings, pair(output_padding))


class _ConvTranspose2d(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings, added: Ints
    ) -> Tensor:
        maps = nhwc(x)
        shape = functional.conv_transpose2d(
            shape_only(x), shape_only(weight).to(x.dtype), None, output_padding=added,
            **asdict(settings),
        ).shape  # fmt: skip
        k, c, r, s = weight.shape
        groups, precision = settings.groups, precision_of(x)
        packed = maps.new_empty(c * groups, r, s, k // groups)
        pack = choose(
            x, conv_pack.pack_weight_grad_input, conv_pack.pack_weight_grad_input_reference
        )
        pack(weight.float(), packed, groups=groups, precision=precision)
        y = maps.new_empty(shape[0], *shape[2:], shape[1])
        launch = choose(x, kernels.conv2d_grad_input, kernels.conv2d_grad_input_reference)
        shift = None if bias is None else bias.float()
        launch(maps, packed, y, **asdict(settings), precision=precision, bias=shift)
        ctx.save_for_backward(x, weight, bias)
        ctx.settings = settings
        return nchw(y, like=x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        return (
            _grad_input(x, weight, nhwc(dy), ctx.settings) if wants_x else None,
            grad_weight(dy, weight, nhwc(x), ctx.settings) if wants_weight else None,
            grad_bias(bias, nhwc(dy)) if wants_bias else None,
            None,
            None,
        )


def _grad_input(x: Tensor, weight: Tensor, grads: Tensor, settings: Settings) -> Tensor:
    packed = grads.new_empty(packed_shape(weight))
    pack = choose(x, conv_pack.pack_weight, conv_pack.pack_weight_reference)
    pack(weight.float(), packed, groups=settings.groups, precision=precision_of(x))
    dx = grads.new_empty(x.shape[0], *x.shape[2:], x.shape[1])
    launch = choose(x, kernels.conv2d, kernels.conv2d_reference)
    launch(grads, packed, None, dx, **asdict(settings), precision=precision_of(x))
    return dx.permute(0, 3, 1, 2)
