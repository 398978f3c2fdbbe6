"""Cross-entropy against its references, and the references against torch and autograd."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.kernels.numerics import assert_repeatable, poisoned, poisoned_like, randn, rms_error
from tvdnn.kernels import loss

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3}
IGNORED = -100
SHAPES = [(1, 1), (3, 10), (5, 1000), (37, 3), (2, 21841)]
LAUNCHERS = [
    (loss.cross_entropy_rows, loss.cross_entropy_total, loss.cross_entropy_grad),
    (
        loss.cross_entropy_rows_reference,
        loss.cross_entropy_total_reference,
        loss.cross_entropy_grad_reference,
    ),
]


def inputs(
    shape: tuple[int, int], dtype: torch.dtype, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Logits [N, K] and targets [N], about a fifth of them ignored, the last one not."""
    samples, classes = shape
    device = generator.device
    target = torch.randint(classes, (samples,), generator=generator, device=device)
    ignored = torch.rand(samples, generator=generator, device=device) < 0.2
    ignored[-1:] = False
    return randn(shape, dtype, generator, 4.0), target.masked_fill(ignored, IGNORED)


def run(
    launchers: tuple, logits: Tensor, target: Tensor, control: Tensor, reduction: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Losses, log-sum-exps, total and gradient of one set of launchers."""
    rows, total_of, grad = launchers
    losses, lse = (poisoned(target.shape, torch.float32, logits.device) for _ in range(2))
    total, dlogits = poisoned((2,), torch.float32, logits.device), poisoned_like(logits)
    rows(logits, target, losses, lse, ignore_index=IGNORED)
    total_of(losses, target, total, reduction=reduction, ignore_index=IGNORED)
    options = {"reduction": reduction, "ignore_index": IGNORED}
    grad(logits, target, lse, total, control, dlogits, **options)
    return losses, lse, total, dlogits


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", SHAPES)
def test_follows_torch(
    shape: tuple[int, int], dtype: torch.dtype, reduction: str, generator: torch.Generator
) -> None:
    logits, target = inputs(shape, dtype, generator)
    control = torch.tensor([2.5], device=logits.device)
    leaf = logits.float().clone().requires_grad_()
    each = functional.cross_entropy(leaf, target, ignore_index=IGNORED, reduction="none")
    expected = functional.cross_entropy(leaf, target, ignore_index=IGNORED, reduction=reduction)
    expected.backward(control[0])
    assert leaf.grad is not None
    divisor = (target != IGNORED).sum() if reduction == "mean" else torch.tensor(1.0)
    for launchers in LAUNCHERS:
        losses, lse, total, dlogits = run(launchers, logits, target, control, reduction)
        assert rms_error(losses, each.detach()) <= TOLERANCE[torch.float32]
        assert rms_error(lse, logits.float().logsumexp(1)) <= TOLERANCE[torch.float32]
        assert rms_error(total[0], expected.detach()) <= TOLERANCE[torch.float32]
        assert total[1] == divisor
        assert rms_error(dlogits, leaf.grad) <= TOLERANCE[dtype]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_total_of_many(reduction: str, generator: torch.Generator) -> None:
    losses = randn((2051,), torch.float32, generator, 3.0) + 5.0
    target = torch.arange(2051, device=losses.device) % 3
    total, expected = (poisoned((2,), torch.float32, losses.device) for _ in range(2))
    options = {"reduction": reduction, "ignore_index": 1}
    loss.cross_entropy_total(losses, target, total, **options)
    loss.cross_entropy_total_reference(losses, target, expected, **options)
    assert rms_error(total, expected) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("launchers", LAUNCHERS)
def test_nothing_to_average(launchers: tuple, generator: torch.Generator) -> None:
    logits = randn((3, 7), torch.float32, generator)
    target = torch.full((3,), IGNORED, device=logits.device)
    control = torch.ones(1, device=logits.device)
    _, _, total, dlogits = run(launchers, logits, target, control, "mean")
    assert math.isnan(total[0])
    assert dlogits.eq(0).all()
    _, _, total, dlogits = run(launchers, logits[:0], target[:0], control, "sum")
    assert total.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("launchers", LAUNCHERS)
def test_unknown_class_and_infinite_logits(launchers: tuple, generator: torch.Generator) -> None:
    logits = randn((4, 7), torch.float32, generator)
    logits[3, 2] = -math.inf
    target = torch.tensor([7, -1, 3, 2], device=logits.device)
    control = torch.ones(1, device=logits.device)
    losses, _, total, dlogits = run(launchers, logits, target, control, "sum")
    assert losses[:2].isnan().all()
    assert losses[2].isfinite()
    assert losses[3] == math.inf
    assert math.isnan(total[0])
    assert dlogits[:2].isnan().all()
    assert dlogits[2:].isfinite().all()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("classes", [1000, 4099])
def test_bits_do_not_depend_on_the_run(
    classes: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    logits, target = inputs((5, classes), dtype, generator)
    control = torch.ones(1, device=logits.device)
    whole = run(LAUNCHERS[0], logits, target, control, "sum")
    part = run(LAUNCHERS[0], logits[2:4], target[2:4], control, "sum")
    for index in (0, 1, 3):
        assert torch.equal(whole[index][2:4], part[index])


@pytest.mark.gpu
def test_repeats_and_large_offsets(generator: torch.Generator) -> None:
    logits, target = inputs((100003, 21841), torch.bfloat16, generator)
    losses, lse = (poisoned(target.shape, torch.float32, logits.device) for _ in range(2))
    total, control = poisoned((2,), torch.float32, logits.device), torch.ones(1).to(logits.device)
    loss.cross_entropy_rows(logits, target, losses, lse, ignore_index=IGNORED)
    options = {"reduction": "mean", "ignore_index": IGNORED}
    assert_repeatable(lambda: loss.cross_entropy_total(losses, target, total, **options), total)
    last = run(LAUNCHERS[0], logits[-2:].clone(), target[-2:], control, "sum")
    assert torch.equal(losses[-2:], last[0])
    total[1] = 1.0
    loss.cross_entropy_grad(logits, target, lse, total, control, logits, **options)
    assert torch.equal(logits[-2:], last[3])
