"""Parameters without a gradient are left alone, as torch's optimizers leave those without one."""

import copy
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.running import Batch, random_batches
from tvdnn.engine import Trainer
from tvdnn.errors import InputError
from tvdnn.optim import SGD, AdamW

RTOL, ATOL = 1e-4, 1e-6  # of parameters after a few steps, relative to fp32's 1.2e-7 a rounding
SHAPE, CLASSES = (4, 3, 6, 6), 5
SPECS = {
    "plain": SGD(0.05, weight_decay=0.3),
    "momentum": SGD(0.05, momentum=0.9, weight_decay=0.3),
    "adamw": AdamW(0.01, weight_decay=0.3),
}


class Net(nn.Module):
    """One layer is never used, one is frozen, and one serves large batches alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.frozen = nn.Conv2d(4, 4, 1).requires_grad_(False)
        self.unused = nn.Linear(4, 4)
        self.large = nn.Linear(4, 4)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.frozen(self.conv(x))).mean((2, 3))
        return self.fc(self.large(h) if len(x) > 4 else h)


def torch_optimizer(spec: SGD | AdamW, net: nn.Module) -> torch.optim.Optimizer:
    kind = torch.optim.SGD if isinstance(spec, SGD) else torch.optim.AdamW
    return kind([p for p in net.parameters() if p.requires_grad], **asdict(spec))


def torch_step(net: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, parts: int) -> None:
    optimizer.zero_grad()
    for x, y in zip(*(each.chunk(parts) for each in batch), strict=True):
        (functional.cross_entropy(net(x), y) / parts).backward()
    optimizer.step()


def batch_of(size: int, seed: int) -> Batch:
    return random_batches(1, (size, *SHAPE[1:]), CLASSES, seed)[0]


def assert_same_state(trainer: Trainer, optimizer: torch.optim.Optimizer) -> None:
    """State is kept for the same parameters, with the same values and counts."""
    mine, theirs = map(tensors_of, (trainer.state_dict()["optimizer"], optimizer.state_dict()))
    assert mine.keys() == theirs.keys()
    for key, value in theirs.items():
        torch.testing.assert_close(mine[key], value, rtol=RTOL, atol=ATOL)


def tensors_of(saved: dict[str, Any]) -> dict[tuple[int, str], Tensor]:
    """The tensors of an optimizer's state by the parameter's number and their names."""
    return {
        (number, name): value
        for number, entry in saved["state"].items()
        for name, value in entry.items()
        if value is not None
    }


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("parts", [1, 2])
def test_parameters_without_a_gradient_stay(name: str, parts: int) -> None:
    net = Net()
    twin, before = copy.deepcopy(net), copy.deepcopy(net.state_dict())
    trainer = Trainer(net, torch.empty(SHAPE), optimizer=SPECS[name])
    optimizer = torch_optimizer(SPECS[name], twin)
    for seed in range(3):
        batch = batch_of(4, seed)
        torch_step(twin, optimizer, batch, parts)
        trainer.step(*batch, accumulate=parts)
    for key, value in net.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[key], rtol=RTOL, atol=ATOL, msg=key)
        stays = key.split(".")[0] in ("unused", "large", "frozen")
        assert torch.equal(value, before[key]) == stays, key
    assert_same_state(trainer, optimizer)


@pytest.mark.parametrize("name", ["plain", "momentum"])
def test_a_layer_that_some_shapes_use_is_updated_by_those(name: str) -> None:
    net = Net()
    twin = copy.deepcopy(net)
    trainer = Trainer(net, torch.empty(SHAPE), optimizer=SPECS[name])
    optimizer = torch_optimizer(SPECS[name], twin)
    for seed, (size, parts) in enumerate([(4, 1), (6, 1), (4, 1), (12, 2), (6, 2)]):
        batch = batch_of(size, seed)
        torch_step(twin, optimizer, batch, parts)
        trainer.step(*batch, accumulate=parts)
        for key, value in net.state_dict().items():
            torch.testing.assert_close(value, twin.state_dict()[key], rtol=RTOL, atol=ATOL)
    assert_same_state(trainer, optimizer)


@pytest.mark.parametrize(
    "spec", [AdamW(0.01), SGD(0.05, momentum=0.9, dampening=0.2)], ids=["adamw", "dampening"]
)
def test_counts_that_differ_are_refused_where_they_matter(spec: SGD | AdamW) -> None:
    """AdamW's corrections are by each parameter's own count of updates."""
    net = Net()
    trainer = Trainer(net, torch.empty(SHAPE), optimizer=spec)
    trainer.step(*batch_of(4, 1))
    before = copy.deepcopy(net.state_dict())
    message = r"large.weight was updated 0 times and conv.weight 1 times; .* make a new trainer"
    with pytest.raises(InputError, match=message):
        trainer.step(*batch_of(6, 2))
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    trainer.step(*batch_of(4, 3))
