"""Modules and parameters under several names: one tensor each, and the user's stay theirs."""

import pytest
import torch
from torch import Tensor, nn

from tests.support.beside_torch import assert_trains_as_torch
from tvdnn.engine import virtualize
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace


class Aliased(nn.Module):
    """A layer under two names, and another that shares its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(4, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 4, 3, padding=1)
        self.c = self.a
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm2d(4)
        self.same_norm = self.norm

    def forward(self, x: Tensor) -> Tensor:
        return self.same_norm(self.c(self.b(self.norm(self.a(x))).relu()))


def repeated() -> nn.Module:
    conv, act = nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()
    return nn.Sequential(conv, act, conv, act, nn.Sequential(conv))


@pytest.mark.parametrize("make", [Aliased, repeated])
def test_shared_modules_train_as_with_torch(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = make()
    channels = next(net.parameters()).shape[1]
    assert_trains_as_torch(net, torch.randn(3, channels, 6, 5))


class Failing(nn.Module):
    """Raises in the midst of a forward, after setting attributes."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.again = self.conv
        self.table = torch.ones(3)
        self.seen: list[Tensor] = []
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        self.count = 1
        self.seen.append(x)
        self.table.add_(1)
        self.conv.bias = None
        del self.again
        raise self.error


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(), UnsupportedOpError("no"), GeneratorExit()]
)
def test_whatever_happens_the_module_is_as_it_was(error: BaseException) -> None:
    net = Failing(error)
    before = {name: dict(module.__dict__) for name, module in net.named_modules()}
    registries = {name: dict(module._parameters) for name, module in net.named_modules()}
    with pytest.raises(type(error)):
        trace(net, (torch.empty(2, 3, 4, 4),))
    assert before == {name: dict(module.__dict__) for name, module in net.named_modules()}
    for name, module in net.named_modules():
        assert all(module._parameters[key] is each for key, each in registries[name].items())
        assert list(module._parameters) == list(registries[name])
    assert net.seen == []
    assert net.again is net.conv
    assert torch.equal(net.table, torch.ones(3))
    assert all(param.device.type == "cpu" for param in net.parameters())


def test_parameters_of_a_shared_module_have_one_name() -> None:
    net = Aliased()
    network = trace(net, (torch.empty(2, 4, 5, 5),))
    assert set(network.params) <= {
        *dict(net.named_parameters()),
        *dict(net.named_buffers()),
    }
    model = virtualize(net, torch.empty(2, 4, 5, 5))
    assert list(dict(model.named_parameters())) == list(dict(net.named_parameters()))
