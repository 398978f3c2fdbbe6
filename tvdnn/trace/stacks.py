"""Sums and means over maps that a network has stacked in front of the batch."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import fx

from ..ops.traced_op import given_settings
from ..ops.translate import torch_name
from .state.functionalize import is_stale

FOLDS = {torch.sum: "sum", torch.mean: "mean"}


def folded(function: str, proxy: fx.Proxy, args: Sequence[Any], settings: Mapping[str, Any]) -> Any:
    """The sum or mean of `torch.stack(maps)` over its first dimension, as sums of two maps.

    No map has another dimension than the batch in front. NotImplemented where the call is none of
    these.
    """
    given = given_settings({"dim": None, "keepdim": False}, args, settings)
    dim = given.pop("dim")
    fresh = proxy.tracer.functionalizer.fresh  # type: ignore[attr-defined]
    parts = _stacked(proxy.node, lambda node: not is_stale(node) and fresh(node) is node)
    first = dim in (0, (0,), [0]) or (parts and dim == -len(proxy.node.meta["value"].shape))
    if not parts or not first or any(given.values()):
        return NotImplemented
    total: Any = reduce(add, map(proxy.tracer.proxy, parts))
    if len(parts) == 1:  # which a write to the sum would not change
        total = total.clone()
    return total / len(parts) if function == "mean" else total


def _stacked(node: fx.Node, is_current: Callable[[fx.Node], bool]) -> list[fx.Node]:
    """The maps that a node stacks in front of the batch, if they are still what it took."""
    if torch_name(node) != "stack" or node.meta["value"] is None:
        return []
    given = given_settings({"tensors": None, "dim": 0}, node.args, node.kwargs)
    parts, dim = given.pop("tensors"), given.pop("dim")
    if given or dim not in (0, -node.meta["value"].dim()) or isinstance(parts, fx.Node):
        return []
    if torch.is_grad_enabled() > node.meta["graded"]:
        return []
    return list(parts) if all(is_current(each) for each in (node, *parts)) else []
