"""Maps stacked in front of the batch: sums and means of them, and what else is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support.beside_torch import assert_trains_as_torch
from tests.support.exact import Functional
from tests.support.traced_networks import kinds
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

Way = Callable[[Tensor], Tensor]


def net_of(way: Way) -> nn.Module:
    return Functional(lambda net, x: way(net.conv(x)), conv=nn.Conv2d(4, 4, 1))


def written(x: Tensor) -> Tensor:
    """The stack holds what the map was before."""
    y = x + 1
    stacked = torch.stack([x, y])
    y.mul_(2)
    return stacked.sum(0) + y


def stack_written(x: Tensor) -> Tensor:
    stacked = torch.stack([x, x])
    stacked[0].mul_(2)
    return stacked.sum(0)


def part_detached(x: Tensor) -> Tensor:
    part = x * 2
    stacked = torch.stack([part, x])
    part.detach_()
    return stacked.sum(0)


def stack_detached(x: Tensor) -> Tensor:
    stacked = torch.stack([x * 2, x])
    stacked.detach_()
    return stacked.sum(0) + x


def without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        stacked = torch.stack([x, x])
    return stacked.sum(0) + x


def test_sums_and_means_of_stacked_maps_are_sums_of_maps() -> None:
    total = net_of(lambda x: torch.stack((x, x.relu(), x)).sum(dim=0, keepdim=False))
    mean = net_of(lambda x: torch.mean(torch.stack([x, x.relu()], dim=-5), 0))
    assert kinds(trace(total, [torch.empty(2, 4, 3, 3)])) == ["conv2d", "relu", "add", "add"]
    assert kinds(trace(mean, [torch.empty(2, 4, 3, 3)])) == ["conv2d", "relu", "add", "affine"]


@pytest.mark.parametrize("function", [torch.sum, torch.mean])
def test_a_write_to_a_sum_of_one_leaves_the_map(function: Callable[..., Tensor]) -> None:
    def way(x: Tensor) -> Tensor:
        total = function(torch.stack([x]), 0)
        total.mul_(2)
        return x + total

    assert_trains_as_torch(net_of(way), torch.randn(2, 4, 3, 3))


@pytest.mark.parametrize(
    "way",
    [
        *(written, stack_written, part_detached, stack_detached, without_gradient),
        lambda x: torch.stack([x, x]).sum((0, 1)),
        lambda x: torch.stack([x, x]).sum(0, keepdim=True)[0],
        lambda x: torch.stack([x, x]).sum(0, dtype=torch.float64),
        lambda x: torch.stack([x, x]).amax(0),
        lambda x: torch.stack([x, x])[0],
    ],
)
def test_other_readers_of_such_stacks_are_refused(way: Way) -> None:
    with pytest.raises(UnsupportedOpError, match=r"stack of \(2, 4, 3, 3\) along the batch"):
        trace(net_of(way), [torch.empty(2, 4, 3, 3)])
