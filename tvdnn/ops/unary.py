"""Elementwise functions with up to two numbers. Their gradients read the input."""

from functools import partial

from ..kernels.pointwise.unary import FUNCTIONS
from .activation import by_input_backward, by_input_forward
from .operator import PITCHED, Launch, OpDef


def _run_unary(function: str, a: Launch) -> None:
    settings = {"function": function, "precision": a.stored, **a.attrs}
    a.kernels.unary(*a.reads_alike(), a.writes[0], **settings)


def _run_unary_grad(function: str, a: Launch) -> None:
    settings = {"function": function, "precision": a.stored, **a.attrs}
    a.kernels.unary_grad(*a.reads_alike(), a.writes[0], **settings)


def _definition(function: str) -> OpDef:
    return OpDef(
        kind=function,
        forward=by_input_forward,
        backward=by_input_backward,
        roles={
            "forward": partial(_run_unary, function),
            "grad_input": partial(_run_unary_grad, function),
        },
        saves=frozenset({"input"}),
        pitched=PITCHED,
    )


UNARY = tuple(map(_definition, FUNCTIONS))
