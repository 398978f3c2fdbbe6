"""Weights laid out for products, forward and backward."""

from collections.abc import Callable
from functools import partial

import torch

from bench.cases.case import At, KernelCase
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.conv.pack_weight import pack_weight, pack_weight_grad_input


def _pack(
    launcher: Callable[..., None],
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    groups: int = 1,
    precision: str = "ieee",
    taps: int = 3,
) -> Launch:
    """A square weight [K, C/g, R, R] is packed into [K, R, R, C/g], or into [C, R, R, K/g]."""
    channels = size[-1]
    weight = o.randn(channels, channels // groups, taps, taps)
    packed = o.out(channels, taps, taps, channels // groups, dtype=dtype)
    return launching(launcher, weight, packed, groups=groups, precision=precision)


CHECKED = {
    "bf16": {},
    "bf16, 1x1": {"taps": 1},
    "tf32": {"dtype": F32, "precision": "tf32"},
    "tf32, 1x1": {"dtype": F32, "precision": "tf32", "taps": 1},
}
CASES = tuple(
    KernelCase(launcher, partial(_pack, launcher), CHECKED, [At((64,)), At((64,), {"taps": 1})])
    for launcher in (pack_weight, pack_weight_grad_input)
)
