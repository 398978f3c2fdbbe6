"""Fully connected layers over the kernels."""

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import InputError
from .eager import autocast, run, torchs_own
from .layouts import AS_IS


class Linear(torch.nn.Linear):
    """torch.nn.Linear of [..., F], run by tvdnn's kernels in the input's type."""

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if torchs_own(input, weight):
            return super().forward(input)
        if input.shape[-1:] != weight.shape[1:]:
            wanted = f"weight is {tuple(weight.shape)}"
            raise InputError(f"the input has shape {tuple(input.shape)}; {wanted}")
        x = autocast(input)
        if weight.numel() == 0:
            return functional.linear(
                x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
            )
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        out = (len(rows), weight.shape[0])
        y = run("linear", rows, weight, bias, layout=AS_IS, out=out, precision=_precision(x))
        return y if x.dim() == 2 else y.view(*x.shape[:-1], weight.shape[0])


class LazyLinear(torch.nn.LazyLinear, Linear):
    """A Linear that takes its input features from its first input."""

    cls_to_become = Linear


def _precision(x: Tensor) -> str:
    """What torch's own switches ask of a float32 matrix product; the CPU knows no TF32."""
    allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if x.is_cuda and allowed else "ieee"
