"""Elementwise functions with up to two numbers, and their gradients, over maps of any shape.

Functions are computed in float32 and rounded once, as products of `precision` read them. Every
gradient reads the input. Maps are contiguous or channel ranges, of the same shape and dtype.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from ..language import elementwise
from ..language.elementwise import block_at, block_channels, block_ptrs, load_values, store_values
from ..language.rounding import stored, stored_reference
from .unary_math import unary as _unary
from .unary_math import unary_gradient as _unary_gradient

# The numbers a and b of functions that have any.
NUMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "softplus": ("beta", "threshold"),
    "celu": ("alpha",),
    "hardtanh": ("minimum", "maximum"),
    "clamp": ("minimum", "maximum"),
    "threshold": ("threshold", "value"),
    "pow": ("exponent",),
    "reciprocal": ("numerator",),
}


@cache
def _hands_on_at_bounds() -> bool:
    """Whether the gradient of torch.clamp passes at a bound. In torch 2.11 it does, in 2.15 not.

    The first launch calls this, not the import: autograd starts CUDA, after which a forked process
    cannot use the GPU.
    """
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.zeros(1, requires_grad=True, device="cpu")
        (dx,) = torch.autograd.grad(torch.clamp(x, min=0.0), x, torch.ones(1, device="cpu"))
    return bool(dx)


@triton.jit(do_not_specialize=["numel"])
def _unary_kernel(
    x_ptr, y_ptr, numel, a, b,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    start, offs, mask, is_whole = block_at(numel, BLOCK)
    x = load_values(x_ptr + start + offs, mask, is_whole)
    store_values(y_ptr + start + offs, _unary(x, a, b, FUNCTION), mask, is_whole, PRECISION)


@triton.jit(do_not_specialize=["numel"])
def _unary_grad_kernel(
    x_ptr, dy_ptr, dx_ptr, numel, a, b,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    start, offs, mask, is_whole = block_at(numel, BLOCK)
    x = load_values(x_ptr + start + offs, mask, is_whole)
    dy = load_values(dy_ptr + start + offs, mask, is_whole)
    dx = _unary_gradient(x, dy, a, b, FUNCTION)
    store_values(dx_ptr + start + offs, dx, mask, is_whole, PRECISION)


@triton.jit(do_not_specialize=["pixels", "lanes", "x_lanes", "y_lanes"])
def _unary_ranges_kernel(
    x_ptr, y_ptr, pixels, lanes, x_lanes, y_lanes, a, b,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr,
    LANE: tl.constexpr, BLOCK_PIXELS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    c, mask = block_channels(pixels, lanes, LANE, BLOCK_PIXELS, BLOCK_C)
    x = tl.load(block_ptrs(x_ptr, c, x_lanes, LANE, BLOCK_PIXELS), mask=mask, other=0.0)
    y = stored(_unary(x.to(tl.float32), a, b, FUNCTION), x.dtype, PRECISION)
    tl.store(block_ptrs(y_ptr, c, y_lanes, LANE, BLOCK_PIXELS), y, mask=mask)


@triton.jit(do_not_specialize=["pixels", "lanes", "x_lanes", "dy_lanes", "dx_lanes"])
def _unary_grad_ranges_kernel(
    x_ptr, dy_ptr, dx_ptr, pixels, lanes, x_lanes, dy_lanes, dx_lanes, a, b,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr,
    LANE: tl.constexpr, BLOCK_PIXELS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    c, mask = block_channels(pixels, lanes, LANE, BLOCK_PIXELS, BLOCK_C)
    x = tl.load(block_ptrs(x_ptr, c, x_lanes, LANE, BLOCK_PIXELS), mask=mask, other=0.0)
    dy = tl.load(block_ptrs(dy_ptr, c, dy_lanes, LANE, BLOCK_PIXELS), mask=mask, other=0.0)
    wide = _unary_gradient(x.to(tl.float32), dy.to(tl.float32), a, b, FUNCTION)
    dx = stored(wide, dy.dtype, PRECISION)
    tl.store(block_ptrs(dx_ptr, c, dx_lanes, LANE, BLOCK_PIXELS), dx, mask=mask)


def unary(
    x: Tensor, y: Tensor, *,
    function: str, a: float = 0.0, b: float = 0.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """y = one of FUNCTIONS of x, with the numbers a and b of NUMBERS. y may be x."""
    settings = {"a": float(a), "b": float(b), "FUNCTION": function, "PRECISION": precision}
    elementwise.launch_maps(_unary_kernel, _unary_ranges_kernel, x, y, **settings)


def unary_grad(
    x: Tensor, dy: Tensor, dx: Tensor, *,
    function: str, a: float = 0.0, b: float = 0.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """The gradient dx of `unary` from its input x and dy. dx may be dy."""
    if function == "clamp" and not _hands_on_at_bounds():
        function = "clamp_inside"
    settings = {"a": float(a), "b": float(b), "FUNCTION": function, "PRECISION": precision}
    elementwise.launch_maps(_unary_grad_kernel, _unary_grad_ranges_kernel, x, dy, dx, **settings)


_FUNCTIONS: Final[Mapping[str, Callable[[Tensor, float, float], Tensor]]] = {
    "mish": lambda x, a, b: functional.mish(x),
    "softplus": functional.softplus,
    "celu": lambda x, a, b: functional.celu(x, a),
    "selu": lambda x, a, b: functional.selu(x),
    "log_sigmoid": lambda x, a, b: functional.logsigmoid(x),
    "softsign": lambda x, a, b: functional.softsign(x),
    "hardtanh": functional.hardtanh,
    "clamp": torch.clamp,
    "threshold": functional.threshold,
    "abs": lambda x, a, b: x.abs(),
    "exp": lambda x, a, b: x.exp(),
    "log": lambda x, a, b: x.log(),
    "sin": lambda x, a, b: x.sin(),
    "cos": lambda x, a, b: x.cos(),
    "sqrt": lambda x, a, b: x.sqrt(),
    "rsqrt": lambda x, a, b: x.rsqrt(),
    "square": lambda x, a, b: x.square(),
    "cube": lambda x, a, b: x.pow(3),
    "reciprocal": lambda x, a, b: a / x,
    "pow": lambda x, a, b: x.pow(a),
}
FUNCTIONS: Final = tuple(_FUNCTIONS)


def unary_reference(
    x: Tensor, y: Tensor, *,
    function: str, a: float = 0.0, b: float = 0.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `unary` in float64.

    Float32 loops of torch on the CPU give their last elements other bits than the same values
    before them. A result would then depend on where launches are cut.
    """
    exact = _FUNCTIONS[function](x.detach().double(), a, b)
    y.copy_(stored_reference(exact.float(), y.dtype, precision))


def unary_grad_reference(
    x: Tensor, dy: Tensor, dx: Tensor, *,
    function: str, a: float = 0.0, b: float = 0.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `unary_grad` in float64, by torch's autograd."""
    with torch.enable_grad():
        leaf = x.detach().double().requires_grad_()
        y = _FUNCTIONS[function](leaf, a, b)
    (exact,) = torch.autograd.grad(y, leaf, dy.detach().double())
    dx.copy_(stored_reference(exact.float(), dx.dtype, precision))
