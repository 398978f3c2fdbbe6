"""ReLU and other elementwise functions over the kernels, in any memory layout."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from .eager import checked, run, torchs_own
from .layouts import elementwise


class Elementwise(torch.nn.Module):
    """A layer of torch's that runs the elementwise op `kind`; of a single number by torch.

    `numbers` are settings of the op, each with the name of the layer's attribute for it. `by_input`
    is as `_Request` has it. A class gives them as keywords.
    """

    kind: ClassVar[str]
    numbers: ClassVar[tuple[tuple[str, str], ...]] = ()
    by_input: ClassVar[bool] = False

    def __init_subclass__(cls, kind: str = "", by_input: bool = False, **numbers: Any) -> None:
        if kind:
            cls.kind, cls.by_input, cls.numbers = kind, by_input, tuple(numbers.items())
        else:  # a user's own class
            super().__init_subclass__(**numbers)

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


class ReLU(Elementwise, torch.nn.ReLU, kind="relu"):
    """torch.nn.ReLU, run by tvdnn's kernels."""


class LeakyReLU(
    Elementwise, torch.nn.LeakyReLU, kind="leaky_relu", by_input=True, coefficient="negative_slope"
):
    """torch.nn.LeakyReLU, run by tvdnn's kernels; by torch where the slope is negative."""

    def forward(self, input: Tensor) -> Tensor:
        if self.negative_slope < 0:
            return torch.nn.LeakyReLU.forward(self, input)
        return super().forward(input)


class ReLU6(Elementwise, torch.nn.ReLU6, kind="relu6", by_input=True):
    """torch.nn.ReLU6, run by tvdnn's kernels."""


class ELU(Elementwise, torch.nn.ELU, kind="elu", coefficient="alpha"):
    """torch.nn.ELU, run by tvdnn's kernels."""


class SiLU(Elementwise, torch.nn.SiLU, kind="silu"):
    """torch.nn.SiLU, run by tvdnn's kernels."""


class GELU(Elementwise, torch.nn.GELU):
    """torch.nn.GELU, exact and by tanh, run by tvdnn's kernels."""

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "gelu_tanh" if self.approximate == "tanh" else "gelu"


class Sigmoid(Elementwise, torch.nn.Sigmoid, kind="sigmoid"):
    """torch.nn.Sigmoid, run by tvdnn's kernels."""


class Tanh(Elementwise, torch.nn.Tanh, kind="tanh"):
    """torch.nn.Tanh, run by tvdnn's kernels."""


class Hardswish(Elementwise, torch.nn.Hardswish, kind="hardswish"):
    """torch.nn.Hardswish, run by tvdnn's kernels."""


class Hardsigmoid(Elementwise, torch.nn.Hardsigmoid, kind="hardsigmoid"):
    """torch.nn.Hardsigmoid, run by tvdnn's kernels."""
