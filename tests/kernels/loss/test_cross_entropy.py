"""Cross-entropy against torch in float64: of rows and pixels, weighted and smoothed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.kernels.numerics import (
    as_range,
    assert_repeatable,
    is_poisoned_beside,
    poisoned,
    poisoned_like,
    randn,
    rms_error,
)
from tvdnn.kernels.loss import cross_entropy as loss
from tvdnn.kernels.loss import cross_entropy_grad as loss_grad

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3}
IGNORED = -100
SHAPES = [(1, 1), (3, 10), (5, 1000), (37, 3), (2, 21841)]
PIXELS = [(2, 3, 1), (3, 1031, 2), (2, 77, 21), (1, 5, 2048)]
RANGES = [(37, 3), (5, 1000), (2, 2053), (3, 103, 2), (2, 77, 21), (1, 5, 1024)]
Place = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Launchers:
    """The launchers of one kind, or their references."""

    rows: Any
    pixels: Any
    total: Any
    grad: Any


LAUNCHERS = [
    Launchers(
        loss.cross_entropy_rows,
        loss.cross_entropy_pixels,
        loss.loss_total,
        loss_grad.cross_entropy_grad,
    ),
    Launchers(
        loss.cross_entropy_rows_reference,
        loss.cross_entropy_pixels_reference,
        loss.loss_total_reference,
        loss_grad.cross_entropy_grad_reference,
    ),
]


@dataclass(frozen=True, slots=True)
class Settings:
    """How losses are counted."""

    reduction: str = "mean"
    smoothing: float = 0.0
    weight: Tensor | None = None

    @property
    def of_rows(self) -> dict[str, Any]:
        return {"ignore_index": IGNORED, "smoothing": self.smoothing}

    def torchs(self, logits: Tensor, target: Tensor, reduction: str) -> Tensor:
        weight = None if self.weight is None else self.weight.double()
        settings = {"ignore_index": IGNORED, "label_smoothing": self.smoothing}
        return functional.cross_entropy(logits, target, weight, reduction=reduction, **settings)


VARIANTS = {
    "mean": Settings(),
    "sum": Settings("sum"),
    "smoothed": Settings(smoothing=0.1),
    "weighted": Settings(weight=torch.empty(0)),
    "both": Settings("mean", 0.2, torch.empty(0)),
}


def settings_of(name: str, classes: int, generator: torch.Generator) -> Settings:
    """The settings of this name, with weights of these classes."""
    known = VARIANTS[name]
    if known.weight is None:
        return known
    weight = torch.rand(classes, generator=generator, device=generator.device) + 0.5
    return Settings(known.reduction, known.smoothing, weight)


def inputs(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Logits [..., C] and targets [...], about a fifth of them ignored, the last one not."""
    *samples, classes = shape
    device = generator.device
    target = torch.randint(classes, samples, generator=generator, device=device)
    ignored = torch.rand(samples, generator=generator, device=device) < 0.2
    ignored[..., -1] = False
    return randn(shape, dtype, generator, 4.0), target.masked_fill(ignored, IGNORED)


@dataclass(frozen=True, slots=True)
class Found:
    """Results of one set of launchers."""

    sums: Tensor
    lse: Tensor | None
    total: Tensor
    dlogits: Tensor


def run(
    launchers: Launchers,
    logits: Tensor,
    target: Tensor,
    control: Tensor,
    settings: Settings,
    place: Place = torch.clone,
    **padded: bool,
) -> Found:
    """The terms of rows, or the partial sums of pixels, and all that follows.

    `place` copies logits and their gradient to where they lie.
    """
    weight = None if settings.weight is None else loss.with_sum(settings.weight)
    total, dlogits = poisoned((2,), torch.float32, logits.device), place(poisoned_like(logits))
    logits, lse = place(logits), None
    if logits.dim() == 2:
        sums = poisoned((len(logits), 2), torch.float32, logits.device)
        lse = poisoned(target.shape, torch.float32, logits.device)
        launchers.rows(logits, target, weight, sums, lse, **settings.of_rows)
    else:
        shape = (len(logits), loss.pixel_splits(*logits.shape[1:]), 2)
        sums = poisoned(shape, torch.float32, logits.device)
        launchers.pixels(logits, target, weight, sums, **settings.of_rows)
    launchers.total(sums, None, total, mean=settings.reduction == "mean", share=1.0)
    operands = (logits.flatten(0, -2), target.flatten(), weight, lse, total, control)
    launchers.grad(*operands, dlogits.flatten(0, -2), **settings.of_rows, **padded)
    return Found(sums, lse, total, dlogits)


def error(found: Tensor, exact: Tensor) -> float:
    """Relative error; absolute where all is zero, as with a single class."""
    return rms_error(found, exact) if exact.any() else float(found.double().square().mean().sqrt())


def assert_follows_torch(
    logits: Tensor,
    target: Tensor,
    settings: Settings,
    tolerance: float,
    place: Place = torch.clone,
    **padded: bool,
) -> list[Tensor]:
    """Losses to float32's error, gradients to that of their type. Returns the gradients."""
    control = torch.tensor([2.5], device=logits.device)
    leaf = logits.double().flatten(0, -2).requires_grad_()
    exact = settings.torchs(leaf, target.flatten(), settings.reduction)
    exact.backward(control[0].double())
    assert leaf.grad is not None
    made = []
    for launchers in LAUNCHERS:
        found = run(launchers, logits, target, control, settings, place, **padded)
        made.append(found.dlogits)
        assert error(found.total[0], exact.detach()) <= TOLERANCE[torch.float32]
        assert error(found.dlogits.flatten(0, -2), leaf.grad) <= tolerance
        if found.lse is not None:
            each = settings.torchs(leaf, target, "none").detach()
            assert error(found.sums[:, 0], each) <= TOLERANCE[torch.float32]
            lse = logits.double().logsumexp(1)
            assert rms_error(found.lse, lse) <= TOLERANCE[torch.float32]
    return made


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", [*SHAPES, *PIXELS])
def test_follows_torch(
    shape: tuple[int, ...], dtype: torch.dtype, name: str, generator: torch.Generator
) -> None:
    logits, target = inputs(shape, dtype, generator)
    settings = settings_of(name, shape[-1], generator)
    assert_follows_torch(logits, target, settings, TOLERANCE[dtype])


@pytest.mark.parametrize("behind", [0, 8, 3])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", RANGES)
def test_ranges_of_wider_maps(
    shape: tuple[int, ...], dtype: torch.dtype, behind: int, generator: torch.Generator
) -> None:
    """NaN beside them reaches no result, and stays."""
    logits, target = inputs(shape, dtype, generator)
    place = partial(as_range, before=0, after=-shape[-1] % 8 + behind)
    settings = settings_of("both", shape[-1], generator)
    made = assert_follows_torch(logits, target, settings, TOLERANCE[dtype], place)
    assert all(map(is_poisoned_beside, made))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("classes", [17, 21, 150])
def test_padding_gets_zeros(classes: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    """NaN in the padding reaches no result. Whole words are stored, which keep NaN behind them."""
    logits, target = inputs((2, 77, classes), dtype, generator)
    place = partial(as_range, before=0, after=-classes % 8 + 8)
    settings = settings_of("both", classes, generator)
    word, stop = 16 // dtype.itemsize, classes + -classes % 8 + 8
    own, _ = assert_follows_torch(logits, target, settings, TOLERANCE[dtype], place, padded=True)
    whole = own.as_strided((2, 77, stop), own.stride())
    filled = classes + -classes % word
    assert not whole[..., classes:filled].any()
    assert whole[..., filled:].isnan().all()


@pytest.mark.parametrize("mean", [True, False])
def test_total_of_many(mean: bool, generator: torch.Generator) -> None:
    partials = randn((2051, 3, 2), torch.float32, generator).square()
    before = torch.tensor([7.0, 3.0], device=partials.device)
    total, expected = (poisoned((2,), torch.float32, partials.device) for _ in range(2))
    loss.loss_total(partials, before, total, mean=mean, share=0.3)
    loss.loss_total_reference(partials, before, expected, mean=mean, share=0.3)
    summed = partials.double().sum((0, 1))
    divisor = summed[1] if mean else 1.0
    assert rms_error(expected[0], 0.3 * summed[0] / divisor + 7.0) <= TOLERANCE[torch.float32]
    assert rms_error(total, expected) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("launchers", LAUNCHERS)
def test_nothing_to_average(launchers: Launchers, generator: torch.Generator) -> None:
    logits = randn((3, 7), torch.float32, generator)
    target = torch.full((3,), IGNORED, device=logits.device)
    control = torch.ones(1, device=logits.device)
    found = run(launchers, logits, target, control, Settings())
    assert math.isnan(found.total[0])
    assert found.dlogits.eq(0).all()
    found = run(launchers, logits[:0], target[:0], control, Settings("sum"))
    assert found.total.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("name", ["sum", "smoothed", "both"])
@pytest.mark.parametrize("launchers", LAUNCHERS)
def test_unknown_classes(launchers: Launchers, name: str, generator: torch.Generator) -> None:
    logits = randn((3, 7), torch.float32, generator)
    target = torch.tensor([7, -1, 3], device=logits.device)
    control = torch.ones(1, device=logits.device)
    settings = settings_of(name, 7, generator)
    found = run(launchers, logits, target, control, settings)
    assert found.sums[:2, 0].isnan().all()
    assert found.sums[2].isfinite().all()
    assert math.isnan(found.total[0])
    assert found.dlogits[:2].isnan().all()
    assert found.dlogits[2].isfinite().all()


@pytest.mark.parametrize("launchers", LAUNCHERS)
def test_infinite_logits(launchers: Launchers, generator: torch.Generator) -> None:
    logits = randn((2, 7), torch.float32, generator)
    logits[:, 2] = -math.inf
    target = torch.tensor([2, 3], device=logits.device)
    found = run(launchers, logits, target, torch.ones(1, device=logits.device), Settings("sum"))
    assert found.sums[0, 0] == math.inf
    assert found.sums[:, 1].eq(1).all()
    assert found.sums[1, 0].isfinite()
    assert found.dlogits.isfinite().all()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", [(5, 1000), (5, 4099), (5, 700, 3)])
def test_bits_do_not_depend_on_the_run(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> None:
    logits, target = inputs(shape, dtype, generator)
    control = torch.ones(1, device=logits.device)
    settings = Settings("sum", 0.1)
    whole = run(LAUNCHERS[0], logits, target, control, settings)
    part = run(LAUNCHERS[0], logits[2:4], target[2:4], control, settings)
    assert torch.equal(whole.sums[2:4], part.sums)
    assert torch.equal(whole.dlogits[2:4], part.dlogits)


@pytest.mark.gpu
def test_repeats_and_large_offsets(generator: torch.Generator) -> None:
    logits, target = inputs((100003, 21841), torch.bfloat16, generator)
    terms = poisoned((*target.shape, 2), torch.float32, logits.device)
    lse = poisoned(target.shape, torch.float32, logits.device)
    total, control = poisoned((2,), torch.float32, logits.device), torch.ones(1).to(logits.device)
    settings = Settings("sum")
    loss.cross_entropy_rows(logits, target, None, terms, lse, **settings.of_rows)
    assert_repeatable(lambda: loss.loss_total(terms, None, total, mean=True, share=1.0), total)
    last = run(LAUNCHERS[0], logits[-2:].clone(), target[-2:], control, settings)
    assert torch.equal(terms[-2:], last.sums)
    total[1] = 1.0
    operands = (logits, target, None, lse, total, control, logits)
    loss_grad.cross_entropy_grad(*operands, **settings.of_rows)
    assert torch.equal(logits[-2:], last.dlogits)
