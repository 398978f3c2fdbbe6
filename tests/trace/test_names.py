"""Parts of a network may have the names that passes, buffers and losses have."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.exact import Functional, assert_steps_are_exact
from tvdnn.engine import Trainer
from tvdnn.optim import SGD

SHAPE = (3, 3, 4, 4)
NAMES = ("mul", "add", "loss", "target", "linear", "relu")


@pytest.mark.parametrize(
    "layer", [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.BatchNorm2d(4, eps=0.1)]
)
def test_one_normalization_behind_another(layer: nn.Module) -> None:
    net = Functional(
        lambda net, x: net.last(net.first(net.conv(x))),
        conv=nn.Conv2d(3, 4, 1),
        first=copy.deepcopy(layer),
        last=nn.BatchNorm2d(4, eps=0.1),
    )
    assert_steps_are_exact(net, torch.randn(SHAPE))


class Named(nn.Module):
    """An input called `loss`, and a layer and a parameter of every name."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Conv2d(3, 3, 1) for name in names})
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.ones(3, 1, 1)))

    def forward(self, loss: Tensor) -> Tensor:
        for name, layer in self.layers.items():
            loss = torch.relu(layer(loss) * getattr(self, name) + getattr(self, name))
        return loss.mean((2, 3))


class Layers(nn.Module):
    """Layers that have the names of functions and of losses."""

    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            self.add_module(name, nn.Conv2d(3, 3, 1))

    def forward(self, target: Tensor) -> Tensor:
        y = self.loss(target) * self.mul(target) + self.add(target)
        return torch.relu(self.linear(self.relu(y) + self.target(y))).mean((2, 3))


@pytest.mark.parametrize("net", [Named(NAMES), Layers()])
def test_names_of_passes_and_losses_are_free(net: nn.Module) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(SHAPE), torch.randint(0, 3, SHAPE[:1])
    twin = copy.deepcopy(net).double()
    assert_steps_are_exact(copy.deepcopy(net), x)
    trainer = Trainer(net, x, optimizer=SGD(lr=0.1), dtype="fp32", policy="keep", chunk_size=200)
    loss = trainer.step(x, y).clone()
    trainer.close()
    wanted = functional.cross_entropy(twin(x.double()), y)
    wanted.backward()
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        assert theirs.grad is not None
        updated = theirs.detach() - 0.1 * theirs.grad
        torch.testing.assert_close(mine.detach().double(), updated, rtol=1e-4, atol=1e-5)
