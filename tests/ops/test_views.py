"""Ops behind views that count the elements of a sample otherwise: each sees its values' shape."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.exact import WITH_AUTO, Functional, assert_steps_are_exact

pytestmark = pytest.mark.usefixtures("few_trials")

SHAPE = (3, 3, 8, 8)
CHUNK_SIZE = 2100  # bytes: a sample a section


def viewed(x: Tensor) -> Tensor:
    return x.view(len(x), x.shape[1], 4, 16)


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=0.1)


def resized(x: Tensor) -> Tensor:
    return functional.interpolate(viewed(x), scale_factor=2, mode="bilinear")


def pooled(x: Tensor) -> Tensor:
    return functional.adaptive_avg_pool2d(functional.max_pool2d(viewed(x), 3, 2, 1), (2, 3))


def averaged(x: Tensor) -> Tensor:
    return functional.avg_pool2d(viewed(x), (2, 4)).softmax(1)


def normalized(x: Tensor) -> Tensor:
    return functional.local_response_norm(functional.group_norm(viewed(x), 2), 3)


def split(x: Tensor) -> Tensor:
    """Parts of a map, and parts of a view of it."""
    first, second = x.chunk(2, 1)
    third, fourth = viewed(x).chunk(2, 1)
    return viewed(first) * third + torch.relu(viewed(second)) * fourth


def joined(x: Tensor) -> Tensor:
    return viewed(torch.cat((torch.cat((viewed(x), viewed(x) * 2), 1).view(-1, 16, 8, 8), x), 1))


def chained(x: Tensor) -> Tensor:
    return (torch.relu(viewed(x)).view(-1, 8, 16, 4) * 1.5).view(-1, 8, 2, 32)


@pytest.mark.parametrize(
    "way", [resized, pooled, averaged, normalized, split, joined, chained, viewed]
)
def test_functions_behind_a_view(way: Callable[[Tensor], Tensor]) -> None:
    net = Functional(lambda net, x: way(net.conv(x)), conv=nn.Conv2d(3, 8, 1))
    assert_steps_are_exact(net, torch.randn(SHAPE), chunk_size=CHUNK_SIZE)


def layers_behind_a_view(net: nn.Module, x: Tensor) -> Tensor:
    y = torch.relu(net.norm(viewed(net.conv(x))))
    return net.up(net.depthwise(net.inner(y) + viewed(net.conv(x))).view(-1, 8, 16, 4))


def residuals_behind_views(net: nn.Module, x: Tensor) -> Tensor:
    y = net.conv(x)
    z = viewed(net.norm(y)) + net.inner(viewed(y))
    return torch.relu(net.norm2(viewed(y)) + z).view(-1, 8, 16, 4) + y.view(-1, 8, 16, 4)


@pytest.mark.parametrize("way", [layers_behind_a_view, residuals_behind_views])
def test_layers_behind_a_view(way: Callable[[nn.Module, Tensor], Tensor]) -> None:
    net = Functional(
        way,
        conv=nn.Conv2d(3, 8, 1),
        norm=norm(8),
        norm2=norm(8),
        inner=nn.Conv2d(8, 8, 3, padding=1),
        depthwise=nn.Conv2d(8, 8, 3, padding=1, groups=8),
        up=nn.ConvTranspose2d(8, 4, 2, 2),
    )
    assert_steps_are_exact(net, torch.randn(SHAPE), chunk_size=CHUNK_SIZE)


def outputs_and_their_view(net: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    y = net.conv(x.view(-1, 3, 4, 16))
    return y, y.view(-1, 8, 8, 8), net.norm(y)


def test_a_map_and_its_view_are_handed_out() -> None:
    net = Functional(outputs_and_their_view, conv=nn.Conv2d(3, 8, 1), norm=norm(8))
    assert_steps_are_exact(net, torch.randn(SHAPE), chunk_size=CHUNK_SIZE, policies=WITH_AUTO)


def to_one_pixel(net: nn.Module, x: Tensor) -> Tensor:
    y = net.conv(net.linear(x).view(-1, 8, 1, 1))
    return net.last(functional.interpolate(y, size=(4, 4), mode="bilinear"))


def gated_by_rows(net: nn.Module, x: Tensor) -> Tensor:
    y = net.linear(x)
    return net.conv((torch.sigmoid(y) * y).view(-1, 8, 1, 1)).flatten(1).view(-1, 8, 1, 1)


@pytest.mark.parametrize("way", [to_one_pixel, gated_by_rows])
def test_rows_as_maps_of_one_pixel(way: Callable[[nn.Module, Tensor], Tensor]) -> None:
    layers = {"linear": nn.Linear(6, 8), "conv": nn.Conv2d(8, 8, 1), "last": nn.Conv2d(8, 4, 3)}
    assert_steps_are_exact(Functional(way, **layers), torch.randn(5, 6), chunk_size=64)


def gated_sum(net: nn.Module, x: Tensor) -> Tensor:
    """The sum's term is a view of one channel; the sigmoid's map may take the sum's bytes."""
    total = x.view(-1, 16, 2, 1, 1).sum(2) + net.conv(x)
    return functional.glu(total, 1) + functional.glu(torch.sigmoid(total * 2), 1)


def parts_of_a_sum(net: nn.Module, x: Tensor) -> Tensor:
    """Convolutions read the parts where they lie, of a map at the end of a chain in place."""
    total = torch.relu((x.view(-1, 16, 2, 1, 1).sum(2) + net.conv(x)) * 3 - 1)
    first, second = total.chunk(2, 1)
    return net.last(first) + net.last(second.view(-1, 8, 1, 1))


@pytest.mark.parametrize("way", [gated_sum, parts_of_a_sum])
def test_ranges_of_a_map_in_the_place_of_a_view(way: Callable[[nn.Module, Tensor], Tensor]) -> None:
    layers = {"conv": nn.Conv2d(32, 16, 1), "last": nn.Conv2d(8, 4, 1)}
    assert_steps_are_exact(Functional(way, **layers), torch.randn(5, 32, 1, 1), chunk_size=64)
