"""Activation functions and their gradients, element by element over maps of any shape.

ReLU copies values. Other functions are computed in float32 and rounded once, as products of
`precision` read them. Gradients of the functions BY_OUTPUT read the output, the others the input.
From the output of ELU alpha would cancel. The output of Hardsigmoid in bfloat16 is 1 from 2.98 on
instead of 3. Maps are contiguous or channel ranges, of the same shape and dtype.
"""

from collections.abc import Callable, Mapping
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from ..language import elementwise
from ..language.elementwise import block_at, block_channels, block_ptrs, load_values, store_values
from ..language.rounding import stored, stored_reference
from .activation_math import activated, grad_by_input, grad_by_output, rectified_reference

BY_OUTPUT: Final = ("leaky_relu", "sigmoid", "tanh", "relu6")
BY_EXACT_OUTPUT: Final = ("sigmoid", "tanh")  # 1, without a gradient, where TF32 rounds them up
BY_INPUT: Final = ("elu", "silu", "gelu", "gelu_tanh", "hardswish", "hardsigmoid")
FUNCTIONS: Final = (*BY_OUTPUT, *BY_INPUT)
_RELU: Final = {"FUNCTION": "relu", "coefficient": 0.0}


@triton.jit
def _relu(x):
    return tl.where(x <= 0, 0.0, x)  # keeps NaN


@triton.jit
def _masked_gradient(y, dy):
    return tl.where(y <= 0, 0.0, dy)  # passes through where y is NaN


@triton.jit(do_not_specialize=["numel"])
def _relu_kernel(x_ptr, y_ptr, numel, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK)
    x_ptr += start
    y_ptr += start
    if start + BLOCK <= numel:
        x = tl.load(x_ptr + offs)
        tl.store(y_ptr + offs, stored(_relu(x), x.dtype, PRECISION))
    else:
        mask = offs < numel - start
        x = tl.load(x_ptr + offs, mask=mask, other=0.0)
        tl.store(y_ptr + offs, stored(_relu(x), x.dtype, PRECISION), mask=mask)


@triton.jit(do_not_specialize=["numel"])
def _relu_grad_kernel(y_ptr, dy_ptr, dx_ptr, numel, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK)
    y_ptr += start
    dy_ptr += start
    dx_ptr += start
    if start + BLOCK <= numel:
        dy = tl.load(dy_ptr + offs)
        dx = _masked_gradient(tl.load(y_ptr + offs), dy)
        tl.store(dx_ptr + offs, stored(dx, dy.dtype, PRECISION))
    else:
        mask = offs < numel - start
        dy = tl.load(dy_ptr + offs, mask=mask, other=0.0)
        dx = _masked_gradient(tl.load(y_ptr + offs, mask=mask, other=0.0), dy)
        tl.store(dx_ptr + offs, stored(dx, dy.dtype, PRECISION), mask=mask)


@triton.jit(do_not_specialize=["numel"])
def _activate_kernel(
    x_ptr, y_ptr, numel, coefficient,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    start, offs, mask, is_whole = block_at(numel, BLOCK)
    x = load_values(x_ptr + start + offs, mask, is_whole)
    y = activated(x, coefficient, FUNCTION)
    store_values(y_ptr + start + offs, y, mask, is_whole, PRECISION)


@triton.jit(do_not_specialize=["numel"])
def _activate_grad_kernel(
    map_ptr, dy_ptr, dx_ptr, numel, coefficient, FUNCTION: tl.constexpr, BY_OUTPUT: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    start, offs, mask, is_whole = block_at(numel, BLOCK)
    values = load_values(map_ptr + start + offs, mask, is_whole)
    dy = load_values(dy_ptr + start + offs, mask, is_whole)
    if BY_OUTPUT:
        dx = grad_by_output(values, dy, coefficient, FUNCTION)
    else:
        dx = grad_by_input(values, dy, coefficient, FUNCTION)
    store_values(dx_ptr + start + offs, dx, mask, is_whole, PRECISION)


@triton.jit(do_not_specialize=["pixels", "lanes", "x_lanes", "y_lanes"])
def _activate_ranges_kernel(
    x_ptr, y_ptr, pixels, lanes, x_lanes, y_lanes, coefficient,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr,
    LANE: tl.constexpr, BLOCK_PIXELS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    c, mask = block_channels(pixels, lanes, LANE, BLOCK_PIXELS, BLOCK_C)
    x = tl.load(block_ptrs(x_ptr, c, x_lanes, LANE, BLOCK_PIXELS), mask=mask, other=0.0)
    if FUNCTION == "relu":
        y = stored(_relu(x), x.dtype, PRECISION)
    else:
        y = stored(activated(x.to(tl.float32), coefficient, FUNCTION), x.dtype, PRECISION)
    tl.store(block_ptrs(y_ptr, c, y_lanes, LANE, BLOCK_PIXELS), y, mask=mask)


@triton.jit(do_not_specialize=["pixels", "lanes", "map_lanes", "dy_lanes", "dx_lanes"])
def _activate_grad_ranges_kernel(
    map_ptr, dy_ptr, dx_ptr, pixels, lanes, map_lanes, dy_lanes, dx_lanes, coefficient,
    FUNCTION: tl.constexpr, BY_OUTPUT: tl.constexpr, PRECISION: tl.constexpr,
    LANE: tl.constexpr, BLOCK_PIXELS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    c, mask = block_channels(pixels, lanes, LANE, BLOCK_PIXELS, BLOCK_C)
    values = tl.load(block_ptrs(map_ptr, c, map_lanes, LANE, BLOCK_PIXELS), mask=mask, other=0.0)
    dy = tl.load(block_ptrs(dy_ptr, c, dy_lanes, LANE, BLOCK_PIXELS), mask=mask, other=0.0)
    if FUNCTION == "relu":
        dx = stored(_masked_gradient(values, dy), dy.dtype, PRECISION)
    else:
        wide = values.to(tl.float32), dy.to(tl.float32)
        if BY_OUTPUT:
            wide_dx = grad_by_output(wide[0], wide[1], coefficient, FUNCTION)
        else:
            wide_dx = grad_by_input(wide[0], wide[1], coefficient, FUNCTION)
        dx = stored(wide_dx, dy.dtype, PRECISION)
    tl.store(block_ptrs(dx_ptr, c, dx_lanes, LANE, BLOCK_PIXELS), dx, mask=mask)


def relu(x: Tensor, y: Tensor, *, precision: str = "ieee") -> None:
    """y = max(x, 0). NaN stays NaN. y may be x."""
    if elementwise.are_whole(x, y):
        elementwise.launch(_relu_kernel, x, y, PRECISION=precision)
    else:
        elementwise.launch_ranges(_activate_ranges_kernel, x, y, PRECISION=precision, **_RELU)


def relu_grad(y: Tensor, dy: Tensor, dx: Tensor, *, precision: str = "ieee") -> None:
    """dx = dy where the output y of `relu` is above zero or NaN, else 0. dx may be dy."""
    if elementwise.are_whole(y, dy, dx):
        elementwise.launch(_relu_grad_kernel, y, dy, dx, PRECISION=precision)
    else:
        settings = {"BY_OUTPUT": True, "PRECISION": precision, **_RELU}
        elementwise.launch_ranges(_activate_grad_ranges_kernel, y, dy, dx, **settings)


def activate(
    x: Tensor, y: Tensor, *, function: str, coefficient: float = 0.0, precision: str = "ieee"
) -> None:
    """y = one of FUNCTIONS of x, named as in torch. y may be x.

    `coefficient` is the slope of leaky_relu below zero, which is not negative, or the alpha of elu.
    """
    constants: dict[str, str | float] = {"FUNCTION": function, "PRECISION": precision}
    constants["coefficient"] = float(coefficient)
    elementwise.launch_maps(_activate_kernel, _activate_ranges_kernel, x, y, **constants)


def activate_grad(
    values: Tensor, dy: Tensor, dx: Tensor, *,
    function: str, coefficient: float = 0.0, precision: str = "ieee", by_input: bool = False,
) -> None:  # fmt: skip
    """The gradient dx of `activate` from dy. dx may be dy.

    `values` are the output where BY_OUTPUT has the function, else the input. With `by_input` they
    are the input for the functions of BY_EXACT_OUTPUT too. The bits are then those that a float32
    output gives.
    """
    constants: dict[str, str | float] = {"FUNCTION": function, "PRECISION": precision}
    constants |= {"BY_OUTPUT": _reads_output(function, by_input), "coefficient": float(coefficient)}
    elementwise.launch_maps(
        _activate_grad_kernel, _activate_grad_ranges_kernel, values, dy, dx, **constants
    )


def _reads_output(function: str, by_input: bool) -> bool:
    return function in BY_OUTPUT and not by_input


def relu_reference(x: Tensor, y: Tensor, *, precision: str = "ieee") -> None:
    """Computes `relu` in torch."""
    y.copy_(stored_reference(rectified_reference(x), y.dtype, precision))


def relu_grad_reference(y: Tensor, dy: Tensor, dx: Tensor, *, precision: str = "ieee") -> None:
    """Computes `relu_grad` in torch."""
    dx.copy_(stored_reference(dy.masked_fill(y <= 0, 0.0), dx.dtype, precision))


_aten: Final = torch.ops.aten
_VALUES: Final[Mapping[str, Callable[[Tensor, float], Tensor]]] = {
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "silu": lambda x, _: functional.silu(x),
    "gelu": lambda x, _: functional.gelu(x),
    "gelu_tanh": lambda x, _: functional.gelu(x, approximate="tanh"),
    "sigmoid": lambda x, _: torch.sigmoid(x),
    "tanh": lambda x, _: torch.tanh(x),
    "hardswish": lambda x, _: functional.hardswish(x),
    "hardsigmoid": lambda x, _: functional.hardsigmoid(x),
    "relu6": lambda x, _: functional.relu6(x),
}
_GRADIENTS: Final[Mapping[str, Callable[[Tensor, Tensor, float], Tensor]]] = {
    "leaky_relu": lambda y, dy, slope: _aten.leaky_relu_backward(dy, y, slope, True),
    "elu": lambda x, dy, alpha: _aten.elu_backward(dy, alpha, 1.0, 1.0, False, x),
    "silu": lambda x, dy, _: _aten.silu_backward(dy, x),
    "gelu": lambda x, dy, _: _aten.gelu_backward(dy, x),
    "gelu_tanh": lambda x, dy, _: _aten.gelu_backward(dy, x, approximate="tanh"),
    "sigmoid": lambda y, dy, _: _aten.sigmoid_backward(dy, y),
    "tanh": lambda y, dy, _: _aten.tanh_backward(dy, y),
    "hardswish": lambda x, dy, _: _aten.hardswish_backward(dy, x),
    "hardsigmoid": lambda x, dy, _: _aten.hardsigmoid_backward(dy, x),
    "relu6": lambda y, dy, _: dy.masked_fill((y <= 0) | (y >= 6), 0.0),
}


def activate_reference(
    x: Tensor, y: Tensor, *, function: str, coefficient: float = 0.0, precision: str = "ieee"
) -> None:
    """Computes `activate` in float64.

    torch's float32 loops on the CPU give their last elements other bits than the same values before
    them. Results would then depend on where launches are cut.
    """
    exact = _VALUES[function](x.double(), coefficient)
    y.copy_(stored_reference(exact.float(), y.dtype, precision))


def activate_grad_reference(
    values: Tensor, dy: Tensor, dx: Tensor, *,
    function: str, coefficient: float = 0.0, precision: str = "ieee", by_input: bool = False,
) -> None:  # fmt: skip
    """Computes `activate_grad` in float64, as `activate_reference`."""
    if by_input and function in BY_OUTPUT:
        x, values = values, torch.empty_like(values, dtype=torch.float32)
        activate_reference(x, values, function=function, coefficient=coefficient)
    exact = _GRADIENTS[function](values.double(), dy.double(), coefficient)
    dx.copy_(stored_reference(exact.float(), dx.dtype, precision))
