"""Rounding in float32 products: their operands, as TF32 holds them, and their sums.

Tensor cores read of float32 what TF32 holds, 10 bits of mantissa, and ignore the other 13. What
products will read is rounded to nearest when it is written. Left to the tensor cores, values are
cut toward zero: every product loses 7e-4 of itself, errors of one sign that add up from layer to
layer (5e-3 of the gradient of VGG-16's last weight, 8 times torch's error; H200, 2026-11-21).
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

HALF: Final = tl.constexpr(1 << 12)
KEPT: Final = tl.constexpr(-(1 << 13))


@triton.jit
def round_tf32(x) -> tl.tensor:
    """float32 values to the nearest that TF32 holds, halves away from zero; NaN stays."""
    bits = (x.to(tl.int32, bitcast=True) + HALF) & KEPT
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)


@triton.jit
def stored(x, dtype: tl.constexpr, PRECISION: tl.constexpr) -> tl.tensor:
    """float32 values as a map of this type holds them, for products of this precision."""
    if PRECISION == "tf32" and dtype == tl.float32:
        x = round_tf32(x)
    return x.to(dtype)


@triton.jit
def rounded_alone(x) -> tl.tensor:
    """float32 values as a map holds them, though a sum may follow in the same kernel.

    The compiler joins a product and the sum behind it, and the product is then not rounded. It may
    not drop a zero that is added, which makes -0 into 0, and joins the product with that.
    """
    return x + 0.0


@triton.jit
def add_product(acc, a, b, PRECISION: tl.constexpr) -> tl.tensor:
    """acc + a b, where exact float32 products are summed apart and then added.

    In one chain of K terms the error grows as the root of K: VGG-16's gradients had up to 3.4 times
    the error of torch's (H200, 2026-11-21). A bound on imprecise sums, which means nothing here, is
    what keeps the compiler from joining the chains again.
    """
    if PRECISION == "ieee" and a.dtype == tl.float32:
        acc += tl.dot(a, b, input_precision="ieee", max_num_imprecise_acc=1)
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


def stored_reference(x: Tensor, dtype: torch.dtype, precision: str) -> Tensor:
    """What `stored` computes."""
    if dtype != torch.float32 or precision != "tf32":
        return x.to(dtype)
    wide = x.float()
    bits = (wide.view(torch.int32) + HALF.value) & KEPT.value
    return torch.where(wide.isnan(), wide, bits.view(torch.float32))
