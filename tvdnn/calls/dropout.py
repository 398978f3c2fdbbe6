"""Calls of dropout, of elements and of parts, and what a layer that drops samples calls."""

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.overrides import handle_torch_function, has_torch_function

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


def torch_stochastic_depth(x: Tensor, p: float, mode: str, training: bool = True) -> Tensor:
    """Maps of which samples, or by mode "batch" all, are dropped, by torch's own functions."""
    if has_torch_function((x,)):
        handle: Any = handle_torch_function
        result: Tensor = handle(torch_stochastic_depth, (x,), x, p, mode, training)
        return result
    if not training or p == 0:
        return x
    shape = (len(x) if mode == "row" else 1, *(1,) * (x.dim() - 1))
    kept = (torch.rand(shape, device=x.device) >= p).to(x.dtype)
    return x * (kept / (1 - p) if p < 1 else kept)


def stochastic_depth(out: Shape, x: Node, p: float, mode: str, training: bool = True) -> Call:
    if not training or p == 0:
        return Call("view", (x,))
    channels = out[axes_of(x).index(len(out) - 1)]
    return Call("dropout_parts", (x,), (), _parts(mode, p, channels), axes_of(x))


def _parts(part: str, p: float, channels: int) -> dict[str, Any]:
    return {"part": part, "p": float(p), "channels": channels}
