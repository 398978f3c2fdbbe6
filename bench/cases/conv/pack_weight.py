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
) -> Launch:
    """A square weight [K, C/g, 3, 3] is packed into [K, 3, 3, C/g], or into [C, 3, 3, K/g]."""
    channels = size[-1]
    weight = o.randn(channels, channels // groups, 3, 3)
    packed = o.out(channels, 3, 3, channels // groups, dtype=dtype)
    return launching(launcher, weight, packed, groups=groups, precision=precision)


CHECKED = {"bf16": {}, "tf32": {"dtype": F32, "precision": "tf32"}}
CASES = tuple(
    KernelCase(launcher, partial(_pack, launcher), CHECKED, [At((64,))])
    for launcher in (pack_weight, pack_weight_grad_input)
)
