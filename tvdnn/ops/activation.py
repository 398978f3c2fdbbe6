"""Activation functions, by output and by input.

A function by output needs its output alone for the gradient. It runs in place where nothing else
reads its input. A saturated sigmoid or tanh that is rounded to TF32 has lost its gradient: the
gradient then reads the input. ReLU's gradient needs only the output's sign. A ReLU inside a fused
op takes its gradient masked: the only reader of its output masks it, or else a pass of the fused
op.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from torch.fx import Node

from ..graph import Kind, Op, Use
from ..kernels.pointwise.activation import BY_EXACT_OUTPUT, BY_INPUT, BY_OUTPUT
from .builder import Builder
from .operator import STRIDED, Launch, Operator, Translator, elementwise, elementwise_translator
from .passes import forward, grad_by_input, grad_by_output, with_grad_by_input
from .row_tiles import tiles_by_pixel
from .traced_op import Shape, TracedOp, UnsupportedCallError


def leaky_relu(
    out: Shape, x: Node, negative_slope: float = 0.01, inplace: bool = False
) -> TracedOp:
    if negative_slope < 0:
        raise UnsupportedCallError(
            f"leaky_relu with a slope of {negative_slope} (it takes one that is not negative)"
        )
    return TracedOp("leaky_relu", (x,), (), {"coefficient": float(negative_slope)})


def elu(out: Shape, x: Node, alpha: float = 1.0, inplace: bool = False) -> TracedOp:
    return TracedOp("elu", (x,), (), {"coefficient": float(alpha)})


def gelu(out: Shape, x: Node, approximate: str = "none") -> TracedOp:
    return TracedOp("gelu" if approximate == "none" else "gelu_tanh", (x,))


def backward(b: Builder, op: Op) -> None:
    reads = (b.signs_of_range(op.output), Use(b.grad_of(op)))
    b.add_pass(op, "grad_input", reads, (Use(b.next_grad(op)),))


def behind_relu(b: Builder, op: Op) -> str:
    """The buffer with the gradient of the input of the ReLU inside a fused op."""
    dy = b.grad_of(op)
    if op.output in b.masked_gradients:
        return dy
    masked = buffer_behind_relu(b, op)
    b.add_pass(op, "mask", (b.signs_of_range(op.output), Use(dy)), (Use(masked),))
    return masked


def buffer_behind_relu(b: Builder, op: Op) -> str:
    """A buffer for the masked gradient: that of the gradient, unless another value has it too."""
    dy = b.grad_of(op)
    if not b.is_shared(dy):
        return dy
    return b.add_padded(b.unique(f"masked {dy}"), op.output, b.shape(op.output), Kind.GRAD)


def run_function(kernel: str, function: str, a: Launch, **others: bool) -> None:
    """Launch the kernel of a family of functions, with the op's settings and others."""
    settings = {"function": function, "precision": a.stored, **a.attrs, **others}
    getattr(a.kernels, kernel)(*a.reads_alike(), a.writes[0], **settings)


_mask_by_values = elementwise("relu_grad")


def run_mask(a: Launch) -> None:
    """Zero a gradient where a map, or its sign bits, are not above zero."""
    signs, dy = a.reads
    if signs.dtype is not torch.uint8:
        _mask_by_values(a)
        return
    (dx,) = a.writes
    a.kernels.relu_grad_by_bits(signs, dy.view_as(dx), dx, precision=a.stored)


def of_function(
    kernel: str,
    function: str,
    translators: Mapping[str, Translator],
    layer: str,
    *,
    by_output: bool = False,
) -> Operator:
    """The record of a function that the kernel of a family computes."""
    return Operator(
        function,
        forward,
        grad_by_output if by_output else grad_by_input,
        {
            "forward": partial(run_function, kernel, function),
            "grad_input": partial(run_function, f"{kernel}_grad", function),
        },
        saves={"output" if by_output else "input"},
        in_place=by_output,
        strided=STRIDED,
        row_tiles=tiles_by_pixel,
        functions=translators,
        modules=(layer,) if layer else (),
        keeps_axes=True,
    )


# Each function's layer, and its translator where it has settings.
_IN_TORCH: Mapping[str, tuple[str, Translator | None]] = {
    "leaky_relu": ("LeakyReLU", leaky_relu),
    "relu6": ("ReLU6", None),
    "elu": ("ELU", elu),
    "silu": ("SiLU", None),
    "gelu": ("GELU", gelu),
    "sigmoid": ("Sigmoid", None),
    "tanh": ("Tanh", None),
    "hardswish": ("Hardswish", None),
    "hardsigmoid": ("Hardsigmoid", None),
}


def _activations(function: str) -> tuple[Operator, ...]:
    layer, translator = _IN_TORCH.get(function, ("", None))
    named = {function: translator or elementwise_translator(function)} if layer else {}
    by_output = function in BY_OUTPUT
    operator = of_function("activate", function, named, layer, by_output=by_output)
    if function not in BY_EXACT_OUTPUT:
        return (operator,)
    grad = partial(run_function, "activate_grad", function, by_input=True)
    return with_grad_by_input(operator, grad)


RELU = replace(
    of_function("", "relu", {"relu": elementwise_translator("relu")}, "ReLU", by_output=True),
    backward=backward,
    launches={"forward": elementwise("relu"), "grad_input": run_mask},
    not_negative={"forward"},
    instead_of={"RReLU": "tvdnn.nn.LeakyReLU has a fixed slope"},
)
ACTIVATIONS = tuple(chain.from_iterable(map(_activations, (*BY_OUTPUT, *BY_INPUT))))
