"""Calls of elementwise functions with up to two numbers, and of PReLU."""

from math import inf
from math import log as log_of
from typing import Any

from torch.fx import Node

from .call import Call, Inner, Shape, Source, UnsupportedCallError, axes_of
from .reshape import as_rows, of_rows

POWERS = {2: "square", 3: "cube", 0.5: "sqrt", -0.5: "rsqrt"}


def mish(out: Shape, x: Node, inplace: bool = False) -> Call:
    return _call("mish", x)


def softplus(out: Shape, x: Node, beta: float = 1.0, threshold: float = 20.0) -> Call:
    return _call("softplus", x, beta, threshold)


def celu(out: Shape, x: Node, alpha: float = 1.0, inplace: bool = False) -> Call:
    return _call("celu", x, alpha)


def selu(out: Shape, x: Node, inplace: bool = False) -> Call:
    return _call("selu", x)


def logsigmoid(out: Shape, x: Node) -> Call:
    return _call("log_sigmoid", x)


def softsign(out: Shape, x: Node) -> Call:
    return _call("softsign", x)


def hardtanh(
    out: Shape, x: Node, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Call:
    """Torch's ReLU6 calls it too."""
    if (min_val, max_val) == (0, 6):
        return Call("relu6", (x,))
    return _call("hardtanh", x, min_val, max_val)


def threshold(out: Shape, x: Node, threshold: float, value: float, inplace: bool = False) -> Call:
    return _call("threshold", x, threshold, value)


def clamp(out: Shape, x: Node, *bounds: Any, **named: Any) -> Call:
    lower, upper = _bounds(*bounds, **named)
    return _call("clamp", x, -inf if lower is None else lower, inf if upper is None else upper)


def clamp_min(out: Shape, x: Node, *bound: Any, **named: Any) -> Call:
    return clamp(out, x, *bound, **named)


def clamp_max(out: Shape, x: Node, *bound: Any, **named: Any) -> Call:
    return clamp(out, x, None, *bound, **named)


def absolute(out: Shape, x: Node) -> Call:
    return _call("abs", x)


def exp(out: Shape, x: Node) -> Call:
    return _call("exp", x)


def log(out: Shape, x: Node) -> Call:
    return _call("log", x)


def sqrt(out: Shape, x: Node) -> Call:
    return _call("sqrt", x)


def rsqrt(out: Shape, x: Node) -> Call:
    return _call("rsqrt", x)


def square(out: Shape, x: Node) -> Call:
    return _call("square", x)


def reciprocal(out: Shape, x: Node) -> Call:
    return _call("reciprocal", x, 1.0)


def power(out: Shape, x: Any, exponent: Any) -> Call:
    """A map to a number, or a number above zero to a map."""
    if isinstance(exponent, Node):
        return _exponential(out, x, exponent)
    if exponent == 1:
        return Call("affine", (x,), (), {"scale": 1.0, "shift": 0.0})
    if exponent == -1:
        return reciprocal(out, x)
    return _call(POWERS[exponent], x) if exponent in POWERS else _call("pow", x, exponent)


def _exponential(out: Shape, base: Any, x: Node) -> Call:
    if isinstance(base, Node) or base <= 0:
        what = "a tensor" if isinstance(base, Node) else str(base)
        raise UnsupportedCallError(
            f"pow of {what} with a tensor as exponent (it takes a number above zero)"
        )
    scaled = Call("affine", (x,), (), {"scale": log_of(base), "shift": 0.0})
    return _call("exp", Inner(scaled, out, axes_of(x)))


def prelu(out: Shape, x: Node, weight: Node) -> Call:
    if len(out) == 3:
        return of_rows(out, Call("prelu", (as_rows(x),), (weight,)))
    return Call("prelu", (x,), (weight,))


def _bounds(min: Any = None, max: Any = None) -> tuple[Any, Any]:  # noqa: A002 (torch's names)
    return min, max


def _call(function: str, x: Source, *numbers: Any) -> Call:
    """The op of a function; the numbers are its a and b."""
    if any(isinstance(number, Node) for number in numbers):
        raise UnsupportedCallError(f"{function} with a tensor where it takes a number")
    pairs = zip("ab", numbers, strict=False)
    return Call(function, (x,), (), {name: float(number) for name, number in pairs})
