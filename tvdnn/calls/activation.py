"""Calls of activations."""

from torch.fx import Node

from .call import Call, Shape, UnsupportedCallError


def relu(out: Shape, x: Node, inplace: bool = False) -> Call:
    return Call("relu", (x,))


def leaky_relu(out: Shape, x: Node, negative_slope: float = 0.01, inplace: bool = False) -> Call:
    if negative_slope < 0:
        raise UnsupportedCallError(
            f"leaky_relu with a slope of {negative_slope} (it takes one that is not negative)"
        )
    return Call("leaky_relu", (x,), (), {"coefficient": float(negative_slope)})


def elu(out: Shape, x: Node, alpha: float = 1.0, inplace: bool = False) -> Call:
    return Call("elu", (x,), (), {"coefficient": float(alpha)})


def gelu(out: Shape, x: Node, approximate: str = "none") -> Call:
    return Call("gelu" if approximate == "none" else "gelu_tanh", (x,))


def silu(out: Shape, x: Node, inplace: bool = False) -> Call:
    return Call("silu", (x,))


def sigmoid(out: Shape, x: Node) -> Call:
    return Call("sigmoid", (x,))


def tanh(out: Shape, x: Node) -> Call:
    return Call("tanh", (x,))


def hardswish(out: Shape, x: Node, inplace: bool = False) -> Call:
    return Call("hardswish", (x,))


def hardsigmoid(out: Shape, x: Node, inplace: bool = False) -> Call:
    return Call("hardsigmoid", (x,))


def relu6(out: Shape, x: Node, inplace: bool = False) -> Call:
    return Call("relu6", (x,))
