"""Softmax over channels, and its logarithm: in place, with gradients that read the output.

One that is rounded to TF32 has its gradient by the input.
"""

from functools import partial
from typing import Any

import torch

from ..kernels.pointwise.softmax import MOST_CHANNELS
from .operator import Launch, Operator, Translator
from .passes import forward, grad_by_output, with_grad_by_input
from .reshape_translator import in_order, kept_first
from .traced_op import Inner, Shape, Source, TracedOp, UnsupportedCallError, axes_of, shape_of


def softmax(
    out: Shape, x: Source, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> TracedOp:
    return _over("softmax", x, dim, dtype)


def log_softmax(
    out: Shape, x: Source, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> TracedOp:
    return _over("log_softmax", x, dim, dtype)


def _over(function: str, x: Source, dim: int | None, dtype: Any) -> TracedOp:
    """The op over the last axis; where that is another dimension, between copies."""
    shape, axes = shape_of(x), axes_of(x)
    plain = dim is not None and dim % len(shape) and dtype in (None, torch.float32)
    if dim is None or not plain or shape[dim] > MOST_CHANNELS:
        raise UnsupportedCallError(
            f"{function} of {shape} over {dim} (it takes a dimension other than the batch, up to"
            f" {MOST_CHANNELS} elements)"
        )
    attrs = {"channels": shape[dim]}
    if axes[dim] == len(shape) - 1:
        return TracedOp(function, (x,), (), attrs, axes)
    order = kept_first(axes, {dim % len(shape)})
    call = TracedOp(function, (in_order(x, order),), (), attrs, order)
    back = in_order(Inner(call, shape, order), axes)
    assert isinstance(back, Inner)
    return back.call


def _rows(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    return maps.view(-1, a.attrs["channels"])


def _run(function: str, a: Launch) -> None:
    x, y = (_rows(a, maps) for maps in (*a.reads, *a.writes))
    a.kernels.softmax(x, y, function=function, precision=a.stored)


def _run_grad(function: str, a: Launch, by_input: bool = False) -> None:
    maps = (_rows(a, each) for each in (*a.reads, *a.writes))
    a.kernels.softmax_grad(*maps, function=function, precision=a.stored, by_input=by_input)


def _softmax(
    function: str, translator: Translator, modules: tuple[str, ...]
) -> tuple[Operator, Operator]:
    operator = Operator(
        function,
        forward,
        grad_by_output,
        {"forward": partial(_run, function), "grad_input": partial(_run_grad, function)},
        saves={"output"},
        in_place=True,
        functions={function: translator},
        modules=modules,
        takes_rows=True,
    )
    return with_grad_by_input(operator, partial(_run_grad, function, by_input=True))


SOFTMAX = _softmax("softmax", softmax, ("Softmax", "Softmax2d"))
LOG_SOFTMAX = _softmax("log_softmax", log_softmax, ("LogSoftmax",))
