"""Rounding of the operands of TF32 products, and of sums in float32.

Tensor cores read the 10 bits of mantissa that TF32 has and ignore the other 13 bits of float32.
Kernels therefore round what TF32 products will read to the nearest TF32 value when they store it.
Unrounded values would be cut toward zero. Every product would lose 7e-4 of its value, and errors of
one sign add up from layer to layer: 5e-3 of the gradient of VGG-16's last weight, 8 times torch's
error (H200, 2026-11-21). `precision` is "tf32" for maps that TF32 products read, else "ieee".

Every NaN becomes NAN. Its 13 low bits are zero, and a code of the other bits holds it.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import device

PLAIN: Final = tl.constexpr(device.interpreted())  # the interpreter runs no instructions of PTX
HALF: Final = tl.constexpr(1 << 12)  # half of the last bit that TF32 keeps
KEPT: Final = tl.constexpr(-(1 << 13))  # mask of the bits that TF32 keeps
NAN: Final = tl.constexpr(0x7FC00000)  # bits of the NaN that rounding leaves


@triton.jit
def round_tf32(x) -> tl.tensor:
    """float32 values rounded to the nearest TF32 value, halves away from zero; NaN becomes NAN."""
    bits = (x.to(tl.int32, bitcast=True) + HALF) & KEPT
    return tl.where(x == x, bits, NAN).to(tl.float32, bitcast=True)


@triton.jit
def stored(x, dtype: tl.constexpr, PRECISION: tl.constexpr) -> tl.tensor:
    """float32 values as a map of `dtype` holds them, rounded for products of `PRECISION`."""
    if PRECISION == "tf32" and dtype == tl.float32:
        x = round_tf32(x)
    return x.to(dtype)


@triton.jit
def narrowed(x, dtype: tl.constexpr) -> tl.tensor:
    """float32 values rounded to `dtype`.

    bfloat16 is rounded in pairs by one instruction. Single values are rounded by an instruction at
    an eighth of its rate: SiLU's gradient behind a normalization had 2 of 43 an element.
    """
    if dtype == tl.bfloat16 and not PLAIN:
        narrow = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        narrow = x.to(dtype)
    return narrow


@triton.jit
def as_stored(x, dtype: tl.constexpr) -> tl.tensor:
    """float32 values rounded to `dtype`, in float32 again."""
    return narrowed(x, dtype).to(tl.float32)


@triton.jit
def rectified_as_stored(x, dtype: tl.constexpr) -> tl.tensor:
    """max(x, 0) of float32 values, rounded to `dtype`. NaN stays NaN, and -0 becomes 0.

    One instruction does so for a pair of bfloat16 values.
    """
    if dtype == tl.bfloat16 and not PLAIN:
        y = tl.inline_asm_elementwise(
            "cvt.rn.relu.bf16x2.f32 $0, $2, $1;",
            "=r,r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        x = x.to(dtype).to(tl.float32)
        y = tl.where(x <= 0, 0.0, x).to(dtype)
    return y


@triton.jit
def clamped_as_stored(x, dtype: tl.constexpr) -> tl.tensor:
    """float32 values clamped to [0, 6], as ReLU6 clamps them, and rounded to `dtype`.

    Two instructions do so for a pair of bfloat16 values. NaN stays NaN, and -0 becomes 0.
    """
    if dtype == tl.bfloat16 and not PLAIN:
        y = tl.inline_asm_elementwise(
            "{ .reg .b32 y, six; cvt.rn.relu.bf16x2.f32 y, $2, $1; mov.b32 six, 0x40C040C0;"
            " min.NaN.bf16x2 $0, y, six; }",
            "=r,r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        x = x.to(dtype).to(tl.float32)
        y = tl.where(x <= 0, 0.0, tl.where(x >= 6, 6.0, x)).to(dtype)
    return y


@triton.jit
def rounded_alone(x) -> tl.tensor:
    """x + 0, which keeps a rounded product apart from a sum that follows in the same kernel.

    The compiler would fuse the product and the sum into one multiply-add, and the product would not
    be rounded. It fuses the product with the added zero instead. It may not drop that zero, which
    turns -0 into 0.
    """
    return x + 0.0


@triton.jit
def ended(acc) -> tl.tensor:
    """Sums of products, once these have ended.

    Hopper's products of warpgroups may read their first operand from registers, after they were
    launched. Triton lets the next step of a loop write these before (triton-lang/triton#9433). It
    waits where the step itself uses the sums, as these no instructions do.
    """
    if not PLAIN:
        acc = tl.inline_asm_elementwise(
            "// sums", "=r,0", [acc], dtype=tl.float32, is_pure=True, pack=1
        )
    return acc


@triton.jit
def add_product(acc, a, b, PRECISION: tl.constexpr) -> tl.tensor:
    """acc + a b. Exact float32 products of a tile are summed by themselves and then added to acc.

    In one chain of K terms the error grows as the root of K: VGG-16's gradients had up to 3.4 times
    the error of torch's (H200, 2026-11-21). `max_num_imprecise_acc` keeps the compiler from joining
    the two sums into one chain. It has no other effect here.
    """
    if PRECISION == "ieee" and a.dtype == tl.float32:
        acc += tl.dot(a, b, input_precision="ieee", max_num_imprecise_acc=1)
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


def stored_reference(x: Tensor, dtype: torch.dtype, precision: str) -> Tensor:
    """x as a map of `dtype` holds it, rounded for products of `precision`: `stored` in torch."""
    if dtype != torch.float32 or precision != "tf32":
        return x.to(dtype)
    wide = x.float()
    bits = (wide.view(torch.int32) + HALF.value) & KEPT.value
    return torch.where(wide.isnan(), NAN.value, bits).view(torch.float32)
