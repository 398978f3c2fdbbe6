"""Labels are copied as they are; the first that is no class is recorded, and raises the flag."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import poisoned
from tvdnn.kernels.copy.labels import fault_of, stage_labels, stage_labels_reference

LAUNCHERS = [stage_labels, stage_labels_reference]
SHAPES = [(0,), (1,), (7,), (4099,), (3, 5), (2, 3, 5), (3, 41, 37)]
CLASSES, IGNORED, STEP = 9, -100, 12
Staged = tuple[Tensor, Tensor, Tensor]


def staged(
    launcher: Callable[..., None],
    labels: Tensor,
    *,
    record: Sequence[int] = (0, 0),
    first: int = 0,
    **settings: Any,
) -> Staged:
    """A launch's results: the labels, the flag and the record."""
    target = poisoned(labels.shape, torch.int64, labels.device)
    flag = torch.zeros(1, device=labels.device)
    step = torch.tensor([STEP], device=labels.device)
    kept = torch.tensor(record, device=labels.device)
    options = {"classes": CLASSES, "ignore_index": IGNORED, "first": first} | settings
    launcher(labels, target, flag, step, kept, **options)
    return target, flag, kept


def labels_of(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    device = generator.device
    labels = torch.randint(0, CLASSES, tuple(shape), generator=generator, device=device)
    return labels.masked_fill(labels == 3, IGNORED)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_right_labels_raise_nothing(
    launcher: Callable[..., None], shape: Sequence[int], generator: torch.Generator
) -> None:
    labels = labels_of(shape, generator)
    target, flag, record = staged(launcher, labels)
    assert torch.equal(target, labels)
    assert flag.item() == 0.0
    assert fault_of(record.cpu()) is None


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("label", "told"),
    [(CLASSES, CLASSES), (-1, -1), (-99, -99), (2**40, 2**31 - 1), (-(2**40), -(2**31))],
)
@pytest.mark.parametrize("shape", [(1,), (7,), (4099,), (3, 41, 37)], ids=str)
def test_the_first_wrong_label_is_told(
    launcher: Callable[..., None],
    shape: Sequence[int],
    label: int,
    told: int,
    generator: torch.Generator,
) -> None:
    labels, sample = labels_of(shape, generator), shape[0] // 2
    labels.view(shape[0], -1)[sample, -1] = label
    labels.view(shape[0], -1)[sample + 1 :, 0] = CLASSES + 5
    target, flag, record = staged(launcher, labels, first=100)
    assert torch.equal(target, labels)
    assert flag.item() == 1.0
    assert fault_of(record.cpu()) == (STEP, 100 + sample, told)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_labels_may_be_checked_alone(
    launcher: Callable[..., None], generator: torch.Generator
) -> None:
    flag, labels = torch.zeros(1, device=generator.device), labels_of((3, 5), generator)
    words = torch.ones(3, dtype=torch.int64, device=generator.device)
    labels[2, 1] = CLASSES
    settings = {"classes": CLASSES, "ignore_index": IGNORED, "first": 0}
    launcher(labels, None, flag, words[:1], words[1:].zero_(), **settings)
    assert flag.item() == 1.0
    assert fault_of(words[1:].cpu()) == (1, 2, CLASSES)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launches_of_one_step_tell_the_least_sample(
    launcher: Callable[..., None], device: torch.device
) -> None:
    wrong = torch.tensor([CLASSES, 0], device=device)
    for first in (7, 40):
        _, _, record = staged(launcher, wrong, first=20)
        _, flag, record = staged(launcher, wrong, first=first, record=record.tolist())
        assert flag.item() == 1.0
        assert fault_of(record.cpu()) == (STEP, min(20, first), CLASSES)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_record_of_an_earlier_step_stays(
    launcher: Callable[..., None], device: torch.device
) -> None:
    before = ((2**31 - 1 - 5) << 32) | 77, STEP - 1
    _, _, record = staged(launcher, torch.tensor([CLASSES], device=device), record=before)
    assert fault_of(record.cpu()) == (STEP - 1, 5, 77)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_labels_of_any_strides_and_integer_type(
    launcher: Callable[..., None], generator: torch.Generator
) -> None:
    wide = torch.randint(0, CLASSES, (6, 5, 4), generator=generator, device=generator.device)
    given = [wide.transpose(1, 2), wide[::2, :, 1], wide[:1].expand(3, 5, 4), wide[:, 0, 0]]
    given += [wide.to(dtype) for dtype in (torch.uint8, torch.int8, torch.int32)]
    given += [wide > 3]
    for labels in given:
        target, flag, _ = staged(launcher, labels)
        assert torch.equal(target, labels.long())
        assert flag.item() == 0.0


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_class_may_be_ignored(launcher: Callable[..., None], device: torch.device) -> None:
    labels = torch.tensor([0, 255, 1], device=device)
    assert staged(launcher, labels, ignore_index=255)[1].item() == 0.0
    assert staged(launcher, labels, ignore_index=0)[1].item() == 1.0
