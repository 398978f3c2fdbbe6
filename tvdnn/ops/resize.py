"""Resizing of maps, by nearest pixels or bilinear: backward reads the gradient alone."""

from collections.abc import Mapping
from typing import Any

from ..graph import Op, Use
from .builder import Builder
from .operator import PITCHED, Launch, OpDef
from .row_tiles import NO_HALO, Halo

_SETTINGS = ("mode", "scales")


def forward(b: Builder, op: Op) -> None:
    x = Use(b.input_of(op), halo=_halo(b, op, 1))
    b.add_pass(op, "forward", (x,), (Use(b.new_output(op)),))


def backward(b: Builder, op: Op) -> None:
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    halo = NO_HALO if b.bands == 1 else _halo(b, op, _times(op.attrs))
    b.add_pass(op, "grad_input", (Use(dy, halo=halo),), (Use(dx),))


def _halo(b: Builder, op: Op, rows: int) -> Halo:
    """The rows of the band above and below that bilinear weights meet, one of the smaller map."""
    return NO_HALO if b.bands == 1 or op.attrs["mode"] == "nearest" else (rows, rows)


def _times(attrs: Mapping[str, Any]) -> int:
    """How many rows are made of one, where maps are in bands."""
    scale: float = attrs["scales"][0]
    return round(1 / scale)


def _run_forward(a: Launch) -> None:
    first = {"first_row": a.beside[0] * _times(a.attrs)} if any(a.beside) else {}
    a.kernels.resize(*a.reads, *a.writes, **a.settings(*_SETTINGS), **first, precision=a.stored)


def _run_grad_input(a: Launch) -> None:
    times = _times(a.attrs) if any(a.beside) else 1
    rows = a.reads[0].shape[1] // times if any(a.beside) else None
    band = {"first_row": a.beside[0] // times, "rows": rows}
    settings = a.settings(*_SETTINGS) | {"precision": a.stored}
    a.kernels.resize_grad(*a.reads, *a.writes, **settings, **band)


RESIZE = OpDef(
    kind="resize",
    forward=forward,
    backward=backward,
    roles={"forward": _run_forward, "grad_input": _run_grad_input},
    pitched=PITCHED,
)
