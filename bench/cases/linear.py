"""The linear layers of VGG-16 beside cuBLAS's products: output, input and weight gradients."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from bench.cases.case import Calls, Case
from bench.timing import DTYPES
from tvdnn.kernels.language.rounding import stored_reference
from tvdnn.kernels.linear import passes as linear
from tvdnn.kernels.linear.transpose import turns

SAMPLES: Final = 256
SHAPES: Final = ((25088, 4096), (4096, 4096), (4096, 1000))  # inputs, outputs


class Operands:
    """Random matrices of a layer, and `rounded` to TF32, as our kernels find them."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, samples: int) -> None:
        self.x = torch.randn(samples, inputs, dtype=dtype)
        self.dy = torch.randn(samples, outputs, dtype=dtype)
        self.weight = torch.randn(outputs, inputs, dtype=dtype) * inputs**-0.5
        self.rounded = [stored_reference(t, dtype, "tf32") for t in (self.x, self.dy, self.weight)]


def _partials(y: Tensor, terms: int) -> Tensor | None:
    """Where a product of so many terms leaves the sums of its shares."""
    shares = linear.linear_shares(y.shape[1], terms, y.dtype, "tf32")
    return None if shares == 1 else torch.empty(len(y), shares, y.shape[1])


def forward(o: Operands) -> Calls:
    (x, _, weight), y = o.rounded, torch.full_like(o.dy, torch.nan)
    partials = _partials(y, x.shape[1])

    def own() -> Tensor:
        linear.linear(x, weight, None, y, precision="tf32", partials=partials)
        return y

    return Calls(own, lambda: o.x @ o.weight.T, lambda: o.x.double() @ o.weight.double().T)


def grad_input(o: Operands) -> Calls:
    (_, dy, weight), dx = o.rounded, torch.full_like(o.x, torch.nan)
    partials = _partials(dx, dy.shape[1])

    def own() -> Tensor:
        linear.linear_grad_input(dy, weight, dx, precision="tf32", partials=partials)
        return dx

    return Calls(own, lambda: o.dy @ o.weight, lambda: o.dy.double() @ o.weight.double())


def grad_weight(o: Operands) -> Calls:
    """A float32 gradient, on both sides."""
    (x, dy, _), grad = o.rounded, torch.full_like(o.weight, torch.nan, dtype=torch.float32)
    turned = None
    if turns(len(x), x.dtype, "tf32"):
        turned = [torch.empty(matrix.shape[::-1]) for matrix in (x, dy)]
    options = {"group": len(x), "precision": "tf32", "turned": turned}

    def own() -> Tensor:
        linear.linear_grad_weight(x, dy, grad, **options)
        return grad

    return Calls(own, lambda: _product(o.dy.T, o.x), lambda: o.dy.double().T @ o.x.double())


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Torch's, in float32."""
    if left.dtype == torch.float32:
        return left @ right
    return torch.mm(left, right, out_dtype=torch.float32)


PASSES: Final = {
    "linear": forward,
    "linear_grad_input": grad_input,
    "linear_grad_weight": grad_weight,
}


def cases(dtype: str) -> Iterator[Case]:
    for inputs, outputs in SHAPES:
        numels = (SAMPLES * inputs, SAMPLES * outputs, inputs * outputs)
        for kernel, calls in PASSES.items():
            nbytes = [numel * DTYPES[dtype].itemsize for numel in numels]
            if kernel == "linear_grad_weight":
                nbytes[2] = 4 * numels[2]
            yield Case(
                kernel, f"{inputs}->{outputs}", dtype, 2.0 * SAMPLES * inputs * outputs,
                float(sum(nbytes)), partial(_make, inputs, outputs, DTYPES[dtype], calls),
                SAMPLES, peer="cuBLAS",
            )  # fmt: skip


def _make(
    inputs: int, outputs: int, dtype: torch.dtype, calls: Callable[[Operands], Calls], samples: int
) -> Calls:
    return calls(Operands(inputs, outputs, dtype, samples))
