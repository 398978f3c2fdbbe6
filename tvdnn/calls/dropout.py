"""Calls of dropout, of elements and of parts."""

from typing import Any

from torch.fx import Node

from .call import Call, Shape, UnsupportedCallError, axes_of


def dropout(
    out: Shape, x: Node, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Call:
    if not training or p == 0:
        return Call("view", (x,))
    return Call("dropout", (x,), (), {"p": float(p)})


def dropout2d(
    out: Shape, x: Node, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Call:
    if not training or p == 0:
        return Call("view", (x,))
    if len(out) != 4:
        raise UnsupportedCallError(f"dropout2d of {out} (it takes maps [N, C, H, W])")
    return Call("dropout_parts", (x,), (), _parts("channel", p, out[1]))


def stochastic_depth(out: Shape, x: Node, p: float, mode: str, training: bool = True) -> Call:
    if not training or p == 0:
        return Call("view", (x,))
    channels = out[axes_of(x).index(len(out) - 1)]
    return Call("dropout_parts", (x,), (), _parts(mode, p, channels), axes_of(x))


def _parts(part: str, p: float, channels: int) -> dict[str, Any]:
    return {"part": part, "p": float(p), "channels": channels}
