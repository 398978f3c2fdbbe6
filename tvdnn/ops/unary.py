"""Elementwise functions with up to two numbers. Their gradients read the input."""

from collections.abc import Mapping
from math import inf
from math import log as log_of
from typing import Any

from torch.fx import Node

from ..kernels.pointwise.unary import FUNCTIONS
from .activation import of_function
from .arithmetic_translator import affine
from .operator import Translator, elementwise_translator
from .traced_op import Inner, Shape, Source, TracedOp, UnsupportedCallError, axes_of

POWERS = {2: "square", 3: "cube", 0.5: "sqrt", -0.5: "rsqrt"}


def softplus(out: Shape, x: Node, beta: float = 1.0, threshold: float = 20.0) -> TracedOp:
    return _call("softplus", x, beta, threshold)


def celu(out: Shape, x: Node, alpha: float = 1.0, inplace: bool = False) -> TracedOp:
    return _call("celu", x, alpha)


def hardtanh(
    out: Shape, x: Node, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> TracedOp:
    """Torch's ReLU6 calls it too."""
    if (min_val, max_val) == (0, 6):
        return TracedOp("relu6", (x,))
    return _call("hardtanh", x, min_val, max_val)


def threshold(
    out: Shape, x: Node, threshold: float, value: float, inplace: bool = False
) -> TracedOp:
    return _call("threshold", x, threshold, value)


def clamp(out: Shape, x: Node, min: Any = None, max: Any = None) -> TracedOp:  # noqa: A002 (torch's)
    return _call("clamp", x, -inf if min is None else min, inf if max is None else max)


def clamp_max(out: Shape, x: Node, max: Any) -> TracedOp:  # noqa: A002 (torch's name)
    return clamp(out, x, None, max)


def reciprocal(out: Shape, x: Node) -> TracedOp:
    return _call("reciprocal", x, 1.0)


def power(out: Shape, x: Any, exponent: Any) -> TracedOp:
    """A map to a number, or a number above zero to a map."""
    if isinstance(exponent, Node):
        return _exponential(out, x, exponent)
    if exponent == 1:
        return affine(x, 1)
    if exponent == -1:
        return reciprocal(out, x)
    return _call(POWERS[exponent], x) if exponent in POWERS else _call("pow", x, exponent)


def _exponential(out: Shape, base: Any, x: Node) -> TracedOp:
    if isinstance(base, Node) or base <= 0:
        what = "a tensor" if isinstance(base, Node) else str(base)
        raise UnsupportedCallError(
            f"pow of {what} with a tensor as exponent (it takes a number above zero)"
        )
    return _call("exp", Inner(affine(x, log_of(base)), out, axes_of(x)))


def _call(function: str, x: Source, *numbers: Any) -> TracedOp:
    """The op of a function; the numbers are its a and b."""
    if any(isinstance(number, Node) for number in numbers):
        raise UnsupportedCallError(f"{function} with a tensor where it takes a number")
    pairs = zip("ab", numbers, strict=False)
    return TracedOp(function, (x,), (), {name: float(number) for name, number in pairs})


def _plain(*functions: str) -> dict[str, Translator]:
    return {function: elementwise_translator(function) for function in functions}


_CLAMPS: Mapping[str, Translator] = {
    **dict.fromkeys(("clamp", "clip", "clamp_min"), clamp),
    "clamp_max": clamp_max,
}
_ABS = elementwise_translator("abs")
_POWERS: Mapping[str, Translator] = {"pow": power, "operator.pow": power}
# Of each function the names in torch with their translators, and the layer.
_IN_TORCH: Mapping[str, tuple[Mapping[str, Translator], str]] = {
    "mish": (_plain("mish"), "Mish"),
    "softplus": ({"softplus": softplus}, "Softplus"),
    "celu": ({"celu": celu}, "CELU"),
    "selu": (_plain("selu"), "SELU"),
    "log_sigmoid": ({"logsigmoid": elementwise_translator("log_sigmoid")}, "LogSigmoid"),
    "softsign": (_plain("softsign"), "Softsign"),
    "hardtanh": ({"hardtanh": hardtanh}, "Hardtanh"),
    "threshold": ({"threshold": threshold}, "Threshold"),
    "clamp": (_CLAMPS, ""),
    "abs": ({"abs": _ABS, "absolute": _ABS, "operator.abs": _ABS}, ""),
    "reciprocal": ({"reciprocal": reciprocal}, ""),
    "pow": (_POWERS, ""),
    **{
        name: (_plain(name), "") for name in ("exp", "log", "sin", "cos", "sqrt", "rsqrt", "square")
    },
}


UNARY = tuple(
    of_function("unary", function, *_IN_TORCH.get(function, ({}, ""))) for function in FUNCTIONS
)
