"""Changes of parameters and buffers that no step could make, refused by line."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.state_networks import SHAPE, Net, Way, ahead, assert_same, decay
from tvdnn.errors import UnsupportedOpError
from tvdnn.graph.state import NO_CHANGES
from tvdnn.trace.trace import trace

pytestmark = pytest.mark.usefixtures("few_trials")


def behind(change: Callable[[Net], object]) -> Way:
    """A forward that makes a change behind its layers."""

    def way(net: Net, x: Tensor) -> Tensor:
        h = net.norm(net.conv(x))
        change(net)
        return h

    return way


def set_data(net: Net) -> None:
    net.ema.data = net.ema + 1


def by_random_numbers(net: Net) -> None:
    net.ema.add_(torch.rand_like(net.ema))


def by_a_tensor_from_elsewhere(net: Net) -> None:
    net.ema.add_(ELSEWHERE)


def by_a_gradient(net: Net) -> None:
    net.ema.copy_(net.conv.bias)


def by_an_attribute(net: Net) -> None:
    net.ema.add_(net.table)  # type: ignore[arg-type]


def write_a_parameter_late(net: Net) -> None:
    net.conv.weight.data.mul_(0.5)


def write_statistics_late(net: Net) -> None:
    net.norm.running_mean.mul_(0.5)


def read_statistics_late(net: Net) -> None:
    net.ema.copy_(net.norm.running_mean)


def by_a_list(net: Net) -> None:
    net.weights[0].data.mul_(0.5)  # type: ignore[index, union-attr]


ELSEWHERE = torch.empty(4, device="meta")
HERE = "which a step would not at tests/trace/test_refused_state_changes.py"
REFUSED: list[tuple[Way, str]] = [
    (ahead(lambda net: net.ema.normal_()), f"normal_ changes ema .* by random numbers, {HERE}"),
    (ahead(by_random_numbers), f"rand_like makes a tensor for .* by random numbers, {HERE}"),
    (ahead(by_a_tensor_from_elsewhere), f"add_ changes ema .* no parameter or buffer, {HERE}"),
    (ahead(by_a_gradient), f"copy_ changes ema of the module, {HERE}"),
    (ahead(set_data), f"changes ema of the module, {HERE}"),
    (ahead(lambda net: net.ema.set_(net.image)), "gives ema another storage, which a step would"),
    (ahead(lambda net: net.ema.unsqueeze_(0)), f"unsqueeze_ changes ema of the module, {HERE}"),
    (behind(write_a_parameter_late), f"mul_ changes conv.weight .* after conv.weight was.* {HERE}"),
    (behind(write_statistics_late), f"after a normalization has changed norm.running_mean, {HERE}"),
    (behind(read_statistics_late), f"copy_ changes ema .* after a normalization has .* {HERE}"),
]


@pytest.mark.parametrize(("way", "message"), REFUSED)
def test_other_changes_are_refused(way: Way, message: str) -> None:
    net = Net(way)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net, (torch.randn(SHAPE),))
    assert_same(before, net.state_dict())


def test_a_parameter_that_a_list_holds_is_refused() -> None:
    net: Any = Net(ahead(by_a_list))
    net.weights = [net.conv.weight]
    with pytest.raises(UnsupportedOpError, match=r"mul_ changes conv.weight, held beside it, of"):
        trace(net, (torch.randn(SHAPE),))


def test_sparse_tensors_of_a_forward_are_no_state() -> None:
    def way(net: Net, x: Tensor) -> Tensor:
        table = torch.eye(3).to_sparse()
        assert (table + table).coalesce().values().sum() == 6
        return net.conv(x)

    assert trace(Net(way), (torch.randn(SHAPE),)).changes == NO_CHANGES


def test_a_tensor_that_two_buffers_share_is_refused() -> None:
    net = Net(ahead(decay))
    net.register_buffer("view", net.ema[:2])
    with pytest.raises(UnsupportedOpError, match=r"ema of .* and view, which shares its bytes"):
        trace(net, (torch.randn(SHAPE),))


def test_a_buffer_of_another_type_is_refused() -> None:
    net: Any = Net(ahead(decay))
    net.ema = net.ema.double()
    with pytest.raises(UnsupportedOpError, match="by ema, which is neither float32 nor of whole"):
        trace(net, (torch.randn(SHAPE),))


def test_state_of_a_submodule_that_runs_by_torch_is_refused() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cumsum(x, 1) * self.scale

    net: Any = Net(lambda net, x: net.odd(net.conv(x)))  # type: ignore[operator]
    net.odd = Odd()
    trace(net, (torch.randn(SHAPE),), opaque=True)
    net.way = lambda net, x: (net.odd.scale.mul_(2), net.odd(net.conv(x)))[1]
    with pytest.raises(UnsupportedOpError, match=r"odd.scale .* of a submodule that runs as it is"):
        trace(net, (torch.randn(SHAPE),), opaque=True)
