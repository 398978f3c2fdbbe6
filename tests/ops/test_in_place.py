"""Ops that write over the bytes of their inputs: every value lives until its last reader."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support.exact import WITH_AUTO, Functional, assert_steps_are_exact

pytestmark = pytest.mark.usefixtures("few_trials")

SHAPE = (5, 3, 6, 6)


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=0.1)


def sum_over_a_concatenation(net: nn.Module, x: Tensor) -> Tensor:
    """A concatenation that backward reads lies in the one that the sum could write over."""
    first, second, third, skip = (conv(x) for conv in net.convs)
    earlier = net.norm(torch.cat((first, second), 1))
    y: Tensor = net.last(earlier) + net.other(torch.cat((first, second, third), 1) + skip)
    return y


@pytest.mark.parametrize("widths", [(4, 4), (3, 5), (12, 12)])
def test_a_concatenation_in_another_is_not_overwritten(widths: tuple[int, int]) -> None:
    joined = sum(widths)
    net = Functional(
        sum_over_a_concatenation,
        convs=nn.ModuleList(nn.Conv2d(3, size, 1) for size in (*widths, 2, joined + 2)),
        norm=norm(joined),
        last=nn.Conv2d(joined, 2, 1),
        other=nn.Conv2d(joined + 2, 2, 1),
    )
    assert_steps_are_exact(net, torch.randn(SHAPE))


def rectified_residual(net: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = torch.relu(net.norms[0](net.convs[0](x))) + net.norms[1](net.convs[1](x))
    return y


def activated_residual(net: nn.Module, x: Tensor) -> Tensor:
    return torch.relu(net.norms[1](net.convs[1](x)) + torch.tanh(net.norms[0](net.convs[0](x))))


def sum_as_residual(net: nn.Module, x: Tensor) -> Tensor:
    """RepVGG's block: three normalized terms."""
    first, second, third = (n(c(x)) for n, c in zip(net.norms, net.convs, strict=True))
    return torch.relu(first + second + third)


def rectified_sum_as_residual(net: nn.Module, x: Tensor) -> Tensor:
    """HRNet's sum is added to a normalized term."""
    first, second, third = (n(c(x)) for n, c in zip(net.norms, net.convs, strict=True))
    return torch.relu(torch.relu(first + second) + third)


@pytest.mark.parametrize(
    "way",
    [rectified_residual, activated_residual, sum_as_residual, rectified_sum_as_residual],
)
def test_what_is_fused_with_a_normalized_residual_is_kept(
    way: Callable[[nn.Module, Tensor], Tensor],
) -> None:
    convs = nn.ModuleList(nn.Conv2d(3, 8, 1) for _ in range(3))
    net = Functional(way, convs=convs, norms=nn.ModuleList(norm(8) for _ in range(3)))
    assert_steps_are_exact(net, torch.randn(SHAPE))


def normalized_and_added(net: nn.Module, x: Tensor) -> Tensor:
    """The normalization's input is its residual as well, and backward reads it."""
    y = net.conv(x)
    z: Tensor = net.last(net.norm(y) + y)
    return z


def test_the_input_of_a_normalization_is_not_overwritten_as_its_residual() -> None:
    layers = {"conv": nn.Conv2d(3, 8, 1), "norm": norm(8), "last": nn.Conv2d(8, 2, 1)}
    net = Functional(normalized_and_added, **layers)
    assert_steps_are_exact(net, torch.randn(SHAPE), policies=WITH_AUTO)


def normalized_twice(net: nn.Module, x: Tensor) -> Tensor:
    y = net.conv(x)
    return net.norm(y) + net.other(y)


def test_two_normalizations_of_one_map_are_added() -> None:
    net = Functional(normalized_twice, conv=nn.Conv2d(3, 8, 1), norm=norm(8), other=norm(8))
    assert_steps_are_exact(net, torch.randn(SHAPE))
