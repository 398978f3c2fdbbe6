"""Launches of unary.py and prelu.py to compile."""

from functools import partial

import torch
from torch import Tensor

from tests.support.offline import Case
from tvdnn.kernels.pointwise.prelu import prelu, prelu_grad, prelu_terms
from tvdnn.kernels.pointwise.unary import FUNCTIONS, unary, unary_grad

IN_RANGES = ("pow", "softplus")  # of one and of two coefficients
KINDS = ((torch.bfloat16, "ieee"), (torch.float32, "tf32"))


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _unary(function: str) -> None:
    settings = {"function": function, "a": 0.5, "b": 2.0}
    for dtype, precision in KINDS:
        x = _empty(2, 9, 9, 64, dtype=dtype)
        unary(x, x, **settings, precision=precision)
        unary_grad(x, x, x, **settings, precision=precision)


def unary_of_ranges(function: str) -> None:
    settings = {"function": function, "a": 0.5, "b": 2.0}
    for dtype, precision in KINDS:
        x, part = _empty(2, 9, 9, 64, dtype=dtype), _empty(2, 9, 9, 160, dtype=dtype)[..., 32:96]
        unary(x, part, **settings, precision=precision)
        unary_grad(part, x, part, **settings, precision=precision)


def _prelu(channels: int, slopes: int) -> None:
    slope, terms = _empty(slopes), prelu_terms(784, channels, slopes)
    for dtype, precision in KINDS:
        x, sums = _empty(2, 784, channels, dtype=dtype), _empty(2, terms, 1, slopes)
        prelu(x, slope, x, precision=precision)
        prelu_grad(x, x, slope, x, sums, precision=precision)
        prelu_grad(x, x, slope, x, None, precision=precision)
        prelu_grad(x, x, slope, None, sums, precision=precision)


CASES = [
    *(Case(f"{name} and its gradient", partial(_unary, name)) for name in FUNCTIONS),
    *(Case(f"{name} of ranges", partial(unary_of_ranges, name)) for name in IN_RANGES),
    Case("PReLU of one slope", partial(_prelu, 96, 1)),
    Case("PReLU of a slope a channel", partial(_prelu, 65, 65)),
]
