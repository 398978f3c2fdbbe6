"""Resizing of maps, by nearest pixels or bilinear: backward reads the gradient alone."""

from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ..graph import Op, Use
from .builder import Builder
from .operator import STRIDED, Launch, Operator
from .reshape_translator import as_rows, of_rows
from .row_tiles import NO_HALO, Halo, tiles_of_resizing
from .traced_op import Shape, Source, TracedOp, UnsupportedCallError, shape_of


def interpolate(out: Shape, x: Source, *args: Any, **kwargs: Any) -> TracedOp:
    """Also called by torch's Upsample."""
    if len(out) == 3:
        maps, settings = as_rows(x), _of_rows(*args, **kwargs)
        return of_rows(out, interpolate((*out[:2], 1, out[2]), maps, **settings))
    if len(out) != 4:
        raise UnsupportedCallError(f"interpolate of {len(out)} dimensions (it takes maps)")
    settings = resizing(out, shape_of(x), *args, **kwargs)
    same = out == shape_of(x) and settings["scales"] == (1, 1)
    return TracedOp("view", (x,)) if same else TracedOp("resize", (x,), (), settings)


def _of_rows(
    size: Any = None, scale_factor: Any = None, mode: str = "nearest", *rest: Any, **named: Any
) -> dict[str, Any]:
    """The settings of resized rows [N, C, L] for maps of one row."""
    names = ("align_corners", "recompute_scale_factor", "antialias")
    factor = scale_factor[0] if isinstance(scale_factor, (tuple, list)) else scale_factor
    factors = None if factor is None else (1.0, factor)
    modes = {"linear": "bilinear"}
    given = {"scale_factor": factors, "mode": modes.get(mode, mode)}
    return given | dict(zip(names, rest, strict=False)) | named


def resizing(
    out: Shape,
    source: Shape,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> dict[str, Any]:
    """The settings of a resizing of maps, as kernels/pointwise/resize.py has them."""
    if mode not in ("nearest", "bilinear") or antialias:
        blurred = " with antialias" if antialias else ""
        raise UnsupportedCallError(f"interpolate by {mode}{blurred} (by nearest or bilinear)")
    if 0 in out[2:]:
        raise InputError(f"interpolate makes maps {list(out)} without pixels of {list(source)}")
    sides = zip(source[2:], out[2:], strict=True)
    if align_corners:
        scales = [(side - 1) / (made - 1) if made > 1 else 0.0 for side, made in sides]
        return {"mode": "corners", "scales": tuple(scales)}
    scales = [side / made for side, made in sides]
    if scale_factor is not None and not recompute_scale_factor:
        factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * 2
        scales = [1 / factor for factor in factors]
    return {"mode": mode, "scales": tuple(scales)}


_SETTINGS = ("mode", "scales", "padded")


def forward(b: Builder, op: Op) -> None:
    x = Use(b.input_of(op), halo=_halo(b, op, 1))
    y = b.new_output(op)
    b.add_pass(op, "forward", (x,), (Use(y),), attrs=b.padding(y))


def backward(b: Builder, op: Op) -> None:
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    halo = NO_HALO if b.row_tiles == 1 else _halo(b, op, _times(op.attrs))
    b.add_pass(op, "grad_input", (Use(dy, halo=halo),), (Use(dx),), attrs=b.padding(dx))


def _halo(b: Builder, op: Op, rows: int) -> Halo:
    """The neighbour rows that bilinear weights read: one of the smaller map."""
    return NO_HALO if b.row_tiles == 1 or op.attrs["mode"] == "nearest" else (rows, rows)


def _times(attrs: Mapping[str, Any]) -> int:
    """The rows that are made of one, in row tiles."""
    scale: float = attrs["scales"][0]
    return round(1 / scale)


def _run_forward(a: Launch) -> None:
    first = {"first_row": a.beside[0] * _times(a.attrs)} if any(a.beside) else {}
    a.kernels.resize(*a.reads, *a.writes, **a.settings(*_SETTINGS), **first, precision=a.stored)


def _run_grad_input(a: Launch) -> None:
    times = _times(a.attrs) if any(a.beside) else 1
    rows = a.reads[0].shape[1] // times if any(a.beside) else None
    tile = {"first_row": a.beside[0] // times, "rows": rows}
    settings = a.settings(*_SETTINGS) | {"precision": a.stored}
    a.kernels.resize_grad(*a.reads, *a.writes, **settings, **tile)


RESIZE = Operator(
    "resize",
    forward,
    backward,
    {"forward": _run_forward, "grad_input": _run_grad_input},
    strided=STRIDED,
    row_tiles=tiles_of_resizing,
    functions={"interpolate": interpolate},
    modules=("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"),
)
