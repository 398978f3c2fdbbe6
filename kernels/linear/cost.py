"""What products of linear layers must do at least: sums of shares are no part of it."""

from typing import Any

from torch import Tensor

from ..language.cost import Cost, moved


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, **_: Any) -> Cost:
    return Cost(2.0 * len(x) * weight.numel(), moved(x, weight, bias, y))


def grad_input(
    dy: Tensor, weight: Tensor, dx: Tensor, *, mask: Tensor | None = None, **_: Any
) -> Cost:
    return Cost(2.0 * len(dy) * weight.numel(), moved(dy, weight, dx, mask))


def grad_weight(x: Tensor, dy: Tensor, partials: Tensor, **_: Any) -> Cost:
    return Cost(2.0 * x.numel() * dy.shape[1], moved(x, dy, partials))


def update(x: Tensor, dy: Tensor, *updated: Tensor, **_: Any) -> Cost:
    """The gradient stays on the chip. The parameter and its states are read and written."""
    return Cost(2.0 * x.numel() * dy.shape[1], moved(x, dy, updated, updated))
