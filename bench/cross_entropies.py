"""The loss of a network that has one output or several."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropies(
    outputs: Any, y: Tensor, weights: Sequence[float], dtype: torch.dtype | None = None
) -> Tensor:
    """The cross-entropies of outputs, of this type if one is given; weighted, added."""
    losses = [
        functional.cross_entropy(output.to(dtype or output.dtype), y) for output in _each(outputs)
    ]
    return sum(
        (weight * loss for weight, loss in zip(weights, losses, strict=True)), y.new_zeros(())
    )


def _each(outputs: Any) -> Sequence[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    return list(outputs.values() if isinstance(outputs, Mapping) else outputs)
