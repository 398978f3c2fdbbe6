"""Networks that are odd but right: names of all kinds, inputs handed out, first calls."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.beside_torch import assert_trains_as_torch
from tests.support.exact import Functional
from tvdnn.engine import Trainer, virtualize
from tvdnn.errors import InputError, UnsupportedOpError
from tvdnn.trace.trace import trace


class Named(nn.Module):
    """Parameters, layers and inputs are named as functions and as values that training adds."""

    def __init__(self) -> None:
        super().__init__()
        self.add = nn.Conv2d(3, 4, 1)
        self.loss = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 3)
        self.mul = nn.Parameter(torch.rand(4, 1, 1))
        self.relu = nn.Parameter(torch.rand(4, 1, 1))
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, target: Tensor) -> Tensor:
        h = self.loss(self.add(target)) * self.mul
        h = (h + self.relu).relu()
        return self.linear(h.mean((2, 3)))


def test_names_of_functions_and_losses() -> None:
    torch.manual_seed(0)
    assert_trains_as_torch(Named(), torch.randn(3, 3, 5, 4, requires_grad=True))
    names = {*trace(Named(), (torch.empty(2, 3, 4, 4),)).values}
    assert names.isdisjoint({"loss", "target", "mul", "mean", "linear.weight"})


def test_a_trainer_of_such_names() -> None:
    torch.manual_seed(0)
    net = Named()
    trainer = Trainer(net, torch.randn(3, 3, 5, 4))
    x, y = torch.randn(3, 3, 5, 4), torch.randint(0, 3, (3,))
    exact = nn.functional.cross_entropy(net(x), y)
    torch.testing.assert_close(trainer.step(x, y), exact.detach())


def several(way: Callable[[nn.Module, Tensor, Tensor], Any]) -> nn.Module:
    """Returns `way` of a layer and two inputs."""
    return Functional(lambda net, x, y: way(net.conv, x, y), conv=nn.Conv2d(3, 3, 1))


@pytest.mark.parametrize(
    "way",
    [
        lambda conv, x, y: conv(x),
        lambda conv, x, y: (conv(x), y),
        lambda conv, x, y: (x, conv(y), x),
        lambda conv, x, y: (x, conv(x), y.flatten(1)),
        lambda conv, x, y: (conv(x) + y, y),
        lambda conv, x, y: (conv(x).detach(), conv(y)),
    ],
)
@pytest.mark.parametrize("graded", [(False, False), (True, True), (False, True)])
def test_inputs_unread_and_handed_out(way: Any, graded: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, 4, 5, requires_grad=each) for each in graded]
    assert_trains_as_torch(several(way), *inputs)


def test_the_first_call_may_be_under_inference_mode() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    x = torch.randn(2, 3, 6, 6)
    with torch.inference_mode():
        model = virtualize(net, x)
        first = model(x)
    y = model(torch.randn(2, 3, 6, 6))
    y.sum().backward()
    assert first.shape == y.shape
    assert all(param.grad is not None for param in net.parameters())


def test_the_course_may_hang_on_whether_gradients_are_recorded() -> None:
    class Course(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x) * (2 if torch.is_grad_enabled() else 3)

    net, x = Course(), torch.randn(2, 3, 4, 4)
    model = virtualize(net, x)
    torch.testing.assert_close(model(x), net(x))
    with torch.no_grad():
        torch.testing.assert_close(model(x), net(x))


def raising(way: Callable[[Tensor], Any]) -> nn.Module:
    return Functional(lambda net, x: way(net.inner(x)), inner=nn.Sequential(nn.ReLU()))


def refuse_sizes(x: Tensor) -> Tensor:
    if x.shape[1] != 5:
        raise ValueError(f"{x.shape[1]} channels")
    return x


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (
            refuse_sizes,
            r"Functional: ValueError: 3 channels at tests/trace/test_odd_networks.py:\d+",
        ),
        (
            lambda x: torch.stack([x, x[0]]),
            r"stack does not take tensors of shapes .*test_odd_networks.py",
        ),
    ],
)
def test_the_networks_own_errors_name_their_line(way: Any, message: str) -> None:
    with pytest.raises((InputError, UnsupportedOpError), match=message):
        trace(raising(way), (torch.empty(2, 3, 4, 4),))


@pytest.mark.parametrize(
    "way",
    [
        lambda x: torch.from_numpy(x.numpy()),
        lambda x: torch.tensor([1.0, x.sum()]),
        lambda x: x.new_tensor(x.tolist()),
        lambda x: torch.linalg.inv(x),
        lambda x: nn.functional.grid_sample(x, torch.zeros(2, 4, 4, 2)),
        lambda x: torch.ops.aten.relu(x),
        lambda x: x.to_sparse().to_dense(),
        lambda x: torch.einsum("nchw,nchw->nc", x, x),
        lambda x: x[torch.tensor([1, 0])],
        lambda x: x.apply_(abs),
        lambda x: next(iter(x)).storage(),
        lambda x: torch.jit.script(nn.ReLU())(x),
    ],
)
def test_what_proxies_cannot_do_is_refused_by_line(way: Any) -> None:
    with pytest.raises(UnsupportedOpError, match=r"test_odd_networks\.py"):
        trace(raising(way), (torch.empty(2, 3, 4, 4),))
