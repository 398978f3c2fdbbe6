"""Trainer's losses against torch's: steps, the bits of keep, several outputs, and refusals."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tvdnn
from tvdnn.engine import Trainer
from tvdnn.errors import InputError
from tvdnn.optim import SGD

BATCH, SHAPE, CLASSES = 5, (3, 6, 6), 7
CHUNK_SIZE = 300  # bytes: a sample a section
RTOL, ATOL = 1e-4, 1e-6
WEIGHT = torch.linspace(0.5, 2.0, CLASSES)


class Heads(nn.Module):
    """Logits of a classifier, and of another on the same features."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3)
        self.main, self.side = nn.Linear(64, CLASSES), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.relu(self.features(x)).flatten(1)
        return self.main(features), self.side(features)


def classifier() -> nn.Module:
    layers = (nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))
    return nn.Sequential(*layers)


def segmenter() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, CLASSES, 1))


class Turned(nn.Module):
    """Maps whose rows were columns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = segmenter()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).transpose(2, 3)


class TurnedTwice(nn.Conv2d):
    """Maps whose channels were columns, what is made of them, and an input so permuted."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        out = super().forward(x).permute(0, 3, 1, 2)
        return out, out * 2, x.permute(0, 3, 1, 2)


def rows(generator: torch.Generator) -> Tensor:
    return torch.randint(CLASSES, (BATCH,), generator=generator)


def pixels(generator: torch.Generator) -> Tensor:
    target = torch.randint(CLASSES, (BATCH, *SHAPE[1:]), generator=generator)
    target[0, :2] = -100
    return target


def features(generator: torch.Generator) -> Tensor:
    return torch.rand(BATCH, CLASSES, generator=generator)


def maps(generator: torch.Generator) -> Tensor:
    return torch.rand(BATCH, CLASSES, *SHAPE[1:], generator=generator)


Target = Callable[[torch.Generator], Tensor]
LOSSES: dict[str, tuple[Callable[[], nn.Module], Target, nn.Module]] = {
    "sum": (classifier, rows, nn.CrossEntropyLoss(reduction="sum", ignore_index=2)),
    "smoothed": (classifier, rows, nn.CrossEntropyLoss(label_smoothing=0.1)),
    "weighted": (classifier, rows, tvdnn.nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1)),
    "pixels": (segmenter, pixels, nn.CrossEntropyLoss()),
    "weighted pixels": (segmenter, pixels, nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.2)),
    "binary": (classifier, features, nn.BCEWithLogitsLoss(pos_weight=WEIGHT)),
    "binary maps": (segmenter, maps, nn.BCEWithLogitsLoss(WEIGHT[:, None, None])),
    "permuted pixels": (Turned, pixels, nn.CrossEntropyLoss(WEIGHT)),
    "permuted binary maps": (Turned, maps, nn.BCEWithLogitsLoss(WEIGHT[:, None, None])),
    "permuted squares": (Turned, maps, nn.MSELoss()),
    "squares": (classifier, features, nn.MSELoss()),
    "squares of maps": (segmenter, maps, tvdnn.nn.MSELoss(reduction="sum")),
}


def assert_steps_are_torchs(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    loss_of: Callable[[Any, Tensor], Tensor],
    **options: Any,
) -> None:
    """Two steps of torch's, of keep, and in sections to the bits of keep."""
    twin, nets = copy.deepcopy(net), [copy.deepcopy(net) for _ in range(2)]
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.02)
    options |= {"optimizer": SGD(lr=0.02), "chunk_size": CHUNK_SIZE}
    keep = Trainer(nets[0], x, policy="keep", **options)
    moved = Trainer(nets[1], x, policy="vdnn-all:m", order_seed=3, **options)
    for _ in range(2):
        optimizer.zero_grad()
        expected = loss_of(twin(x), y)
        expected.backward()
        optimizer.step()
        losses = [trainer.step(x, y) for trainer in (keep, moved)]
        torch.testing.assert_close(losses[0], expected.detach(), rtol=RTOL, atol=ATOL)
        assert torch.equal(*losses)
    for mine, same, theirs in zip(*(each.parameters() for each in (*nets, twin)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=RTOL, atol=ATOL)
        assert torch.equal(mine, same)


@pytest.mark.parametrize("name", LOSSES)
def test_steps_are_those_of_torch(name: str, generator: torch.Generator) -> None:
    make, target, loss = LOSSES[name]
    torch.manual_seed(3)
    x = torch.randn(BATCH, *SHAPE, generator=generator)
    assert_steps_are_torchs(make(), x, target(generator), loss, loss=loss)


def test_losses_of_several_outputs_add_up(generator: torch.Generator) -> None:
    torch.manual_seed(3)
    x, y = torch.randn(BATCH, *SHAPE, generator=generator), rows(generator)
    plain, smoothed = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)

    def weighted(outputs: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return plain(outputs[0], y) + 0.3 * plain(outputs[1], y)

    def each(outputs: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return plain(outputs[0], y) + smoothed(outputs[1], y)

    assert_steps_are_torchs(Heads(), x, y, weighted, loss_weights=(1, 0.3))
    assert_steps_are_torchs(Heads(), x, y, each, loss=[plain, smoothed])


class Permuted(nn.Conv2d):
    """An output whose channels are the rows of its input."""

    def __init__(self) -> None:
        super().__init__(3, CLASSES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).permute(0, 2, 3, 1)


class OtherSides(nn.Conv2d):
    """An output in torch's order of what is stored with its channels last."""

    def __init__(self) -> None:
        super().__init__(3, CLASSES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).roll(1, 1).reshape(BATCH, CLASSES, 4, 9)


class Lines(nn.Conv2d):
    """Rows of values, [N, C, L]."""

    def __init__(self) -> None:
        super().__init__(3, CLASSES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flatten(2)


@pytest.mark.parametrize("make", [Permuted, OtherSides, Lines])
def test_outputs_of_any_order_take_a_loss(
    make: Callable[[], nn.Module], generator: torch.Generator
) -> None:
    torch.manual_seed(3)
    net, x = make(), torch.randn(BATCH, *SHAPE, generator=generator)
    shape = tuple(net(x).shape)
    y, loss = torch.rand(shape, generator=generator), nn.MSELoss()
    assert_steps_are_torchs(net, x, y, loss, loss=loss)
    labels = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    entropy = nn.CrossEntropyLoss()
    assert_steps_are_torchs(make(), x, labels, entropy, loss=entropy)


def test_a_permuted_output_may_be_read_and_returned_twice(generator: torch.Generator) -> None:
    torch.manual_seed(3)
    x, y = (torch.randn(BATCH, *size, generator=generator) for size in ((3, 6, 5), (5, 3, 6)))

    def squares(outputs: tuple[Tensor, ...], y: Tensor) -> Tensor:
        return sum((nn.functional.mse_loss(out, y) for out in outputs), torch.zeros(()))

    net = TurnedTwice(3, 3, 3, padding=1)
    assert_steps_are_torchs(net, x, y, squares, loss="mse", loss_weights=(1, 1, 1))


def test_a_head_without_share_learns_nothing(generator: torch.Generator) -> None:
    net = Heads()
    x, y, before = torch.randn(BATCH, *SHAPE), rows(generator), net.side.weight.detach().clone()
    loss = Trainer(net, x, loss_weights=(1, 0)).step(x, y)
    assert loss.isfinite()
    assert torch.equal(net.side.weight, before)


class Halved(nn.CrossEntropyLoss):
    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return super().forward(logits, target) / 2


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (classifier, {"loss": "l1"}, "loss 'l1' is not known; choose cross_entropy"),
        (classifier, {"loss": Halved()}, "loss Halved is not known"),
        (classifier, {"loss": nn.MSELoss(reduction="none")}, "reduction 'none' is not known"),
        (classifier, {"loss_weights": (1, 2)}, "1 outputs, and losses for 2"),
        (Heads, {}, "2 outputs, and losses for 1; give a list of losses or loss_weights"),
        (Heads, {"loss": ["mse", "mse"], "loss_weights": [1]}, "2 losses and 1 loss_weights"),
        (Heads, {"loss": ["mse", "cross_entropy"]}, "take different targets"),
        (classifier, {"loss": nn.CrossEntropyLoss(torch.ones(3))}, "does not fit an output of 7"),
        (segmenter, {"loss": nn.BCEWithLogitsLoss(WEIGHT)}, r"7 values of shape \[7, 1, 1\]"),
        (lambda: nn.Conv2d(3, 2049, 3), {}, "2049 classes a pixel"),
    ],
)
def test_losses_that_make_no_sense_are_named(
    make: Callable[[], nn.Module], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Trainer(make(), torch.empty(BATCH, *SHAPE), **options)


@pytest.mark.parametrize(
    ("loss", "name", "value"),
    [
        (nn.CrossEntropyLoss, "label_smoothing", 0.1),
        (nn.CrossEntropyLoss, "ignore_index", 2),
        (nn.CrossEntropyLoss, "weight", WEIGHT),
        (tvdnn.nn.CrossEntropyLoss, "reduction", "sum"),
        (nn.MSELoss, "reduction", "sum"),
        (nn.BCEWithLogitsLoss, "pos_weight", WEIGHT),
    ],
)
def test_a_loss_that_changes_after_planning_is_refused(
    loss: Callable[[], nn.Module], name: str, value: Any, generator: torch.Generator
) -> None:
    module, x = loss(), torch.randn(BATCH, *SHAPE, generator=generator)
    labels = isinstance(module, nn.CrossEntropyLoss)
    y = (rows if labels else features)(generator)
    net = classifier()
    trainer, before = Trainer(net, x, loss=module), getattr(module, name)
    state = copy.deepcopy(net.state_dict())
    setattr(module, name, value)
    with pytest.raises(InputError, match=rf"{type(module).__name__}\.{name} .* new trainer"):
        trainer.step(x, y)
    assert all(torch.equal(each, state[key]) for key, each in net.state_dict().items())
    setattr(module, name, before)
    assert trainer.step(x, y).isfinite()


def test_weights_of_a_loss_are_compared_by_their_values(generator: torch.Generator) -> None:
    module, x = nn.CrossEntropyLoss(WEIGHT.clone()), torch.randn(BATCH, *SHAPE, generator=generator)
    trainer, y = Trainer(classifier(), x, loss=module), rows(generator)
    module.weight = module.weight.clone()
    module.weight.mul_(1)
    trainer.step(x, y)
    module.weight[0] = 9
    with pytest.raises(InputError, match=r"CrossEntropyLoss\.weight has other values than it had"):
        trainer.step(x, y)
    module.weight.copy_(WEIGHT)
    assert trainer.step(x, y).isfinite()


def test_targets_that_do_not_fit_are_named() -> None:
    x = torch.zeros(BATCH, *SHAPE)
    trainer = Trainer(segmenter(), x)
    with pytest.raises(InputError, match=r"must be int64 of shape \[5, 6, 6\]"):
        trainer.step(x, torch.zeros(BATCH, dtype=torch.int64))
    trainer = Trainer(segmenter(), x, loss="mse")
    with pytest.raises(InputError, match=r"must be float32 of shape \[5, 7, 6, 6\]"):
        trainer.step(x, torch.zeros(BATCH, CLASSES, *SHAPE[1:], dtype=torch.int64))
