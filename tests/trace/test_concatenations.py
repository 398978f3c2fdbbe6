"""Concatenations of maps with parameters and constants: gradients of torch's, or refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support.beside_torch import assert_trains_as_torch
from tests.support.exact import Functional
from tests.support.traced_networks import kinds
from tvdnn.errors import InputError, UnsupportedOpError
from tvdnn.trace.trace import trace

SHAPE = (3, 4, 5, 6)
KINDS = (torch.float16, torch.bfloat16, torch.int64, torch.float64)
Way = Callable[[nn.Module, Tensor], Tensor]


def coordinates(net: nn.Module, x: Tensor) -> Tensor:
    """CoordConv: Liu et al., 2018."""
    n, _, height, width = x.shape
    rows = torch.linspace(-1, 1, height).view(1, 1, height, 1).expand(n, 1, height, width)
    columns = torch.arange(width, device=x.device).repeat(n, 1, height, 1)
    return torch.cat([x, rows, columns], 1)


def class_token(net: nn.Module, x: Tensor) -> Tensor:
    """A vision transformer's tokens: Dosovitskiy et al., 2021."""
    tokens = x.flatten(2).transpose(1, 2)
    tokens = torch.cat((net.token.expand(len(x), -1, -1), tokens), dim=1)
    return net.linear(tokens)[:, 0]


def around(net: nn.Module, x: Tensor) -> Tensor:
    own, ones = net.own.repeat(len(x), 1, 1, 1), torch.ones(len(x), 1, 5, 6)
    return torch.concat(
        [own, x, (2 * net.own).expand(3, -1, -1, -1), ones, torch.sigmoid(x), own], -3
    )


def written_between(net: nn.Module, x: Tensor) -> Tensor:
    constant = torch.zeros(len(x), 2, 5, 6)
    before = torch.cat([x, constant], 1)
    return before + torch.cat([x, constant.fill_(0.5)], 1)


def beside_empty(net: nn.Module, x: Tensor) -> Tensor:
    """A result of its own, also where nothing is joined to a map."""
    same, legacy = (
        torch.cat([x, x.new_zeros(len(x), 0, 5, 6)], 1),
        torch.cat([torch.tensor([]), x], 1),
    )
    x.mul_(3)
    legacy.add_(1)
    return x * 2 + same * legacy


def without_gradient(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        own = net.own * 2
    return torch.cat([x, own.expand(len(x), -1, -1, -1)], 1)


WAYS: dict[str, Way] = {
    "coordinates": coordinates,
    "class token": class_token,
    "around": around,
    "written between": written_between,
    "without gradient": without_gradient,
    "beside empty": beside_empty,
    "of several types": lambda net, x: torch.cat(
        [x, *(torch.full((3, 1, 5, 6), 2049, dtype=kind) for kind in KINDS)], 1
    ),
    "ones that require a gradient": lambda net, x: torch.cat(
        [x * torch.ones_like(x, requires_grad=True), torch.ones(3, 1, 5, 6, requires_grad=True)], 1
    ),
    "columns": lambda net, x: torch.cat(
        [x.new_full((1, 4, 5, 2), 0.5).expand(3, -1, -1, -1), x], -1
    ),
    "vectors": lambda net, x: torch.cat([x.mean((2, 3)), torch.ones(len(x), 1)], 1),
}


def net_of(way: Way) -> nn.Module:
    torch.manual_seed(2)
    return Functional(
        lambda net, x: way(net, net.conv(x)),
        conv=nn.Conv2d(4, 4, 1),
        own=torch.randn(1, 2, 5, 6),
        token=torch.randn(1, 1, 4),
        linear=nn.Linear(4, 3),
    )


@pytest.mark.parametrize("name", WAYS)
def test_concatenations_give_torchs_gradients(name: str) -> None:
    assert_trains_as_torch(net_of(WAYS[name]), torch.randn(SHAPE))


@pytest.mark.parametrize(
    "way",
    [
        lambda net, x: torch.cat([x, torch.zeros_like(x[:, :2])], dim=1),
        lambda net, x: torch.concatenate([x, x.new_zeros(3, 2, 5, 6)], axis=1),
    ],
)
def test_zeros_are_padding_alone(way: Way) -> None:
    net = net_of(way)
    assert kinds(trace(net, (torch.randn(SHAPE),))) == ["conv2d", "remap"]
    assert_trains_as_torch(net, torch.randn(SHAPE))


def samples(net: nn.Module, x: Tensor) -> Tensor:
    return net.own.repeat(3, 1, 1, 1) * torch.arange(3.0).view(3, 1, 1, 1)


def written(net: nn.Module, x: Tensor) -> Tensor:
    own = net.own.repeat(3, 1, 1, 1)
    own[0] = 1
    return own


def through_numpy(net: nn.Module, x: Tensor) -> Tensor:
    constant = torch.zeros(1, 2, 5, 6).repeat(3, 1, 1, 1)
    constant.numpy()[1:] = 1
    return constant


def through_data(net: nn.Module, x: Tensor) -> Tensor:
    own = net.own.repeat(3, 1, 1, 1)
    own.data = (net.own * torch.arange(3.0).view(3, 1, 1, 1)).data
    return own


def through_storage(net: nn.Module, x: Tensor) -> Tensor:
    own = net.own.detach().repeat(3, 1, 1, 1)
    return own.set_(own.untyped_storage(), 0, (3, 2, 5, 6), (60, 1, 12, 2))


class Writes(torch.autograd.Function):
    @staticmethod
    def forward(context: object) -> Tensor:
        WRITTEN[0][1:] = 5
        return torch.zeros(1)


def through_a_function(net: nn.Module, x: Tensor) -> Tensor:
    WRITTEN[0] = own = net.own.detach().repeat(3, 1, 1, 1)
    Writes.apply()
    del WRITTEN[0]
    return own


WRITTEN: dict[int, Tensor] = {}
HELD: list[Tensor] = [torch.ones(1, 2, 5, 6)]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (samples, "cat of a tensor that does not come from the inputs at"),
        (written, "cat of a tensor that does not come from the inputs at"),
        (through_numpy, "a constant that something else than torch's calls has written"),
        (through_data, "cat of a tensor that does not come from the inputs at"),
        (through_storage, "cat of a tensor that does not come from the inputs at"),
        (through_a_function, "cat of a tensor that does not come from the inputs at"),
        (lambda net, x: 1j * torch.ones(3, 2, 5, 6), "cat"),
        (lambda net, x: torch.rand(1, 2, 5, 6).expand(3, -1, -1, -1), "draws random numbers"),
        (lambda net, x: HELD[0].expand(3, -1, -1, -1), "register it as a buffer"),
    ],
)
def test_tensors_that_differ_by_sample_or_step_are_refused(other: Way, message: str) -> None:
    net = net_of(lambda net, x: torch.cat([x, other(net, x)], 1))
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net, (torch.randn(SHAPE),))


@pytest.mark.parametrize("shape", [(1, 2, 5, 6), (3, 2, 1, 1), (3, 2, 5)])
def test_sizes_that_torch_refuses_are_refused(shape: tuple[int, ...]) -> None:
    net = net_of(lambda net, x: torch.cat([x, torch.ones(shape)], 1))
    with pytest.raises(InputError, match="cat does not take"):
        trace(net, (torch.randn(SHAPE),))
