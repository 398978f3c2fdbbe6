"""torch in TF32: every convolution and linear layer multiplies operands rounded to TF32.

torch's own switch allows TF32 and does not ask for it. cuDNN computes convolutions of few channels
in float32 all the same, and a CPU all of them. Errors against such a run would compare two types.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bench.generated.calls import CallMode
from tvdnn.kernels.language.rounding import stored_reference

CONVOLUTIONS: Final = (torch.conv1d, torch.conv2d)
TRANSPOSED: Final = (torch.conv_transpose1d, torch.conv_transpose2d)


@contextmanager
def products_in(dtype: str) -> Iterator[None]:
    """torch's float32 products as a type of ours asks: exact, or of operands rounded to TF32."""
    switches = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee"
    try:
        if dtype == "tf32":
            with _Tf32Products():
                yield
        else:
            yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


class _Tf32Products(CallMode):
    """Rounds the operands of products, forward and backward. Depthwise convolutions stay exact."""

    def called(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func not in (*CONVOLUTIONS, *TRANSPOSED, functional.linear):
            return func(*args, **kwargs)
        given = dict(zip(("input", "weight", "bias"), args[:3], strict=False)) | {**kwargs}
        x, weight, bias = (given.pop(name, None) for name in ("input", "weight", "bias"))
        rest = args[3:]
        if x.dtype != torch.float32 or (func in CONVOLUTIONS and _is_depthwise(x, weight)):
            return func(x, weight, bias, *rest, **given)
        y: Tensor = Tf32Product.apply(x, weight, partial(_product, func, rest, given))
        if bias is None:
            return y
        sides = () if func is functional.linear else (1,) * (weight.dim() - 2)
        return y + bias.view(-1, *sides)


def _is_depthwise(x: Tensor, weight: Tensor) -> bool:
    """Whether each filter reads one channel."""
    return weight.shape[1] == 1 and x.shape[1 - weight.dim()] > 1


def _product(
    func: Callable[..., Tensor], rest: Sequence[Any], given: Mapping[str, Any], x: Tensor, w: Tensor
) -> Tensor:
    return func(x, w, None, *rest, **given)


class Tf32Product(torch.autograd.Function):
    """A product and its gradients, which are products too, of operands rounded to TF32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, product: Callable[..., Tensor]) -> Tensor:
        operands = [_rounded(each).requires_grad_() for each in (x, weight)]
        with torch.enable_grad():
            y = product(*operands)
        ctx.operands, ctx.y = operands, y
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        dx, dweight = torch.autograd.grad(ctx.y, ctx.operands, _rounded(dy))
        return dx, dweight, None


def _rounded(x: Tensor) -> Tensor:
    return stored_reference(x.detach().contiguous(), torch.float32, "tf32")
