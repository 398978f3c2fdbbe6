"""ReLU and other elementwise functions over the kernels, in any memory layout."""

from typing import Any

import torch
from torch import Tensor

from .eager import checked, run, torchs_own
from .layouts import elementwise


def is_torchs(x: Tensor) -> bool:
    """Whether an elementwise function is left to torch, as of a number and of no elements."""
    return torchs_own(x) or x.dim() == 0 or x.numel() == 0


def activate(kind: str, x: Tensor, **given: Any) -> Tensor:
    """What the elementwise op of this kind makes of float32 or bfloat16 of any shape."""
    return run(kind, checked(x), layout=elementwise(x), **given)


class ReLU(torch.nn.ReLU):
    """torch.nn.ReLU, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        return activate("relu", input, inplace=self.inplace)


class LeakyReLU(torch.nn.LeakyReLU):
    """torch.nn.LeakyReLU, run by tvdnn's kernels; by torch where the slope is negative."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input) or self.negative_slope < 0:
            return super().forward(input)
        attrs = {"coefficient": float(self.negative_slope)}
        return activate("leaky_relu", input, attrs=attrs, inplace=self.inplace, by_input=True)


class ReLU6(torch.nn.ReLU6):
    """torch.nn.ReLU6, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        return activate("relu6", input, inplace=self.inplace, by_input=True)


class ELU(torch.nn.ELU):
    """torch.nn.ELU, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        attrs = {"coefficient": float(self.alpha)}
        return activate("elu", input, attrs=attrs, inplace=self.inplace)


class SiLU(torch.nn.SiLU):
    """torch.nn.SiLU, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        return activate("silu", input, inplace=self.inplace)


class GELU(torch.nn.GELU):
    """torch.nn.GELU, exact and by tanh, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        kind = {"none": "gelu", "tanh": "gelu_tanh"}.get(self.approximate)
        if is_torchs(input) or kind is None:
            return super().forward(input)
        return activate(kind, input)


class Sigmoid(torch.nn.Sigmoid):
    """torch.nn.Sigmoid, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if is_torchs(input) else activate("sigmoid", input)


class Tanh(torch.nn.Tanh):
    """torch.nn.Tanh, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if is_torchs(input) else activate("tanh", input)


class Hardswish(torch.nn.Hardswish):
    """torch.nn.Hardswish, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        return activate("hardswish", input, inplace=self.inplace)


class Hardsigmoid(torch.nn.Hardsigmoid):
    """torch.nn.Hardsigmoid, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        return activate("hardsigmoid", input, inplace=self.inplace)
