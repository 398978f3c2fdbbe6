"""Concatenations of maps with parameters, buffers and constants that are alike for all samples.

The maps are padded by zeros, and one computed parameter, zero where the maps are, is added.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

Called = Callable[..., Any]  # (function, *args)

CONCATENATIONS = frozenset({torch.cat, torch.concat, torch.concatenate})


def concatenated(args: Sequence[Any], settings: Mapping[str, Any]) -> Any:
    """`torch.cat` of maps and other tensors; None where the call is none that can be followed."""
    given = {**dict(zip(("tensors", "dim"), args, strict=False)), **settings}
    parts, dim = given.pop("tensors", None), given.pop("dim", given.pop("axis", 0))
    if any(each is not None for each in given.values()) or not isinstance(parts, (list, tuple)):
        return None
    first = next(each for each in parts if isinstance(each, fx.Proxy))
    if all(isinstance(each, fx.Proxy) for each in parts) or not _fit(parts, dim % first.dim()):
        return None
    effects: Any = first.tracer.side_effects  # type: ignore[attr-defined]
    others = [each for each in parts if not isinstance(each, fx.Proxy)]
    if not all(map(effects.recorded.is_one_sample, others)):
        return None
    total = _padded_maps(parts, dim % first.dim())
    if not all(map(effects.recorded.is_zero, others)):
        total = total + _padded_others(parts, dim, effects.called)
    return total


def _fit(parts: Sequence[Any], dim: int) -> bool:
    """Whether tensors, not along the batch, differ in the size of one dimension alone."""
    shapes = {(*each.shape[:dim], *each.shape[dim + 1 :]) for each in parts}
    return dim > 0 and len(shapes) == 1 and len({len(each.shape) for each in parts}) == 1


def _padded_maps(parts: Sequence[Any], dim: int) -> Any:
    """The maps with zeros where other parts lie: behind the map before them, or at the start."""
    maps: list[tuple[Any, list[int]]] = []
    before = 0
    for each in parts:
        size = each.shape[dim]
        if isinstance(each, fx.Proxy):
            maps.append((each, [before, 0]))
            before = 0
        elif maps:
            maps[-1][1][1] += size
        else:
            before += size
    padded = [_padded(each, sides, dim) for each, sides in maps]
    return torch.cat(padded, dim) if len(padded) > 1 else padded[0]


def _padded(x: Any, sides: list[int], dim: int) -> Any:
    inner = [0, 0] * (x.dim() - 1 - dim)
    return functional.pad(x, [*inner, *sides]) if any(sides) else x


def _padded_others(parts: Sequence[Any], dim: int, called: Called) -> Tensor:
    """The other tensors of one sample, with zeros in the place of the maps."""
    other = next(each for each in parts if not isinstance(each, fx.Proxy))
    filled = []
    for each in parts:
        if isinstance(each, fx.Proxy):
            shape: Any = each.shape
            filled.append(called(Tensor.new_zeros, other, (1, *shape[1:])))
        else:
            filled.append(called(torch.narrow, each, 0, 0, 1))
    total: Tensor = called(torch.cat, filled, dim)
    return total if total.is_floating_point() else called(Tensor.float, total)
