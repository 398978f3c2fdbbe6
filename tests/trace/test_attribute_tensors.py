"""Tensors that modules hold as plain attributes: read at each step, or refused."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.beside_torch import assert_trains_as_torch
from tvdnn.engine import Trainer, virtualize
from tvdnn.errors import UnsupportedOpError
from tvdnn.optim import SGD
from tvdnn.trace.trace import trace

SHAPE = (3, 4, 5, 6)
Way = Callable[[Any, Tensor], Tensor]


class Holding(nn.Module):
    """Layers, a parameter and tensors that are neither parameters nor buffers."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.conv, self.scale = nn.Conv2d(4, 4, 1), nn.Parameter(torch.rand(4, 1, 1))
        self.mean, self.grid = torch.rand(1, 4, 1, 1), torch.rand(5, 6)
        self.factor, self.filters = torch.tensor(0.5), torch.rand(4, 1, 3, 3)
        self.exact = torch.rand(4, 1, 1, dtype=torch.float64)
        self.sparse = torch.eye(4).to_sparse()
        self.pair = [torch.rand(4, 1, 1), torch.tensor(2.0)]
        self.aside: Tensor | None = None
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, self.conv(x))


def moved(net: Any, x: Tensor) -> Tensor:
    net.mean = net.mean.type_as(x)
    return x - net.mean


def cast(net: Any, x: Tensor) -> Tensor:
    net.exact = net.exact.to(x.device).to(x.dtype)
    return x * net.exact


WAYS: dict[str, Way] = {
    "a mean": lambda net, x: x - net.mean,
    "a number": lambda net, x: x * net.factor + net.factor,
    "moved": moved,
    "cast": cast,
    "a part": lambda net, x: x + net.grid[:, :1] * net.grid[1:2],
    "with a parameter": lambda net, x: x * (net.scale * net.mean[0]),
    "as filters": lambda net, x: functional.conv2d(x, net.filters.to(x.dtype), groups=4),
    "as a weight": lambda net, x: functional.linear(x, net.grid.type_as(x)[:3]),
    "a reshaped one": lambda net, x: functional.layer_norm(
        x, (6,), net.grid.to(x.dtype)[0], net.grid.type_as(x)[1]
    ),
    "several times": lambda net, x: (x - net.mean).relu() * net.factor + net.mean,
    "where asked": lambda net, x: x * 2 if net.mean.sum() > 100 else x - net.mean,
}


@pytest.mark.parametrize("name", WAYS)
def test_they_give_torchs_gradients(name: str) -> None:
    assert_trains_as_torch(Holding(WAYS[name]), torch.randn(SHAPE, requires_grad=True))


def write(net: Any) -> None:
    net.mean.mul_(3).add_(1)


def write_past_torch(net: Any) -> None:
    net.mean.numpy()[:] = 4


def replaced(net: Any) -> None:
    net.mean = net.mean.flip(1)


def of_another_shape(net: Any) -> None:
    net.mean = torch.rand(1, 4, 5, 1)


@pytest.mark.parametrize("change", [write, write_past_torch, replaced, of_another_shape])
def test_a_step_reads_them_as_they_are(change: Callable[[Any], None], device: torch.device) -> None:
    net = Holding(lambda net, x: x - net.mean.to(x.device)).to(device)
    x = torch.randn(SHAPE, device=device)
    virtual = virtualize(net, x, dtype="fp32")
    for _ in range(3):
        exact = copy.deepcopy(net).double()(x.double())
        torch.testing.assert_close(virtual(x).double(), exact, rtol=1e-5, atol=1e-5)
        change(net)
    virtual.close()


def test_a_trainer_reads_them_as_they_are(device: torch.device) -> None:
    net = nn.Sequential(Holding(lambda net, x: x - net.mean.to(x.device)), nn.Flatten()).to(device)
    other = copy.deepcopy(net)
    trainer = Trainer(net, torch.empty(SHAPE), loss="mse", optimizer=SGD(0.01), policy="keep")
    optimizer = torch.optim.SGD(other.parameters(), 0.01)
    x, y = torch.randn(SHAPE, device=device), torch.randn(3, 120, device=device)
    for _ in range(3):
        trainer.step(x, y)
        optimizer.zero_grad()
        functional.mse_loss(other(x), y).backward()
        optimizer.step()
        write_past_torch(net[0])
        write_past_torch(other[0])
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    trainer.close()


def through_data(each: Tensor) -> None:
    each.data.mul_(-3)


def through_numpy(each: Tensor) -> None:
    each.numpy()[...] *= -3


@pytest.mark.parametrize("write", [lambda each: each.mul_(-3), through_data, through_numpy])
@pytest.mark.parametrize(
    "way",
    [
        lambda net, x: x * net.factor.item(),
        lambda net, x: x * 2 if net.factor > 0 else x,
        lambda net, x: x * float(net.pair[1]),
        lambda net, x: x * net.mean.tolist()[0][0][0][0],
    ],
)
def test_a_decision_by_their_values_is_made_anew(
    way: Way, write: Callable[[Tensor], object]
) -> None:
    net, x = Holding(way), torch.randn(SHAPE)
    virtual = virtualize(net, x)
    for _ in range(2):
        torch.testing.assert_close(virtual(x), net(x), rtol=1e-5, atol=1e-6)
        for each in (net.factor, net.mean, net.pair[1]):
            write(each)
    torch.testing.assert_close(virtual(x), net(x), rtol=1e-5, atol=1e-6)
    virtual.close()


def test_attributes_are_as_they_were() -> None:
    net = Holding(cast)
    before = dict(net.__dict__)
    trace(net, (torch.empty(SHAPE),))
    assert net.__dict__ == before
    assert net.exact.dtype == torch.float64


def set_to_another(net: Any, x: Tensor) -> Tensor:
    net.mean = net.mean * 2
    return x - net.mean


def set_aside(net: Any, x: Tensor) -> Tensor:
    net.aside = net.mean.to(torch.float64)
    return x - net.aside.float()


def by_numpy(net: Any, x: Tensor) -> Tensor:
    net.mean.numpy()[:] = 3
    return x - net.mean


def rounded_behind(net: Any, x: Tensor) -> Tensor:
    y = x - net.mean
    net.mean = net.mean.half()
    return y


def set_in_another(net: Any, x: Tensor) -> Tensor:
    net.inner.mean = net.mean.to(x.dtype)
    return x - net.inner.mean


def exchanged(net: Any, x: Tensor) -> Tensor:
    net.mean, net.filters = net.filters.to(x.dtype), net.mean.to(x.dtype)
    return x - net.filters


def trained(net: Any, x: Tensor) -> Tensor:
    return x - net.trained


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (set_to_another, "forward changes the attribute mean, which a step would not"),
        (rounded_behind, "forward changes the attribute mean, which a step would not"),
        (set_in_another, "inner: forward changes the attribute mean, which a step would not"),
        (exchanged, "forward changes the attribute mean, which a step would not"),
        (lambda net, x: x * net.variance.mean().item(), r"item\(\) reads|item reads"),
        (set_aside, "forward changes the attribute aside, which a step would not"),
        (lambda net, x: x - net.mean.add_(1), "add_ changes mean of the module"),
        (lambda net, x: x - net.pair[0], "is not a parameter or a buffer of the network"),
        (by_numpy, "Holding: forward changes mean of the module, which a step would not"),
        (
            lambda net, x: net.norm(x) * net.variance.view(4, 1, 1),
            "view on a tensor that is neither a parameter nor a buffer",
        ),
        (trained, "is not a parameter or a buffer of the network"),
        (
            lambda net, x: x * net.mean.expand(3, 4, 1, 1).clone(),
            "the first dimension is the batch",
        ),
        (lambda net, x: x * net.mean * torch.rand(4, 1, 1), "draws random numbers"),
    ],
)
def test_others_are_refused(way: Way, message: str) -> None:
    net = Holding(way)
    net.trained = torch.rand(4, 1, 1, requires_grad=True)
    net.norm = nn.BatchNorm2d(4)
    net.inner = Holding(lambda inner, x: x)
    net.variance = net.norm.running_var
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net, (torch.empty(SHAPE),))


def test_what_later_requires_a_gradient_is_refused() -> None:
    net, x = Holding(lambda net, x: x - net.mean), torch.randn(SHAPE)
    virtual = virtualize(net, x)
    virtual(x)
    net.mean.requires_grad_()
    with pytest.raises(UnsupportedOpError, match="is not a parameter or a buffer of the network"):
        virtual(x)
    virtual.close()


def test_a_lazy_layer_may_be_beside_them() -> None:
    net = Holding(lambda net, x: net.inner(x - net.mean))
    net.inner = nn.LazyConv2d(4, 1)
    x = torch.randn(SHAPE)
    virtual = virtualize(net, x)
    torch.testing.assert_close(virtual(x), net(x), rtol=1e-5, atol=1e-5)
    virtual.close()
