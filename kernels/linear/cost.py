"""The least work of the products of a linear layer. Sums over shares of a product do not count."""

from typing import Any

from torch import Tensor

from ..language.cost import Cost, moved


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, **_: Any) -> Cost:
    """The cost of `linear`."""
    return Cost(2.0 * len(x) * weight.numel(), moved(x, weight, bias, y))


def grad_input(
    dy: Tensor, weight: Tensor, dx: Tensor, *, mask: Tensor | None = None, **_: Any
) -> Cost:
    """The cost of `linear_grad_input`."""
    return Cost(2.0 * len(dy) * weight.numel(), moved(dy, weight, dx, mask))


def grad_weight(x: Tensor, dy: Tensor, partials: Tensor, **_: Any) -> Cost:
    """The cost of `linear_grad_weight`."""
    return Cost(2.0 * x.numel() * dy.shape[1], moved(x, dy, partials))


def update(x: Tensor, dy: Tensor, *updated: Tensor, **_: Any) -> Cost:
    """The cost of a weight gradient and an update by it: parameter and states are moved twice."""
    return Cost(2.0 * x.numel() * dy.shape[1], moved(x, dy, updated, updated))
