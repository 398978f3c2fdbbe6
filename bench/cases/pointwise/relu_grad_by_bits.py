"""The gradient of ReLU by sign bits."""

from typing import Any, Final

import torch

from bench.cases.case import BY_TYPE, KINDS, KernelCase, at, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, U8, Operands, Shape
from tvdnn.kernels.pointwise.relu_grad_by_bits import relu_grad_by_bits

SIZES: Final = ((2, 9, 9, 64), (2, 9, 9, 24), (1, 1, 1, 8))
RANGES: Final = {"ranges": {"beside": (8, 16)}, "bits in a range": {"bits_beside": (32, 8)}}


def _grad(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    beside: Shape = (),
    bits_beside: Shape = (),
    **settings: Any,
) -> Launch:
    *pixels, channels = size
    before, after = (each // 8 for each in bits_beside or (0, 0))
    wide = o.integers(256, *pixels, before + channels // 8 + after, dtype=U8)
    signs = wide[..., before : before + channels // 8]
    dy, dx = o.randn(*size, dtype=dtype, beside=beside), o.out(*size, dtype=dtype, beside=beside)
    return launching(relu_grad_by_bits, signs, dy, dx, **settings)


CASES = (
    KernelCase(
        relu_grad_by_bits,
        _grad,
        BY_TYPE | RANGES,
        at(SIZES, over(KINDS, beside=[(), (32, 64)], bits_beside=[(), (32, 64)])),
        odd=False,
    ),
)
