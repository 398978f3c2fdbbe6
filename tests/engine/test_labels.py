"""A label that is no class: the step changes nothing, and the loss and the next call say so."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.running import Batch, random_batches
from tvdnn.engine import Trainer
from tvdnn.engine.step_count import RECENT_STEPS
from tvdnn.errors import InputError
from tvdnn.optim import SGD, AdamW
from tvdnn.planner.policies import POLICIES

pytestmark = pytest.mark.usefixtures("few_trials")

SHAPE, CLASSES = (6, 3, 6, 6), 5
SPECS = [SGD(0.05, momentum=0.9, weight_decay=0.1), AdamW(0.01)]
OTHERS = [nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(torch.rand(CLASSES))]


def net_of(*, pixels: bool = False, momentum: float | None = 0.1) -> nn.Module:
    torch.manual_seed(0)
    features = [
        *(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.ReLU()),
        *(nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.ReLU()),
    ]
    head = [nn.Conv2d(8, CLASSES, 1)] if pixels else [nn.Flatten(), nn.Linear(128, CLASSES)]
    return nn.Sequential(*features, *head)


def trainer_of(net: nn.Module, **options: Any) -> Trainer:
    return Trainer(net, torch.empty(SHAPE), **{"optimizer": SPECS[0], "chunk_size": 600} | options)


def batches_of(count: int, *, pixels: bool = False) -> list[Batch]:
    batches = random_batches(count, SHAPE, CLASSES, seed=1)
    generator = torch.Generator().manual_seed(2)
    labels = (torch.randint(0, CLASSES, (6, 4, 4), generator=generator) for _ in batches)
    return [(x, y) for (x, _), y in zip(batches, labels, strict=True)] if pixels else batches


def spoiled(batch: Batch, sample: int = 4, label: int = CLASSES) -> Batch:
    x, y = batch
    y = y.clone()
    y[sample].fill_(label)
    return x, y


def without_news(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host learns nothing, as if it were many steps ahead of a GPU."""
    monkeypatch.setattr(trainer._steps.count.faults, "follow", lambda: None)


def assert_same(found: Any, expected: Any) -> None:
    """Nested dictionaries and lists of equal tensors and numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize("spec", SPECS, ids=["sgd", "adamw"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("pixels", [False, True])
def test_nothing_changes_and_the_next_step_says_why(
    spec: SGD | AdamW, accumulate: int, pixels: bool
) -> None:
    """Another trainer, which never saw the labels, ends with the same bits."""
    nets = [net_of(pixels=pixels) for _ in range(2)]
    ours, other = (trainer_of(net, optimizer=spec) for net in nets)
    first, second, third = batches_of(3, pixels=pixels)
    for each in (ours, other):
        each.step(*first)
    before = copy.deepcopy(ours.state_dict())
    assert ours.step(*spoiled(second), accumulate=accumulate).detach().isnan()
    assert_same(ours.net.state_dict(), before["model"])
    message = r"step 2: sample 4 has label 5; labels are a class from 0 to 4 or ignore_index -100"
    with pytest.raises(InputError, match=message):
        ours.step(*third)
    assert_same(ours.state_dict(), before)
    for each in (ours, other):
        each.step(*third, accumulate=accumulate)
    assert_same(ours.state_dict(), other.state_dict())


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_changes_nothing(policy: str) -> None:
    net = net_of(momentum=None)
    trainer = trainer_of(net, policy=policy, budget="min", order_seed=3)
    first, second = batches_of(2)
    trainer.step(*first)
    before = copy.deepcopy(net.state_dict())
    trainer.step(*spoiled(second, 0, -1))
    assert_same(net.state_dict(), before)
    with pytest.raises(InputError, match="step 2: sample 0 has label -1"):
        trainer.step(*first)


@pytest.mark.parametrize("loss", OTHERS, ids=["smoothing", "weights"])
def test_every_setting_of_the_loss_changes_nothing(loss: nn.Module) -> None:
    net = net_of()
    trainer = trainer_of(net, loss=loss)
    before = copy.deepcopy(net.state_dict())
    trainer.step(*spoiled(batches_of(1)[0]))
    assert_same(net.state_dict(), before)
    with pytest.raises(InputError, match="sample 4 has label 5"):
        trainer.step(*batches_of(1)[0])


def test_ignored_labels_are_right() -> None:
    trainer = trainer_of(net_of(), loss=nn.CrossEntropyLoss(ignore_index=CLASSES))
    assert trainer.step(*spoiled(batches_of(1)[0])).item() > 0.0
    trainer.step(*spoiled(batches_of(1)[0], label=-100))
    with pytest.raises(InputError, match=r"label -100; labels are .* ignore_index 5"):
        trainer.state_dict()


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_samples_count_in_the_whole_batch(accumulate: int) -> None:
    trainer = trainer_of(net_of())
    x, y = spoiled(batches_of(1)[0], 5, 9)
    trainer.step(x, y, accumulate=accumulate)
    with pytest.raises(InputError, match="sample 5 has label 9"):
        trainer.state_dict()


def test_steps_behind_it_change_nothing_until_the_host_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that is ahead of its GPU goes on for some steps; all of them are taken back."""
    net = net_of()
    trainer = trainer_of(net, optimizer=AdamW(0.01))
    first, *others = batches_of(4)
    trainer.step(*first)
    before = copy.deepcopy(trainer.state_dict())
    with monkeypatch.context() as patch:
        without_news(trainer, patch)
        trainer.step(*spoiled(first, 2, 8))
        losses = [trainer.step(*spoiled(batch, 1, 7)) for batch in others]
        assert_same(net.state_dict(), before["model"])
    assert len(losses) < RECENT_STEPS
    with pytest.raises(InputError, match="step 2: sample 2 has label 8"):
        trainer.state_dict()
    assert_same(trainer.state_dict(), before)
    trainer.step(*first)
    assert not torch.equal(net[0].weight, before["model"]["0.weight"])


READERS: list[Callable[[Tensor], Any]] = [
    lambda loss: loss.item(), float, int, bool, repr, str, "{:.3f}".format,
    lambda loss: loss.tolist(), lambda loss: loss.cpu(), lambda loss: loss.numpy(),
]  # fmt: skip


@pytest.mark.parametrize("read", READERS)
def test_reading_the_loss_says_why(read: Callable[[Tensor], Any]) -> None:
    trainer = trainer_of(net_of())
    batch = batches_of(1)[0]
    loss = trainer.step(*spoiled(batch))
    with pytest.raises(InputError, match="step 1: sample 4 has label 5"):
        read(loss)
    read(trainer.step(*batch))


def test_a_loss_is_a_tensor_like_any() -> None:
    trainer = trainer_of(net_of())
    losses = [trainer.step(*batch) for batch in batches_of(2)]
    mean = torch.stack(losses).mean()
    assert type(mean) is type(losses[0] + 1) is type(losses[0].detach()) is Tensor
    assert mean.item() == pytest.approx(sum(map(float, losses)) / 2)
    for copied in (copy.deepcopy(losses[0]), pickle.loads(pickle.dumps(losses[0]))):
        assert type(copied) is Tensor
        assert torch.equal(copied, losses[0])
    trainer.close()
    assert f"{losses[0]:.2f}" == f"{losses[0].item():.2f}"


def test_a_loss_outlives_its_trainer() -> None:
    loss = trainer_of(net_of()).step(*batches_of(1)[0])
    assert loss.item() > 0.0


def test_loading_a_state_forgets_the_fault() -> None:
    trainer = trainer_of(net_of())
    first, second = batches_of(2)
    trainer.step(*first)
    saved = copy.deepcopy(trainer.state_dict())
    trainer.step(*spoiled(second))
    trainer.load_state_dict(saved)
    trainer.step(*second)
    assert not torch.equal(trainer.net[0].weight, saved["model"]["0.weight"])


def test_closing_is_no_error() -> None:
    trainer = trainer_of(net_of())
    trainer.step(*spoiled(batches_of(1)[0]))
    trainer.close()
