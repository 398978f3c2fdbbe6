"""Modules that run by torch give gradients to what torch's reach, and None to all else."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from tests.support.exact import Functional
from tvdnn.engine import virtualize
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

RTOL, ATOL = 1e-4, 1e-6  # of float32 beside float64


class Partly(nn.Module):
    """Reads each of its parameters and both maps, of which the gradient reaches some."""

    def __init__(self) -> None:
        super().__init__()
        self.trained, self.beside, self.read = (nn.Linear(8, 8) for _ in range(3))
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        trained = self.trained(x).cumsum(1)
        with torch.no_grad():
            beside = self.beside(x)
        self.read(trained)
        return (trained + beside) * self.scale.detach() + y.detach().cumsum(1)


class Stopped(nn.Module):
    """Reads its parameters where torch records no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).cumsum(1)


WAYS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "two maps": lambda net, x: net.head(net.partly(net.first(x), net.second(x))),
    "the output": lambda net, x: net.partly(net.first(x), net.second(x)),
    "a map that others read": lambda net, x: net.partly(net.first(x), h := net.second(x)) + 2 * h,
    "one map twice": lambda net, x: net.partly(h := net.first(x), h),
    "nothing": lambda net, x: net.stopped(net.first(x)) * net.second(x),
    "one output of two": lambda net, x: net.head(net.stopped(net.first(x)) + net.second(x)),
}


@pytest.mark.parametrize("name", WAYS)
def test_parameters_without_a_gradient_have_none(name: str) -> None:
    torch.manual_seed(3)
    layers = {name: nn.Linear(8, 8) for name in ("first", "second", "head")}
    net = Functional(WAYS[name], **layers, partly=Partly(), stopped=Stopped())
    x = torch.randn(4, 8)
    exact, wanted = copy.deepcopy(net).double(), x.double().requires_grad_()
    exact(wanted).square().sum().backward()
    kept: list[Tensor | None] = []
    for policy in ("keep", "vdnn-all:m"):
        mine, given = copy.deepcopy(net), x.clone().requires_grad_()
        virtual = virtualize(mine, given, policy=policy, opaque=True, chunk_size=600)
        virtual(given).square().sum().backward()
        tensors = dict(mine.named_parameters()) | {"x": given}
        for (named, one), other in zip(tensors.items(), (*exact.parameters(), wanted), strict=True):
            assert (one.grad is None) == (other.grad is None), named
            if one.grad is not None:
                torch.testing.assert_close(one.grad.double(), other.grad, rtol=RTOL, atol=ATOL)
        found = [each.grad for each in tensors.values()]
        kept = kept or found
        pairs = zip(found, kept, strict=True)
        assert all(one is two or torch.equal(one, two) for one, two in pairs)  # type: ignore[arg-type]
        virtual.close()


def test_a_result_without_a_gradient_says_so() -> None:
    def way(net: Any, x: Tensor) -> Tensor:
        stopped, partly = net.stopped(net.first(x)), net.partly(x, x)
        total: Tensor = partly + (x if stopped.requires_grad else stopped)
        return total if partly.requires_grad else x

    net = Functional(way, first=nn.Linear(8, 8), partly=Partly(), stopped=Stopped())
    network = trace(net, (torch.empty(4, 8),), opaque=True)
    assert [op.name for op in network.ops] == ["first", "stopped", "partly", "add"]


class Around(nn.Module):
    """A layer inside a module that runs by torch."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x).cumsum(1)
        return y


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (hooked(Around(nn.Linear(8, 8))), "Around that runs forward hooks, which would happen"),
        (Around(hooked(nn.Linear(8, 8))), "Around that runs forward hooks of layer, which would"),
        (Around(nn.utils.spectral_norm(nn.Linear(8, 8))), "changes its buffer layer.weight_u"),
    ],
)
def test_hooks_that_a_second_call_would_repeat_are_refused(layer: nn.Module, message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(nn.Sequential(nn.Linear(8, 8), layer), (torch.empty(4, 8),), opaque=True)


@pytest.mark.parametrize(
    "norm", [nn.utils.weight_norm, lambda layer: prune.l1_unstructured(layer, "weight", 0.5)]
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_hooks_of_torch_compute_weights_anew(norm: Callable[[nn.Module], nn.Module]) -> None:
    """They set an attribute in each call, for which no network is planned anew."""
    layer = Around(norm(nn.Linear(8, 8)))
    net, x = nn.Sequential(nn.Linear(8, 8), layer), torch.randn(4, 8)
    virtual = virtualize(net, x, opaque=True)
    state = virtual.plan
    for _ in range(2):
        net.zero_grad()
        virtual(x).square().sum().backward()
        found = [each.grad.clone() for each in net.parameters() if each.grad is not None]
        net.zero_grad()
        net(x).square().sum().backward()
        for one, other in zip(found, net.parameters(), strict=True):
            torch.testing.assert_close(one, other.grad, rtol=RTOL, atol=1e-5)
    assert virtual.plan is state
    virtual.close()
