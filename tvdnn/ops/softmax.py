"""Softmax over channels, and its logarithm: in place, with gradients that read the output."""

from functools import partial

import torch

from ..kernels.pointwise.softmax import FUNCTIONS
from .activation import by_output_backward, forward
from .operator import Launch, OpDef


def _rows(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    """Maps as rows of channels; a view may have renamed them."""
    return maps.view(-1, a.attrs["channels"])


def _run(function: str, a: Launch) -> None:
    x, y = (_rows(a, maps) for maps in (*a.reads, *a.writes))
    a.kernels.softmax(x, y, function=function, precision=a.stored)


def _run_grad(function: str, a: Launch) -> None:
    maps = (_rows(a, each) for each in (*a.reads, *a.writes))
    a.kernels.softmax_grad(*maps, function=function, precision=a.stored)


def _definition(function: str) -> OpDef:
    return OpDef(
        kind=function,
        forward=forward,
        backward=by_output_backward,
        roles={"forward": partial(_run, function), "grad_input": partial(_run_grad, function)},
        saves=frozenset({"output"}),
        elementwise=True,
    )


SOFTMAXES = tuple(map(_definition, FUNCTIONS))
