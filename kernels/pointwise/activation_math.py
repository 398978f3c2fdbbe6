"""The arithmetic of activation functions and of their gradients, by name, in float32.

Sums of products are written as fused multiply-adds. A function therefore has the same bits in every
kernel. The direction of a comparison decides where NaN goes, and sends it where torch does.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from ..language import device

PLAIN: Final = tl.constexpr(device.interpreted())  # the interpreter runs no instructions of PTX
LOG2_E: Final = tl.constexpr(1.4426950408889634)
SIXTH: Final = tl.constexpr(1 / 6)
ROOT_HALF: Final = tl.constexpr(0.5**0.5)
DENSITY: Final = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)
CUBIC: Final = tl.constexpr(0.044715)
TWICE_ROOT: Final = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)


@triton.jit
def exp(x) -> tl.tensor:
    """e^x as `tl.exp` computes it, but 0 below 2^-126: three instructions fewer, of five."""
    if PLAIN:
        y = tl.exp(x)
    else:
        y = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * LOG2_E], dtype=tl.float32, is_pure=True,
            pack=1,
        )  # fmt: skip
    return y


@triton.jit
def reciprocal(x) -> tl.tensor:
    """1 / x, but 0 above 2^126: one instruction, of which a division takes seven."""
    if PLAIN:
        y = 1.0 / x
    else:
        y = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return y


@triton.jit
def expm1(x) -> tl.tensor:
    """e^x - 1. For |x| < 0.5, where the difference would cancel, by its series."""
    series = tl.fma(x, 1 / 40320, 1 / 5040)
    series = tl.fma(series, x, 1 / 720)
    series = tl.fma(series, x, 1 / 120)
    series = tl.fma(series, x, 1 / 24)
    series = tl.fma(series, x, 1 / 6)
    series = tl.fma(series, x, 0.5)
    return tl.where(tl.abs(x) < 0.5, tl.fma(series, x * x, x), tl.exp(x) - 1.0)


def rectified_reference(x: Tensor) -> Tensor:
    """max(x, 0) in torch, as kernels compute it: -0 becomes 0, NaN stays."""
    return x.masked_fill(x <= 0, 0.0)


@triton.jit
def _sigmoid(x):
    return reciprocal(1.0 + exp(-x))


@triton.jit
def shares(x) -> tuple[tl.tensor, tl.tensor]:
    """The sigmoids of x and of -x, whose sum is 1. Neither is computed as a difference."""
    less = exp(-tl.abs(x))
    large = reciprocal(1.0 + less)
    small = less * large
    return tl.where(x < 0, small, large), tl.where(x < 0, large, small)


@triton.jit
def _tanh(x):
    """-t / (t + 2) for t = e^(-2 |x|) - 1, which neither cancels nor overflows, with x's sign."""
    t = expm1(-2.0 * tl.abs(x))
    size = -t / (t + 2.0)
    return tl.where(x < 0, -size, size)


@triton.jit
def _normal(x):
    """The cumulative distribution function of the normal distribution."""
    return tl.fma(tl.erf(x * ROOT_HALF), 0.5, 0.5)


@triton.jit
def _cubic(x):
    """2 sqrt(2 / pi) (x + 0.044715 x^3), whose sigmoid approximates `_normal`."""
    return TWICE_ROOT * x * tl.fma(CUBIC * x, x, 1.0)


@triton.jit
def _to_six(x):
    """x clamped to [0, 6]. NaN stays NaN."""
    return tl.where(x <= 0, 0.0, tl.where(x >= 6, 6.0, x))


@triton.jit
def activated(x, coefficient, FUNCTION: tl.constexpr) -> tl.tensor:
    """The activation function of float32 x. `coefficient` is leaky_relu's slope or elu's alpha."""
    if FUNCTION == "leaky_relu":
        y = tl.where(x > 0, x, coefficient * x)
    elif FUNCTION == "elu":
        y = tl.where(x > 0, x, coefficient * expm1(x))
    elif FUNCTION == "silu":
        y = x * _sigmoid(x)
    elif FUNCTION == "gelu":
        y = x * _normal(x)
    elif FUNCTION == "gelu_tanh":
        y = x * _sigmoid(_cubic(x))  # (1 + tanh(z)) / 2 is a sigmoid of 2 z
    elif FUNCTION == "sigmoid":
        y = _sigmoid(x)
    elif FUNCTION == "tanh":
        y = _tanh(x)
    elif FUNCTION == "hardswish":
        y = x * _to_six(x + 3.0) * SIXTH
    elif FUNCTION == "hardsigmoid":
        y = _to_six(x + 3.0) * SIXTH
    else:
        tl.static_assert(FUNCTION == "relu6")
        y = _to_six(x)
    return y


@triton.jit
def grad_by_output(y, dy, coefficient, FUNCTION: tl.constexpr) -> tl.tensor:
    """The gradient of the input of an activation function, from its output y and dy."""
    if FUNCTION == "leaky_relu":
        dx = tl.where(y > 0, dy, coefficient * dy)
    elif FUNCTION == "sigmoid":
        dx = dy * (1.0 - y) * y
    elif FUNCTION == "tanh":
        dx = dy * tl.fma(-y, y, 1.0)
    else:
        tl.static_assert(FUNCTION == "relu6")
        dx = tl.where((y <= 0) | (y >= 6), 0.0, dy)
    return dx


@triton.jit
def grad_by_input(x, dy, coefficient, FUNCTION: tl.constexpr) -> tl.tensor:
    """The gradient of the input x of an activation function, from x and dy.

    The outputs of sigmoid and tanh are computed again.
    """
    if FUNCTION == "sigmoid" or FUNCTION == "tanh":
        dx = grad_by_output(activated(x, coefficient, FUNCTION), dy, coefficient, FUNCTION)
    elif FUNCTION == "elu":
        dx = tl.where(x <= 0, dy * coefficient * tl.exp(x), dy)
    elif FUNCTION == "silu":
        share = _sigmoid(x)  # 1 - share has an absolute error of 2^-25 beside 1
        dx = dy * share * tl.fma(x, 1.0 - share, 1.0)
    elif FUNCTION == "gelu":
        dx = dy * tl.fma(x, DENSITY * tl.exp(-0.5 * x * x), _normal(x))
    elif FUNCTION == "gelu_tanh":
        share, rest = shares(_cubic(x))
        steepness = TWICE_ROOT * tl.fma(3 * CUBIC * x, x, 1.0)
        dx = dy * share * tl.fma(x * steepness, rest, 1.0)
    elif FUNCTION == "hardswish":
        inside = dy * tl.fma(x, 1 / 3, 0.5)
        dx = tl.where(x <= -3, 0.0, tl.where(x < 3, inside, dy))
    else:
        tl.static_assert(FUNCTION == "hardsigmoid")
        dx = tl.where((x > -3) & (x < 3), dy * SIXTH, 0.0)
    return dx
