"""Hardshrink: values near zero become zero. Its gradient reads the input."""

from torch.fx import Node

from .operator import Launch, Operator
from .passes import forward, grad_by_input
from .row_tiles import tiles_by_pixel
from .traced_op import Shape, TracedOp


def hardshrink(out: Shape, x: Node, lambd: float = 0.5) -> TracedOp:
    return TracedOp("hardshrink", (x,), (), {"bound": float(lambd)})


def _run(a: Launch) -> None:
    """Forward the values are the input, backward the gradient."""
    x, values = a.reads_alike()[0], a.reads_alike()[-1]
    a.kernels.hardshrink(x, values, a.writes[0], precision=a.stored, **a.attrs)


HARDSHRINK = Operator(
    "hardshrink",
    forward,
    grad_by_input,
    {"forward": _run, "grad_input": _run},
    saves={"input"},
    row_tiles=tiles_by_pixel,
    functions={"hardshrink": hardshrink},
    modules=("Hardshrink",),
    keeps_axes=True,
)
