"""Losses of elements against torch in float64, with and without weights by channel."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.kernels.numerics import poisoned, poisoned_like, randn, rms_error
from tvdnn.kernels.loss.per_element import (
    FUNCTIONS,
    element_loss,
    element_loss_grad,
    element_loss_grad_reference,
    element_loss_reference,
    element_splits,
)

TOLERANCE = {torch.float32: 5e-7, torch.bfloat16: 4e-3}
SHAPES = [(1, 1), (3, 11), (2, 5, 7, 3), (2, 41, 401, 1)]
LAUNCHERS = [
    (element_loss, element_loss_grad),
    (element_loss_reference, element_loss_grad_reference),
]
Weights = tuple[Tensor | None, Tensor | None]


def torchs(function: str, x: Tensor, target: Tensor, weights: Weights) -> Tensor:
    weight, pos_weight = (None if each is None else each.double() for each in weights)
    if function == "mse":
        losses = functional.mse_loss(x, target, reduction="none")
        return losses if weight is None else losses * weight
    settings = {"pos_weight": pos_weight, "reduction": "none"}
    return functional.binary_cross_entropy_with_logits(x, target, weight, **settings)


def weights_of(channels: int, generator: torch.Generator) -> Weights:
    weight, pos_weight = (
        torch.rand(count, generator=generator, device=generator.device) + 0.5
        for count in (channels, 1)
    )
    return weight, pos_weight


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_follows_torch(
    function: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    weighted: bool,
    generator: torch.Generator,
) -> None:
    x = randn(shape, dtype, generator, 3.0)
    target = torch.rand(shape, generator=generator, device=x.device)
    weights = weights_of(shape[-1], generator) if weighted else (None, None)
    total, control = torch.tensor([0.0, 4.0]).to(x.device), torch.tensor([2.5]).to(x.device)
    leaf = x.double().requires_grad_()
    exact = torchs(function, leaf, target.double(), weights)
    exact.sum().backward(control[0].double() / 4)
    assert leaf.grad is not None
    for forward, backward in LAUNCHERS:
        partials = poisoned((shape[0], element_splits(x[0].numel()), 2), torch.float32, x.device)
        dx = poisoned_like(x)
        forward(x, target, *weights, partials, function=function)
        backward(x, target, *weights, total, control, dx, function=function)
        losses = partials[..., 0].double().sum(1)
        assert rms_error(losses, exact.detach().flatten(1).sum(1)) <= TOLERANCE[torch.float32]
        assert partials[..., 1].sum() == x.numel()
        assert rms_error(dx, leaf.grad) <= TOLERANCE[dtype]


@pytest.mark.parametrize(("forward", "backward"), LAUNCHERS)
def test_logits_far_out(
    forward: Callable[..., None], backward: Callable[..., None], generator: torch.Generator
) -> None:
    """Losses near zero keep their digits, and large logits do not overflow."""
    x = torch.tensor([[20.0], [-20.0], [200.0], [-200.0]], device=generator.device)
    target = torch.tensor([[1.0], [0.0], [0.0], [1.0]], device=x.device)
    partials = poisoned((4, 1, 2), torch.float32, x.device)
    dx, one = poisoned_like(x), torch.ones(2, device=x.device)
    forward(x, target, None, None, partials, function="bce_with_logits")
    backward(x, target, None, None, one, one[:1], dx, function="bce_with_logits")
    exact = functional.softplus(torch.tensor([-20.0, -20.0, 200.0, 200.0], dtype=torch.float64))
    losses = partials[:, 0, 0].double().cpu()
    assert ((losses - exact).abs() <= 3e-7 * exact).all()
    assert dx.isfinite().all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bits_do_not_depend_on_the_run(function: str, generator: torch.Generator) -> None:
    x = randn((5, 3, 601), torch.float32, generator)
    target = torch.rand(x.shape, generator=generator, device=x.device)
    whole = poisoned((5, element_splits(1803), 2), torch.float32, x.device)
    element_loss(x, target, None, None, whole, function=function)
    for rows in (slice(0, 2), slice(2, 5)):
        part = torch.empty_like(whole[rows])
        element_loss(x[rows], target[rows], None, None, part, function=function)
        assert torch.equal(part, whole[rows])
