"""Reductions over axes of maps, and expansions along axes, each the other's gradient."""

import torch

from ..graph import Op, Use
from ..kernels.reduce.axes import READS_INPUT
from .builder import Builder
from .operator import Launch, OpDef
from .remap import backward as grad_of_result_alone
from .remap import forward

_SETTINGS = ("sizes", "reduced", "function", "correction")


def backward(b: Builder, op: Op) -> None:
    """The gradients of all functions but sums and means read the input."""
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    reads = (Use(b.input_of(op)),) if op.attrs["function"] in READS_INPUT else ()
    b.add_pass(op, "grad_input", (*reads, Use(dy)), (Use(dx),))


def _flat(maps: torch.Tensor) -> torch.Tensor:
    return maps.view(len(maps), -1)


def _run_forward(a: Launch) -> None:
    x, y = _flat(a.reads[0]), _flat(a.writes[0])
    a.kernels.reduce_axes(x, y, **a.settings(*_SETTINGS), precision=a.stored)


def _run_grad_input(a: Launch) -> None:
    *inputs, dy = map(_flat, a.reads)
    x, dx = inputs[0] if inputs else None, _flat(a.writes[0])
    a.kernels.reduce_axes_grad(x, dy, dx, **a.settings(*_SETTINGS), precision=a.stored)


def _run_expand(a: Launch) -> None:
    x, y = _flat(a.reads[0]), _flat(a.writes[0])
    settings = a.settings("sizes", "reduced") | {"function": "sum", "precision": a.stored}
    a.kernels.reduce_axes_grad(None, x, y, **settings)


def _run_expand_back(a: Launch) -> None:
    dy, dx = _flat(a.reads[0]), _flat(a.writes[0])
    settings = a.settings("sizes", "reduced") | {"function": "sum", "precision": a.stored}
    a.kernels.reduce_axes(dy, dx, **settings)


REDUCE_AXES = OpDef(
    kind="reduce_axes",
    forward=forward,
    backward=backward,
    roles={"forward": _run_forward, "grad_input": _run_grad_input},
    saves=frozenset({"input"}),
)
EXPAND = OpDef(
    kind="expand",
    forward=forward,
    backward=grad_of_result_alone,
    roles={"forward": _run_expand, "grad_input": _run_expand_back},
)
