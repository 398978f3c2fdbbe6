"""Concatenations of maps with parameters, buffers and constants that are alike for all samples.

The maps are padded by zeros, and one computed parameter, zero where the maps are, is added.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from ..ops.traced_op import given_settings

Called = Callable[..., Any]  # makes and records a call: (function, *args, **kwargs)

CONCATENATIONS = frozenset({torch.cat, torch.concat, torch.concatenate})


def concatenated(args: Sequence[Any], settings: Mapping[str, Any]) -> Any:
    """`torch.cat` of maps and other tensors; NotImplemented for calls that it cannot follow."""
    given = given_settings({"tensors": None, "dim": 0}, args, settings)
    parts, dim = given.pop("tensors"), given.pop("dim")
    dim = given.pop("axis", dim)
    if any(each is not None for each in given.values()) or not isinstance(parts, (list, tuple)):
        return NotImplemented
    first = next(each for each in parts if isinstance(each, fx.Proxy))
    others = [each for each in parts if not isinstance(each, fx.Proxy)]
    if not others or not all(isinstance(each, Tensor) for each in others):
        return NotImplemented
    parts = [each for each in parts if tuple(each.shape) != (0,)]  # which torch leaves out
    others = [each for each in others if tuple(each.shape) != (0,)]
    dims: Any = first.dim()
    if not _fit(parts, dim, dims) or any(each.is_complex() for each in others):
        return NotImplemented
    dim %= dims
    effects: Any = first.tracer.side_effects  # type: ignore[attr-defined]
    if not all(map(effects.recorded.is_alike_in_samples, others)):
        return NotImplemented
    total = _padded_maps(parts, dim)
    if not all(map(effects.recorded.is_zero, others)):
        return total + _padded_others(parts, dim, effects.called)
    return total.clone() if total is first else total  # beside empty tensors


def _fit(parts: Sequence[Any], dim: int, dims: int) -> bool:
    """Whether tensors of `dims` dimensions differ in the size of `dim` alone, not the batch."""
    if dim not in range(-dims, dims) or dim % dims == 0:
        return False
    dim %= dims
    shapes = {(*each.shape[:dim], *each.shape[dim + 1 :]) for each in parts}
    return len(shapes) == 1 and {len(each.shape) for each in parts} == {dims}


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
            zeros = {"dtype": torch.float32}
            filled.append(called(Tensor.new_zeros, other, (1, *shape[1:]), **zeros))
        else:
            one = called(torch.narrow, each, 0, 0, 1)
            filled.append(one if one.dtype == torch.float32 else called(Tensor.float, one))
    total: Tensor = called(torch.cat, filled, dim)
    return total
