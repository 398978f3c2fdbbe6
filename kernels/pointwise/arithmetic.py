"""Sums, products and multiples of maps, element by element, and the gradients of products.

Results are computed in float32 and rounded once, as products of `precision` read them. All operands
of a launch are contiguous and have the same shape and dtype.
"""

import triton
import triton.language as tl
from torch import Tensor

from ..language.elementwise import block_at, launch, load_values, store_values
from ..language.rounding import stored_reference


@triton.jit(do_not_specialize=["numel"])
def _affine_kernel(
    x_ptr, y_ptr, numel, scale, shift, PRECISION: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    start, offs, mask, is_whole = block_at(numel, BLOCK)
    y = load_values(x_ptr + start + offs, mask, is_whole) * scale + shift
    store_values(y_ptr + start + offs, y, mask, is_whole, PRECISION)


@triton.jit(do_not_specialize=["numel"])
def _add_multiple_kernel(
    a_ptr, b_ptr, y_ptr, numel, scale, PRECISION: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    start, offs, mask, is_whole = block_at(numel, BLOCK)
    a = load_values(a_ptr + start + offs, mask, is_whole)
    y = tl.fma(load_values(b_ptr + start + offs, mask, is_whole), scale, a)
    store_values(y_ptr + start + offs, y, mask, is_whole, PRECISION)


@triton.jit(do_not_specialize=["numel"])
def _multiply_kernel(
    a_ptr, b_ptr, y_ptr, numel, PRECISION: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    start, offs, mask, is_whole = block_at(numel, BLOCK)
    y = load_values(a_ptr + start + offs, mask, is_whole) * load_values(
        b_ptr + start + offs, mask, is_whole
    )
    store_values(y_ptr + start + offs, y, mask, is_whole, PRECISION)


@triton.jit(do_not_specialize=["numel"])
def _multiply_grad_kernel(
    a_ptr, b_ptr, dy_ptr, da_ptr, db_ptr, numel, PRECISION: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    start, offs, mask, is_whole = block_at(numel, BLOCK)
    dy = load_values(dy_ptr + start + offs, mask, is_whole)
    da = dy * load_values(b_ptr + start + offs, mask, is_whole)
    db = dy * load_values(a_ptr + start + offs, mask, is_whole)
    store_values(da_ptr + start + offs, da, mask, is_whole, PRECISION)
    store_values(db_ptr + start + offs, db, mask, is_whole, PRECISION)


def affine(
    x: Tensor, y: Tensor, *, scale: float, shift: float = 0.0, precision: str = "ieee"
) -> None:
    """y = scale * x + shift. y may be x."""
    settings = {"scale": float(scale), "shift": float(shift), "PRECISION": precision}
    launch(_affine_kernel, x, y, **settings)


def add_multiple(a: Tensor, b: Tensor, y: Tensor, *, scale: float, precision: str = "ieee") -> None:
    """y = a + scale * b. y may be a or b."""
    launch(_add_multiple_kernel, a, b, y, scale=float(scale), PRECISION=precision)


def multiply(a: Tensor, b: Tensor, y: Tensor, *, precision: str = "ieee") -> None:
    """y = a * b. y may be a or b."""
    launch(_multiply_kernel, a, b, y, PRECISION=precision)


def multiply_grad(
    a: Tensor, b: Tensor, dy: Tensor, da: Tensor, db: Tensor, *, precision: str = "ieee"
) -> None:
    """da = dy * b and db = dy * a. Each operand is read once. da or db may be dy."""
    launch(_multiply_grad_kernel, a, b, dy, da, db, PRECISION=precision)


def affine_reference(
    x: Tensor, y: Tensor, *, scale: float, shift: float = 0.0, precision: str = "ieee"
) -> None:
    """Computes `affine` in torch."""
    y.copy_(stored_reference((x.double() * scale + shift).float(), y.dtype, precision))


def add_multiple_reference(
    a: Tensor, b: Tensor, y: Tensor, *, scale: float, precision: str = "ieee"
) -> None:
    """Computes `add_multiple` in torch."""
    total = a.double() + scale * b.double()
    y.copy_(stored_reference(total.float(), y.dtype, precision))


def multiply_reference(a: Tensor, b: Tensor, y: Tensor, *, precision: str = "ieee") -> None:
    """Computes `multiply` in torch."""
    y.copy_(stored_reference(a.float() * b.float(), y.dtype, precision))


def multiply_grad_reference(
    a: Tensor, b: Tensor, dy: Tensor, da: Tensor, db: Tensor, *, precision: str = "ieee"
) -> None:
    """Computes `multiply_grad` in torch."""
    products = dy.float() * b.float(), dy.float() * a.float()
    for gradient, product in zip((da, db), products, strict=True):
        gradient.copy_(stored_reference(product, gradient.dtype, precision))
