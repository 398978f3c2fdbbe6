"""Softmax over channels, and its logarithm: in place, with gradients that read the output.

One that is rounded to TF32 has its gradient by the input.
"""

from functools import partial
from typing import Any

import torch

from ..kernels.pointwise.softmax import MOST_CHANNELS
from .operator import Launch, Operator
from .passes import forward, grad_by_output, with_grad_by_input
from .reshape_translator import in_order, kept_first
from .traced_op import Inner, Shape, Source, TracedOp, UnsupportedCallError, axes_of, shape_of


def softmax(
    function: str,
    out: Shape,
    x: Source,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: Any = None,
) -> TracedOp:
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


def _run(kernel: str, function: str, a: Launch, **others: bool) -> None:
    rows = (maps.view(-1, a.attrs["channels"]) for maps in (*a.reads, *a.writes))
    getattr(a.kernels, kernel)(*rows, function=function, precision=a.stored, **others)


def _operators(function: str, *modules: str) -> tuple[Operator, Operator]:
    operator = Operator(
        function,
        forward,
        grad_by_output,
        {
            "forward": partial(_run, "softmax", function),
            "grad_input": partial(_run, "softmax_grad", function),
        },
        saves={"output"},
        in_place=True,
        functions={function: partial(softmax, function)},
        modules=modules,
        takes_rows=True,
    )
    return with_grad_by_input(operator, partial(_run, "softmax_grad", function, by_input=True))


SOFTMAX = _operators("softmax", "Softmax", "Softmax2d")
LOG_SOFTMAX = _operators("log_softmax", "LogSoftmax")
