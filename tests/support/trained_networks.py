"""A small network trained by a Trainer and by torch."""

import copy
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.running import Batch, random_batches
from tvdnn.engine import Trainer
from tvdnn.optim import SGD, AdamW

RTOL, ATOL = 1e-4, 1e-6  # of parameters after four steps, relative to fp32's 1.2e-7 a rounding
BATCH, SHAPE, CLASSES = 6, (3, 10, 10), 5
MOMENTUM = SGD(lr=0.05, momentum=0.9)
CHUNK_SIZE = 3000  # bytes: one to four samples a section
OPTIMIZERS = {
    "plain": SGD(0.05),
    "momentum": SGD(0.05, momentum=0.9),
    "dampening": SGD(0.05, momentum=0.9, dampening=0.3),
    "nesterov": SGD(0.05, momentum=0.9, nesterov=True),
    "decay": SGD(0.05, momentum=0.5, weight_decay=0.1),
    "maximize": SGD(0.05, momentum=0.5, maximize=True),
    "adamw": AdamW(0.01),
    "adamw, other settings": AdamW(0.002, (0.8, 0.95), 1e-6, weight_decay=0.3),
    "adamw, maximize": AdamW(0.002, maximize=True),
}


def make_net(seed: int = 0) -> nn.Sequential:
    """Convolutions, poolings, normalization and two linear layers, without dropout."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.LocalResponseNorm(3),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 6, 3, groups=2, bias=False),
        nn.ReLU(),
        nn.AvgPool2d(3),
        nn.Flatten(),
        nn.Linear(6, 16),
        nn.ReLU(),
        nn.Linear(16, CLASSES),
    )


def batches_of(count: int, size: int = BATCH, seed: int = 1) -> list[Batch]:
    return random_batches(count, (size, *SHAPE), CLASSES, seed)


def trainer_of(net: nn.Module, **options: Any) -> Trainer:
    options = {"optimizer": MOMENTUM, "chunk_size": CHUNK_SIZE} | options
    return Trainer(net, torch.empty(BATCH, *SHAPE), **options)


def torch_step(
    net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, **loss: Any
) -> Tensor:
    optimizer.zero_grad()
    value = functional.cross_entropy(net(x), y, **loss)
    value.backward()
    optimizer.step()
    return value.detach()


def torch_optimizer(spec: SGD | AdamW, net: nn.Module) -> torch.optim.Optimizer:
    kind = torch.optim.SGD if isinstance(spec, SGD) else torch.optim.AdamW
    return kind([p for p in net.parameters() if p.requires_grad], **asdict(spec))


def assert_same_training(
    net: nn.Module, batches: Sequence[Batch], spec: SGD | AdamW = MOMENTUM, **options: Any
) -> None:
    """Train `net` by a Trainer and a copy by torch; losses and parameters agree to rounding."""
    twin = copy.deepcopy(net)
    optimizer = torch_optimizer(spec, twin)
    trainer = trainer_of(net, optimizer=spec, **options)
    for x, y in batches:
        expected = torch_step(twin, optimizer, x, y)
        torch.testing.assert_close(trainer.step(x, y), expected, rtol=RTOL, atol=ATOL)
    assert_same_parameters(net, twin)


def assert_same_parameters(net: nn.Module, twin: nn.Module) -> None:
    for (name, mine), theirs in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=RTOL, atol=ATOL, msg=name)


def bits_equal(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)
