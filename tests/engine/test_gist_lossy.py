"""gist-lossy in training: exact losses, gradients as exact as a format, and digits learned."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from tests.engine.test_digits import (
    EPOCHS,
    LEARNING_RATE,
    STEPS,
    accuracy,
    digits,
    made,
    shuffled,
)
from tests.engine.test_gist import rows
from tests.support.running import Batch, random_batches, train
from tests.support.simulated import h200
from tvdnn.engine import Trainer, training_graph, virtualize
from tvdnn.graph import FP8, FP10, FP16, Form
from tvdnn.optim import SGD
from tvdnn.planner.make import make_schedule

__all__ = ["digits"]  # a fixture

BATCH, SHAPE, CLASSES = 5, (3, 8, 8), 4
CHUNK_SIZE = 1200
# The largest relative error of rounding a value that is neither too large nor subnormal.
ROUNDING = {FP16: 2.0**-11, FP10: 2.0**-5, FP8: 2.0**-4}
FORMS = tuple(ROUNDING)
forms = pytest.mark.parametrize("form", FORMS, ids=str)


def convolutions() -> nn.Sequential:
    """ReLUs between convolutions, before poolings and between linear layers."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 16),
        nn.ReLU(),
        nn.Linear(16, CLASSES),
    )


def first_step(net: nn.Module, policy: str, batch: Batch, **options: object) -> tuple[Tensor, ...]:
    """The loss of a step of a loop of one's own, and the gradients, by name in `net`'s order."""
    virtual = virtualize(net, batch[0], policy=policy, dtype="fp32", **options)
    net.zero_grad()
    loss = nn.functional.cross_entropy(virtual(batch[0]), batch[1])
    loss.backward()
    return loss.detach().clone(), *(param.grad.clone() for param in net.parameters())


def relative_error(found: Tensor, exact: Tensor) -> float:
    """The root of the mean square of the error, as a share of that of the exact values."""
    return ((found - exact).double().norm() / exact.double().norm()).item()


@forms
@pytest.mark.parametrize("budget", [None, "min"])
def test_gradients_of_weights_are_rounded_and_all_else_is_exact(
    form: Form, budget: str | None
) -> None:
    """Only a weight's gradient reads rounded values here: masks have bits, poolings codes."""
    net = convolutions()
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=4)
    options = {"chunk_size": CHUNK_SIZE, "order_seed": 2}
    loss, *exact = first_step(net, "keep", batch, **options)
    found, *rounded = first_step(net, f"gist-lossy:{form}", batch, budget=budget, **options)
    assert torch.equal(found, loss)
    for (name, _), mine, theirs in zip(net.named_parameters(), rounded, exact, strict=True):
        if name.endswith("bias"):
            assert torch.equal(mine, theirs)
        else:
            assert 0 < relative_error(mine, theirs) <= ROUNDING[form]


def trained(policy: str, **options: object) -> tuple[Trainer, list[Tensor]]:
    net, batches = convolutions(), random_batches(3, (BATCH, *SHAPE), CLASSES, seed=5)
    how = {"optimizer": SGD(lr=0.1), "chunk_size": CHUNK_SIZE, "policy": policy}
    trainer = Trainer(net, batches[0][0], **how, **options)
    losses = [trainer.step(*batch).clone() for batch in batches]
    return trainer, [*losses, *copy.deepcopy(net.state_dict()).values()]


@forms
def test_lossy_steps_have_the_same_bits_in_every_budget_and_order(form: Form) -> None:
    """The first loss is that of keep, and what is trained is not."""
    _, exact = trained("keep")
    found = [
        trained(f"gist-lossy:{form}", budget=budget, order_seed=seed)
        for budget, seed in ((None, None), (None, 1), ("min", 2))
    ]
    for (_, one), (_, other) in pairwise(found):
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
    assert torch.equal(found[0][1][0], exact[0])
    pairs = zip(found[0][1], exact, strict=True)
    assert not all(torch.equal(mine, theirs) for mine, theirs in pairs)
    assert all(trainer.plan.rounded for trainer, _ in found)


@forms
def test_row_tiles_are_rounded_with_the_rows_beside_them(form: Form) -> None:
    """A tile is decoded for the tiles above and below it, too. Masks have bits of tiles."""
    net, policy = rows(), f"gist-lossy:{form}"
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 3, 16, 16, generator=generator)
    batches = [(x, torch.randint(CLASSES, (3, 4, 4), generator=generator))] * 2
    how = {"optimizer": SGD(), "coded_pools": True, "chunk_size": 600}
    found = {}
    for name, tiles in (("keep", 2), (policy, 1), (policy, 2)):
        graph = training_graph(net, x, row_tiles=tiles, **how)
        schedule = make_schedule(graph, h200(graph), policy=name)
        assert bool(schedule.plan.rounded) is (name == policy)
        runs = [train(net, schedule, batches, order_seed=seed) for seed in (3, 4)]
        assert runs[0].equals(runs[1])
        found[name, tiles] = runs[0]
    kept, tiled = found["keep", 2], found[policy, 2]
    assert torch.equal(tiled.losses[0], kept.losses[0])
    for mine, theirs in zip(tiled.params, found[policy, 1].params, strict=True):
        assert relative_error(mine, theirs) < 1e-5  # tiles are added in another order


@pytest.mark.slow
def test_lenet_learns_the_digits_from_rounded_maps(digits: tuple[Batch, Batch]) -> None:
    """In fp8, with the first loss to the bits of keep."""
    trained_on, test = digits
    net, trainer = made(f"gist-lossy:{FP8}")
    _, kept = made("keep")
    rates = OneCycleLR(trainer.optimizer, LEARNING_RATE, STEPS)
    for number, (x, y) in enumerate(shuffled(trained_on, EPOCHS)):
        loss = trainer.step(x, y)
        rates.step()
        if number == 0:
            assert torch.equal(loss, kept.step(x, y))
    assert trainer.plan.rounded
    assert accuracy(net, test) >= 0.97  # as exact training
