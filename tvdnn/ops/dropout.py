"""dropout of elements and of parts: masks come from seed and place, and are never stored."""

from math import isclose
from typing import Any

from torch.fx import Node

from .arithmetic_translator import affine
from .operator import Launch, Operator
from .passes import forward, grad_in_place
from .row_tiles import tiles_by_pixel
from .traced_op import (
    Shape,
    Source,
    TracedOp,
    UnsupportedCallError,
    axes_of,
    call_behind,
    inner,
)

SAME = 1e-6  # relative difference of two factors that are one but for rounding


def dropout(
    out: Shape, x: Node, p: float = 0.5, training: bool = True, inplace: bool = False
) -> TracedOp:
    if not training or p == 0:
        return TracedOp("view", (x,))
    return TracedOp("dropout", (x,), (), {"p": float(p)})


def dropout2d(
    out: Shape, x: Node, p: float = 0.5, training: bool = True, inplace: bool = False
) -> TracedOp:
    if not training or p == 0:
        return TracedOp("view", (x,))
    if len(out) != 4:
        raise UnsupportedCallError(f"dropout2d of {out} (it takes maps [N, C, H, W])")
    return TracedOp("dropout_parts", (x,), (), _blocks("channel", p, out[1]))


def stochastic_depth(out: Shape, x: Source, p: float, mode: str, training: bool = True) -> TracedOp:
    if not training or p == 0:
        return TracedOp("view", (x,))
    channels = out[axes_of(x).index(len(out) - 1)]
    return TracedOp("dropout_parts", (x,), (), _blocks(mode, p, channels), axes_of(x))


def masked(out: Shape, x: Source, keep: float, value: float) -> TracedOp:
    """A map times `value` for a share `keep` of the samples, and times zero for the others.

    If the map is another map times 1 / (keep * value), that other map is read.
    """
    scale, call = keep * value, call_behind(x)
    if call is not None and call.kind == "affine" and not call.attrs["shift"]:
        (source,) = call.inputs
        if isclose(scale * call.attrs["scale"], 1, rel_tol=SAME):
            x, scale = source, 1.0
    if keep == 1:
        return affine(x, scale)
    dropped = stochastic_depth(out, x, 1 - keep, "row")
    return dropped if isclose(scale, 1, rel_tol=SAME) else affine(inner(dropped, out), scale)


def _blocks(part: str, p: float, channels: int) -> dict[str, Any]:
    return {"part": part, "p": float(p), "channels": channels}


def run_dropout(a: Launch) -> None:
    settings = a.settings("p", "op_id") | {"precision": a.stored, "first_sample": a.first_sample}
    a.kernels.dropout(a.reads[0], a.writes[0], a.control.seed, **settings)


def run_dropout_parts(a: Launch) -> None:
    x, y = map(a.by_pixel, (a.reads[0], a.writes[0]))
    settings = a.settings("part", "p", "op_id") | {"precision": a.stored}
    settings["first_sample"] = a.first_sample
    a.kernels.dropout_parts(x, y, a.control.seed, **settings)


DROPOUT = Operator(
    "dropout",
    forward,
    grad_in_place,
    {"forward": run_dropout, "grad_input": run_dropout},
    in_place=True,
    row_tiles=tiles_by_pixel,
    functions={"functional.dropout": dropout},
    modules=("Dropout",),
    instead_of={"AlphaDropout": "tvdnn.nn.Dropout"},
    keeps_axes=True,
    draws=True,
)
DROPOUT_BLOCKS = Operator(
    "dropout_parts",
    forward,
    grad_in_place,
    {"forward": run_dropout_parts, "grad_input": run_dropout_parts},
    in_place=True,
    functions={"dropout2d": dropout2d, "stochastic_depth": stochastic_depth},
    modules=("Dropout2d", "StochasticDepth"),
    takes_rows=True,
    draws=True,
)
