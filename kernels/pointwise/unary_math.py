"""The float32 arithmetic of elementwise functions with up to two numbers, and of their gradients.

Sums of products are written as fused multiply-adds. No difference cancels and no exponential
overflows. The direction of a comparison decides where NaN goes, and sends it where torch does.
"""

from typing import Final

import triton
import triton.language as tl

from .activation_math import expm1, shares

SELU_ALPHA: Final = tl.constexpr(1.6732632423543772)
SELU_SCALE: Final = tl.constexpr(1.0507009873554805)


@triton.jit
def _log1p(t):
    """log(1 + t) for t in [0, 1]; the rounding error of 1 + t is divided out (Kahan)."""
    u = 1.0 + t
    return tl.where(u == 1.0, t, tl.log(u) * (t / tl.where(u == 1.0, 1.0, u - 1.0)))


@triton.jit
def _softplus(z):
    """log(1 + e^z) for any z."""
    return tl.where(z > 0, z, 0.0) + _log1p(tl.exp(-tl.abs(z)))


@triton.jit
def _tanh_softplus(x):
    """tanh(log(1 + e^x)), and 1 minus its square."""
    e = tl.exp(-tl.abs(x))
    above = tl.fma(2.0, e, 1.0)  # for x > 0, with e = e^-x: (1 + 2e) / (1 + 2e + 2e^2)
    below = tl.fma(e, e, 2.0 * e)  # for x <= 0, with e = e^x: (2e + e^2) / (2e + e^2 + 2)
    num = tl.where(x > 0, above, below)
    den = tl.where(x > 0, tl.fma(2.0 * e, e, above), below + 2.0)
    root = tl.where(x > 0, e * (1.0 + e), 1.0 + e) / den  # 1 - (num / den)^2 = (2 root)^2
    return num / den, 4.0 * root * root


@triton.jit
def _power(x, p):
    """x^p as 2^(p log2|x|). For negative x it is NaN unless p is whole."""
    size = tl.exp2(p * tl.log2(tl.abs(x)))
    signed = tl.where(tl.floor(p * 0.5) * 2.0 == p, size, -size)
    negative = tl.where(tl.floor(p) == p, signed, float("nan"))
    y = tl.where(x < 0, negative, size)
    return tl.where(p == 0, 1.0, y)


@triton.jit
def unary(x, a, b, FUNCTION: tl.constexpr) -> tl.tensor:
    """The function of float32 x with the numbers a and b of `unary.NUMBERS`."""
    if FUNCTION == "mish":
        share, _ = _tanh_softplus(x)
        y = x * share
    elif FUNCTION == "softplus":
        y = tl.where(a * x > b, x, _softplus(a * x) / a)
    elif FUNCTION == "celu":
        y = tl.where(x > 0, x, a * expm1(x / a))
    elif FUNCTION == "selu":
        y = SELU_SCALE * tl.where(x > 0, x, SELU_ALPHA * expm1(x))
    elif FUNCTION == "log_sigmoid":
        y = -_softplus(-x)
    elif FUNCTION == "softsign":
        y = x / (1.0 + tl.abs(x))
    elif FUNCTION == "hardtanh" or FUNCTION == "clamp":
        y = tl.where(x < a, a, x)
        y = tl.where(y > b, b, y)
    elif FUNCTION == "threshold":
        y = tl.where(x <= a, b, x)
    elif FUNCTION == "abs":
        y = tl.abs(x)
    elif FUNCTION == "exp":
        y = tl.exp(x)
    elif FUNCTION == "log":
        y = tl.log(x)
    elif FUNCTION == "sin":
        y = tl.sin(x)
    elif FUNCTION == "cos":
        y = tl.cos(x)
    elif FUNCTION == "sqrt":
        y = tl.sqrt_rn(x)
    elif FUNCTION == "rsqrt":
        y = 1.0 / tl.sqrt_rn(x)
    elif FUNCTION == "square":
        y = x * x
    elif FUNCTION == "cube":
        y = x * x * x
    elif FUNCTION == "reciprocal":
        y = a / x
    else:
        tl.static_assert(FUNCTION == "pow")
        y = _power(x, a)
    return y


@triton.jit
def unary_gradient(x, dy, a, b, FUNCTION: tl.constexpr) -> tl.tensor:
    """The gradient of the function's input x, from x and the gradient dy of its output."""
    if FUNCTION == "mish":
        share, rest = _tanh_softplus(x)
        sigmoid, _ = shares(x)
        dx = dy * tl.fma(x * rest, sigmoid, share)
    elif FUNCTION == "softplus":
        sigmoid, _ = shares(a * x)
        dx = tl.where(a * x > b, dy, dy * sigmoid)
    elif FUNCTION == "celu":
        dx = tl.where(x > 0, dy, dy * tl.exp(x / a))
    elif FUNCTION == "selu":
        dx = SELU_SCALE * dy * tl.where(x > 0, 1.0, SELU_ALPHA * tl.exp(x))
    elif FUNCTION == "log_sigmoid":
        _, rest = shares(x)
        dx = dy * rest
    elif FUNCTION == "softsign":
        size = 1.0 + tl.abs(x)
        dx = dy / (size * size)
    elif FUNCTION == "hardtanh":
        dx = tl.where((x <= a) | (x >= b), 0.0, dy)
    elif FUNCTION == "clamp_inside":
        dx = tl.where((x > a) & (x < b), dy, 0.0)
    elif FUNCTION == "clamp":
        dx = tl.where((x >= a) & (x <= b), dy, 0.0)
    elif FUNCTION == "threshold":
        dx = tl.where(x <= a, 0.0, dy)
    elif FUNCTION == "abs":
        dx = dy * tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))
    elif FUNCTION == "exp":
        dx = dy * tl.exp(x)
    elif FUNCTION == "log":
        dx = dy / x
    elif FUNCTION == "sin":
        dx = dy * tl.cos(x)
    elif FUNCTION == "cos":
        dx = -dy * tl.sin(x)
    elif FUNCTION == "sqrt":
        dx = dy / (2.0 * tl.sqrt_rn(x))
    elif FUNCTION == "rsqrt":
        dx = -0.5 * dy / (x * tl.sqrt_rn(x))
    elif FUNCTION == "square":
        dx = 2.0 * x * dy
    elif FUNCTION == "cube":
        dx = 3.0 * x * x * dy
    elif FUNCTION == "reciprocal":
        inverse = 1.0 / x
        dx = -a * dy * inverse * inverse
    else:
        tl.static_assert(FUNCTION == "pow")
        dx = tl.where(a == 0, 0.0, dy * a * _power(x, a - 1.0))
    return dx
