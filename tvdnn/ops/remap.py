"""Pads, slices, rolls, flips and repeats: copies of a map by indices that are computed."""

import torch

from ..graph import Op, Use
from .builder import Builder
from .operator import Launch, OpDef


def forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.new_output(op)),))


def backward(b: Builder, op: Op) -> None:
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    b.add_pass(op, "grad_input", (Use(dy),), (Use(dx),))


def _source(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    return maps.view(len(maps), *a.attrs["source"])


def _result(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    return maps.view(len(maps), *a.attrs["result"])


def _run_forward(a: Launch) -> None:
    x, y = _source(a, a.reads[0]), _result(a, a.writes[0])
    a.kernels.remap(x, y, **a.settings("axes", "fill"), precision=a.stored)


def _run_grad_input(a: Launch) -> None:
    dy, dx = _result(a, a.reads[0]), _source(a, a.writes[0])
    a.kernels.remap_grad(dy, dx, **a.settings("axes"), precision=a.stored)


REMAP = OpDef(
    kind="remap",
    forward=forward,
    backward=backward,
    roles={"forward": _run_forward, "grad_input": _run_grad_input},
)
