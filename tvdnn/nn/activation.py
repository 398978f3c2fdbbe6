"""ReLU and other elementwise functions over the kernels, in any memory layout."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from .eager import checked, run, torchs_own
from .layouts import elementwise


class Elementwise(torch.nn.Module):
    """A layer of torch's that runs the elementwise op `kind`; of a single number by torch.

    `numbers` are settings of the op, each with the name of the layer's attribute for it. `by_input`
    is as `run` has it.
    """

    kind: ClassVar[str]
    numbers: ClassVar[tuple[tuple[str, str], ...]] = ()
    by_input: ClassVar[bool] = False

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input) or input.dim() == 0:
            y: Tensor = super().forward(input)
            return y
        attrs = {name: float(getattr(self, number)) for name, number in self.numbers}
        inplace: bool = getattr(self, "inplace", False)
        return activate(self.kind, input, attrs=attrs, inplace=inplace, by_input=self.by_input)


def activate(kind: str, x: Tensor, **given: Any) -> Tensor:
    """What the elementwise op of this kind makes of float32 or bfloat16 of any shape."""
    return run(kind, checked(x), layout=elementwise(x), **given)


class ReLU(Elementwise, torch.nn.ReLU):
    """torch.nn.ReLU, run by tvdnn's kernels."""

    kind = "relu"


class LeakyReLU(Elementwise, torch.nn.LeakyReLU):
    """torch.nn.LeakyReLU, run by tvdnn's kernels; by torch where the slope is negative."""

    kind, by_input = "leaky_relu", True
    numbers = (("coefficient", "negative_slope"),)

    def forward(self, input: Tensor) -> Tensor:
        if self.negative_slope < 0:
            return torch.nn.LeakyReLU.forward(self, input)
        return super().forward(input)


class ReLU6(Elementwise, torch.nn.ReLU6):
    """torch.nn.ReLU6, run by tvdnn's kernels."""

    kind, by_input = "relu6", True


class ELU(Elementwise, torch.nn.ELU):
    """torch.nn.ELU, run by tvdnn's kernels."""

    kind = "elu"
    numbers = (("coefficient", "alpha"),)


class SiLU(Elementwise, torch.nn.SiLU):
    """torch.nn.SiLU, run by tvdnn's kernels."""

    kind = "silu"


class GELU(Elementwise, torch.nn.GELU):
    """torch.nn.GELU, exact and by tanh, run by tvdnn's kernels."""

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "gelu_tanh" if self.approximate == "tanh" else "gelu"


class Sigmoid(Elementwise, torch.nn.Sigmoid):
    """torch.nn.Sigmoid, run by tvdnn's kernels."""

    kind = "sigmoid"


class Tanh(Elementwise, torch.nn.Tanh):
    """torch.nn.Tanh, run by tvdnn's kernels."""

    kind = "tanh"


class Hardswish(Elementwise, torch.nn.Hardswish):
    """torch.nn.Hardswish, run by tvdnn's kernels."""

    kind = "hardswish"


class Hardsigmoid(Elementwise, torch.nn.Hardsigmoid):
    """torch.nn.Hardsigmoid, run by tvdnn's kernels."""

    kind = "hardsigmoid"
