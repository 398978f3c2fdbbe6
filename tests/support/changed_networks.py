"""A network, and changes of it between two steps."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import tvdnn
from tests.support.running import Batch, random_batches
from tvdnn.engine import Trainer
from tvdnn.optim import SGD, AdamW

RTOL, ATOL = 1e-4, 1e-6  # of parameters after a few steps, relative to fp32's 1.2e-7 a rounding
SHAPE, CLASSES = (6, 3, 6, 6), 5
SPEC = SGD(lr=0.05, momentum=0.9)


class Net(nn.Module):
    """A small network with settings that a user may change between steps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.0)
        self.fc = nn.Linear(4, CLASSES)
        self.twice = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        x = torch.relu(self.norm(x) if self.twice else x)
        return self.fc(self.drop(x.mean((2, 3))))


def replace_norm(net: Net) -> None:
    torch.manual_seed(4)
    net.norm = nn.BatchNorm2d(4, momentum=0.3)


def replace_layer(net: Net) -> None:
    torch.manual_seed(3)
    net.fc = nn.Linear(4, CLASSES)


def replace_parameter(net: Net) -> None:
    net.fc.weight = nn.Parameter(torch.full_like(net.fc.weight, 0.1))


def assign_state(net: Net) -> None:
    state = {name: tensor.clone() * 0.5 for name, tensor in net.state_dict().items()}
    net.load_state_dict(state, assign=True)


def freeze(net: Net) -> None:
    net.conv.requires_grad_(False)


def freeze_and_evaluate(net: Net) -> None:
    net.norm.requires_grad_(False).eval()


def evaluate(net: Net) -> None:
    net.eval()


def train_all(net: Net) -> None:
    net.train().requires_grad_(True)


def batches_of(count: int) -> list[Batch]:
    return random_batches(count, SHAPE, CLASSES, seed=1)


def virtual(net: nn.Module, **options: Any) -> tvdnn.engine.Virtualized:
    return tvdnn.virtualize(net, torch.empty(SHAPE), **options)


def assert_close(mine: nn.Module, theirs: nn.Module) -> None:
    expected = theirs.state_dict()
    for name, found in mine.state_dict().items():
        torch.testing.assert_close(found, expected[name], rtol=RTOL, atol=ATOL, msg=name)


def torch_step(net: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
    optimizer.zero_grad()
    loss = functional.cross_entropy(net(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss.detach()


def assert_follows(
    net: Net,
    changes: dict[int, Callable[[Net], None]],
    spec: SGD | AdamW,
    accumulate: int = 1,
) -> None:
    """A trainer's steps with changes ahead of some leave the parameters of torch's loop."""
    twin = copy.deepcopy(net)
    trainer = Trainer(net, torch.empty(SHAPE), optimizer=spec)
    kind = torch.optim.SGD if isinstance(spec, SGD) else torch.optim.AdamW
    optimizer = kind(twin.parameters(), **dataclasses.asdict(spec))  # type: ignore[operator]
    for number, (x, y) in enumerate(batches_of(6)):
        for each in (net, twin) if number in changes else ():
            changes[number](each)
        found = trainer.step(x, y, accumulate=accumulate)
        optimizer.zero_grad()
        parts = zip(x.chunk(accumulate), y.chunk(accumulate), strict=True)
        losses = [functional.cross_entropy(twin(a), b) / accumulate for a, b in parts]
        torch.autograd.backward(losses)
        optimizer.step()
        torch.testing.assert_close(found, sum(losses).detach(), rtol=RTOL, atol=ATOL)
    assert_close(net, twin)
