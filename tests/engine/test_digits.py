"""LeNet-5 on scikit-learn's scanned digits: learns under offloading, to the bits of keep."""

from collections.abc import Iterator

import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

from tests.support.running import Batch
from tvdnn import models
from tvdnn.engine import Trainer
from tvdnn.optim import SGD
from tvdnn.planner.make import Problem
from tvdnn.units import KIB

BATCH, EPOCHS, SIDE, TESTED = 32, 6, 32, 360
STEPS, COMPARED = 6 * 45, 45 + 5  # of six epochs, the last step of each with 29 images
CHUNK_SIZE = 64 * KIB
LEARNING_RATE = 0.03


@pytest.fixture(scope="module")
def digits() -> tuple[Batch, Batch]:
    """1,437 images to train on and 360 to test, [N, 1, 32, 32] with mean 0."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    x = functional.interpolate(images, size=(SIDE, SIDE), mode="bilinear")
    y = torch.tensor(data.target)
    assert len(x) == 1797
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    test, train = order[:TESTED], order[TESTED:]
    return (x[train], y[train]), (x[test], y[test])


def shuffled(data: Batch, epochs: int) -> Iterator[Batch]:
    """Batches of 32 in an order drawn anew every epoch; the last of an epoch is smaller."""
    x, y = data
    generator = torch.Generator().manual_seed(1)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x), generator=generator).split(BATCH):
            yield x[chosen], y[chosen]


def accuracy(net: torch.nn.Module, data: Batch) -> float:
    x, y = data
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


def made(policy: str, budget: int | None = None) -> tuple[torch.nn.Module, Trainer]:
    torch.manual_seed(0)
    net = models.lenet5()
    x = torch.empty(BATCH, 1, SIDE, SIDE)
    optimizer = SGD(lr=LEARNING_RATE, momentum=0.9)
    options = {"policy": policy, "budget": budget, "chunk_size": CHUNK_SIZE, "order_seed": 7}
    return net, Trainer(net, x, optimizer=optimizer, **options)


@pytest.mark.slow
def test_lenet_learns_the_digits_near_the_floor(digits: tuple[Batch, Batch]) -> None:
    train, test = digits
    kept_net, kept = made("keep")
    roomy = made("vdnn-all")[1]
    floor, _ = Problem(roomy.graph, roomy.costs).floor("vdnn-all")
    budget = floor + floor // 50
    net, trainer = made("vdnn-all", budget)
    rates = [OneCycleLR(each.optimizer, LEARNING_RATE, STEPS) for each in (kept, trainer)]
    for number, (x, y) in enumerate(shuffled(train, EPOCHS)):
        loss = trainer.step(x, y)
        rates[1].step()
        if number < COMPARED:
            assert torch.equal(loss, kept.step(x, y))
            rates[0].step()
        if number == COMPARED - 1:
            pairs = zip(kept_net.parameters(), net.parameters(), strict=True)
            assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    assert number == STEPS - 1
    assert trainer.schedule.offloaded_nbytes > 0
    assert trainer.schedule.peak_nbytes <= budget < kept.schedule.peak_nbytes
    assert accuracy(net, test) >= 0.97
