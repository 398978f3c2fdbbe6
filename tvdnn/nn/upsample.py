"""Upsampling and other resizing of maps over the kernels."""

import torch
from torch import Tensor
from torch.nn import functional

from ..ops.resize import resizing
from ..ops.traced_op import UnsupportedCallError
from .eager import checked, run, torchs_own
from .shapes import result_shape


class Upsample(torch.nn.Upsample):
    """torch.nn.Upsample, run by tvdnn's kernels; by torch in modes but nearest and bilinear."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input) or input.dim() != 4 or input.numel() == 0:
            return super().forward(input)
        sizes = (self.size, self.scale_factor)
        given = (*sizes, self.mode, self.align_corners, self.recompute_scale_factor)
        n, height, width, c = result_shape(functional.interpolate, (input.shape,), *given)
        try:
            attrs = resizing((n, c, height, width), tuple(input.shape), *given)
        except UnsupportedCallError:
            return super().forward(input)
        return run("resize", checked(input), attrs=attrs, out=(n, height, width, c))
