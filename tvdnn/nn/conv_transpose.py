"""Transposed convolution over the kernels."""

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import InputError
from ..functional import convolution, pair
from .conv import precision_of
from .eager import autocast, checked_map, run, torchs_own
from .shapes import result_shape


class ConvTranspose2d(torch.nn.ConvTranspose2d):
    """torch.nn.ConvTranspose2d of maps [N, C, H, W], run by tvdnn's kernels in the input's type."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if torchs_own(input, self.weight):
            return super().forward(input, output_size)
        assert not isinstance(self.padding, str)  # which torch's constructor refuses
        weight, groups = self.weight, self.groups
        sides = (self.kernel_size, self.stride, self.padding, self.dilation)
        kernel, stride, padding, dilation = map(pair, sides)
        known = ([*stride], [*padding], [*kernel], 2, [*dilation])
        added = self._output_padding(input, output_size, *known)
        if input.dim() == 4 and input.shape[1] != weight.shape[0]:
            wanted = f"weight is {tuple(weight.shape)}"
            raise InputError(f"the input has shape {tuple(input.shape)}; {wanted}")
        x, kind = checked_map(autocast(input)), "conv_transpose2d"
        attrs = convolution(kernel, stride, padding, dilation, groups)
        settings = (stride, padding, (added[0], added[1]), groups, dilation)
        shapes = (x.shape, weight.shape)
        out = result_shape(functional.conv_transpose2d, shapes, None, *settings)
        return run(kind, x, weight, self.bias, attrs=attrs, out=out, precision=precision_of(x))
