"""Constants that a forward makes anew: as parameters computed before each step, or refused."""

import functools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.beside_torch import assert_trains_as_torch
from tests.support.exact import Functional
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

SHAPE = (3, 4, 5, 6)
Way = Callable[[nn.Module, Tensor], Tensor]


def written_between(net: nn.Module, x: Tensor) -> Tensor:
    constant = torch.zeros(1, 4, 1, 6)
    y = x + constant
    constant[:, 2].fill_(0.5)
    return y * (x + constant)


def trained(net: nn.Module, x: Tensor) -> Tensor:
    """A parameter's gradient goes through a product with a constant."""
    return x * (net.scale * torch.arange(1.0, 5.0).view(4, 1, 1))


def as_filters(net: nn.Module, x: Tensor) -> Tensor:
    binomial = torch.tensor([1.0, 2.0, 1.0], dtype=net.scale.dtype) / 4
    return functional.conv2d(x, torch.outer(binomial, binomial).expand(4, 1, 3, 3), groups=4)


WAYS: dict[str, Way] = {
    "a number": lambda net, x: x * torch.tensor(0.3) + torch.as_tensor(1.0),
    "a grid": lambda net, x: x + torch.linspace(0, 1, 6) * torch.linspace(0, 1, 5)[:, None],
    "as the map": lambda net, x: x * x.new_full((4, 1, 1), 0.7),
    "one that requires a gradient": lambda net, x: x + torch.ones(4, 1, 1, requires_grad=True),
    "written between": written_between,
    "trained": trained,
    "as filters": as_filters,
}
UNCHANGED = torch.ones(4, 1, 1)  # made outside of a network


def net_of(way: Way) -> nn.Module:
    torch.manual_seed(4)
    return Functional(
        lambda net, x: way(net, net.conv(x)), conv=nn.Conv2d(4, 4, 1), scale=torch.rand(4, 1, 1)
    )


@pytest.mark.parametrize("name", WAYS)
def test_constants_give_torchs_gradients(name: str) -> None:
    assert_trains_as_torch(net_of(WAYS[name]), torch.randn(SHAPE, requires_grad=True))


@functools.lru_cache
def cached() -> Tensor:
    return torch.zeros(4, 1, 1)


def numbered() -> Iterator[Tensor]:
    number = torch.zeros(1)
    while True:
        number = number + 1
        yield number


class Holder:
    held: Tensor | None = None

    def once(self) -> Tensor:
        self.held = torch.ones(1) if self.held is None else self.held
        return self.held


def through_numpy(net: nn.Module, x: Tensor) -> Tensor:
    constant = torch.zeros(4, 1, 1)
    constant.numpy()[:] = 1
    return x + constant


def through_data(net: nn.Module, x: Tensor) -> Tensor:
    constant = torch.zeros(4, 1, 1)
    y = x + constant
    constant.data.add_(1)
    return y * (x + constant)


def of_signed_zeros(net: nn.Module, x: Tensor) -> Tensor:
    return x / torch.tensor([0.0, -0.0]).view(2, 1, 1, 1)


NUMBERS, HOLDER, KEPT = numbered(), Holder(), dict[str, Tensor]()


@pytest.mark.parametrize(
    "way",
    [
        lambda net, x: x * cached().add_(1),
        lambda net, x: x * KEPT.setdefault("ones", torch.ones(6)).add_(1),
        lambda net, x: x * next(NUMBERS),
        lambda net, x: x * HOLDER.once().add_(1),
        lambda net, x, made=[]: x * (made.append(torch.ones(1)) or made[-1]),
        lambda net, x: x + KEPT.setdefault("views", torch.ones(6).view(6, 1))[:5],
    ],
)
def test_constants_that_something_holds_are_refused(way: Way) -> None:
    with pytest.raises(
        UnsupportedOpError, match=r"held after forward.*register it as a buffer.* at"
    ):
        trace(net_of(way), (torch.randn(SHAPE),))


def test_writes_past_the_version_of_a_constant_are_followed() -> None:
    assert_trains_as_torch(net_of(through_data), torch.randn(SHAPE))


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (through_numpy, "a constant that something else than torch's calls has written"),
        (of_signed_zeros, "the first dimension is the batch"),
    ],
)
def test_constants_are_compared_to_the_bit(way: Way, message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net_of(way), (torch.randn(2, 4, 5, 6),))


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda net, x: x * torch.rand(4, 1, 1), "whose computation draws random numbers"),
        (lambda net, x: x + torch.arange(6), "a buffer of torch.int64"),
        (lambda net, x: x + torch.ones(3, 1, 1, 1), "the first dimension is the batch"),
        (lambda net, x: x + 2 * UNCHANGED, "on a tensor that is neither a parameter nor a buffer"),
        (lambda net, x: torch.zeros(1, 4, 5, 6).add_(x), "add_ changes constant"),
    ],
)
def test_what_is_no_constant_of_a_network_is_refused(way: Way, message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net_of(way), (torch.randn(1, 4, 5, 6),))
