"""Launches of linear.py to compile."""

from functools import partial

import torch

from tests.support.offline import Case
from tvdnn.kernels.linear import fused_update as linear_update
from tvdnn.kernels.linear import passes as linear
from tvdnn.kernels.linear import transpose as linear_turned


def _shares(inputs: int, outputs: int, dtype: torch.dtype, precision: str) -> None:
    x = torch.empty(256, inputs, dtype=dtype, device="meta")
    dy = torch.empty(256, outputs, dtype=dtype, device="meta")
    weight = torch.empty(outputs, inputs, dtype=dtype, device="meta")
    bias = torch.empty(outputs, device="meta")
    partials = torch.empty(256, 4, outputs, device="meta")
    linear.linear(x, weight, bias, dy, precision=precision, relu=True, partials=partials)
    partials = torch.empty(256, 4, inputs, device="meta")
    masked = {"mask": x, "scale": 2.0, "partials": partials}
    linear.linear_grad_input(dy, weight, x, precision=precision, **masked)


def _turned(
    inputs: int, outputs: int, dtype: torch.dtype, precision: str
) -> list[torch.Tensor] | None:
    if not linear_turned.turns(256, dtype, precision):
        return None
    return [torch.empty(size, 256, dtype=dtype, device="meta") for size in (inputs, outputs)]


def _products(inputs: int, outputs: int, dtype: torch.dtype, precision: str) -> None:
    x = torch.empty(256, inputs, dtype=dtype, device="meta")
    dy = torch.empty(256, outputs, dtype=dtype, device="meta")
    weight = torch.empty(outputs, inputs, dtype=dtype, device="meta")
    gradient = torch.empty(outputs, inputs, device="meta")
    bias = torch.empty(outputs, device="meta")
    linear.linear(x, weight, bias, dy, precision=precision)
    linear.linear_grad_input(dy, weight, x, precision=precision)
    turned = _turned(inputs, outputs, dtype, precision)
    linear.linear_grad_weight(x, dy, gradient, group=256, precision=precision, turned=turned)


def _fused(inputs: int, outputs: int, dtype: torch.dtype, precision: str) -> None:
    x = torch.empty(256, inputs, dtype=dtype, device="meta")
    dy = torch.empty(256, outputs, dtype=dtype, device="meta")
    weight = torch.empty(outputs, inputs, dtype=dtype, device="meta")
    bias = torch.empty(outputs, device="meta")
    linear.linear(x, weight, bias, dy, precision=precision, relu=True)
    linear.linear_grad_input(dy, weight, x, precision=precision, mask=x, scale=2.0)
    param, control = torch.empty(outputs, inputs, device="meta"), torch.empty(8, device="meta")
    settings = {"precision": precision, "turned": _turned(inputs, outputs, dtype, precision)}
    linear_update.linear_grad_weight_sgd(
        x, dy, param, param, control, nesterov=True, maximize=False, **settings
    )
    linear_update.linear_grad_weight_adamw(
        x, dy, param, param, param, control, maximize=False, **settings
    )


def _bias() -> None:
    dy = torch.empty(256, 1000, dtype=BF16, device="meta")
    linear.linear_grad_bias(dy, torch.empty(1, 1000, device="meta"), group=256)


def _few_samples() -> None:
    x, dy = (torch.empty(3, size, dtype=BF16, device="meta") for size in (4096, 1000))
    gradient = torch.empty(1000, 4096, device="meta")
    linear.linear_grad_weight(x, dy, gradient, group=256, precision="ieee")


BF16, F32 = torch.bfloat16, torch.float32
CASES = [
    Case("bf16", partial(_products, 25088, 4096, BF16, "ieee"), wgmma=True),
    Case("bf16, unaligned", partial(_products, 84, 10, BF16, "ieee"), wgmma=True),
    Case("bf16, few samples", _few_samples, wgmma=True),
    Case("tf32", partial(_products, 4096, 1000, F32, "tf32")),
    Case("tf32, wide", partial(_products, 25088, 4096, F32, "tf32")),
    Case("tf32, unaligned", partial(_products, 85, 10, F32, "tf32")),
    Case("fused, bf16", partial(_fused, 25088, 4096, BF16, "ieee"), wgmma=True),
    Case("fused, tf32", partial(_fused, 4096, 1000, F32, "tf32")),
    Case("in shares, bf16", partial(_shares, 25088, 4096, BF16, "ieee")),
    Case("in shares, tf32", partial(_shares, 4096, 1000, F32, "tf32")),
    Case("bias", _bias),
    Case("ieee", partial(_products, 4096, 1000, F32, "ieee")),
]
