"""Trainers whose maps may be rounded: gradients are measured before an update follows from them."""

import copy
import warnings
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from tests.support.rounding import (
    BATCH,
    CLASSES,
    MOMENTUM,
    SHAPE,
    WIDE,
    ZERO_GRADIENTS,
    Make,
    batches,
    budget_of,
    kept,
    normalized,
    relative_error,
    same_state,
    smooth,
    state_of,
    trainer_of,
)
from tvdnn.engine import Trainer
from tvdnn.errors import InputError
from tvdnn.graph import FP8, FP10, FP16
from tvdnn.optim import SGD, AdamW
from tvdnn.planner.ir.page_map import PageMap
from tvdnn.planner.lowering.rounded_codes import ROUNDING
from tvdnn.planner.policies.gist import LOSSY
from tvdnn.runtime.arena import Arena

DROPPED = "a gradient is wrong by more than 3.00%"


def gradients_of(trainer: Trainer) -> dict[str, Tensor]:
    """The gradients of the first step, which a momentum buffer takes."""
    state = trainer.optimizer.state
    return {name: state[p]["momentum_buffer"].clone() for name, p in trainer.net.named_parameters()}


@pytest.mark.parametrize("make", [smooth, normalized])
def test_reported_errors_are_those_of_the_gradients_that_train(make: Make) -> None:
    exact, trainer = kept(make), trainer_of(make, WIDE)
    rounding = dict(trainer.plan.rounding)
    assert rounding
    assert trainer.rounding is None
    ((x, y),) = batches(1)
    assert torch.equal(exact.step(x, y), trainer.step(x, y))  # forward is exact
    report = trainer.rounding
    assert report is not None
    assert (report.measured, report.dropped, report.rounded) == (1, (), rounding)
    found = {
        name: relative_error(gradient, gradients_of(exact)[name])
        for name, gradient in gradients_of(trainer).items()
    }
    assert max(found[name] for name in found.keys() - ZERO_GRADIENTS) > 0
    for name, error in found.items():
        if make is smooth or name not in ZERO_GRADIENTS:
            assert report.errors[name] == pytest.approx(error, rel=1e-5, abs=1e-12)
    assert str(report).startswith(f"{len(rounding)} maps rounded; the largest error of a gradient")


def test_a_bias_whose_gradient_is_zero_is_measured_by_its_terms() -> None:
    """Behind it all values of a channel are normalized. What is left are errors of rounding."""
    exact, trainer = kept(normalized), trainer_of(normalized, WIDE)
    ((x, y),) = batches(1)
    exact.step(x, y)
    trainer.step(x, y)
    found, kept_ones = gradients_of(trainer), gradients_of(exact)
    wrong = {name: relative_error(found[name], kept_ones[name]) for name in ZERO_GRADIENTS}
    assert max(wrong.values()) > 1
    assert trainer.rounding is not None
    for name, by_itself in wrong.items():
        if by_itself > 0.5:
            assert 0 < trainer.rounding.errors[name] < 0.1


class Scaled(nn.Module):
    """The scale of the first normalization has no effect: a normalization is its only reader."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(3, eps=0), nn.BatchNorm2d(3, eps=0)
        self.last = nn.Linear(3 * 64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.second(self.first(x))).flatten(1))


def test_a_scale_without_effect_is_measured_by_its_terms_too() -> None:
    torch.manual_seed(1)
    net, ((x, y),) = Scaled(), batches(1)
    how = {"dtype": "fp32", "optimizer": MOMENTUM}
    exact = Trainer(copy.deepcopy(net), x, policy="keep", **how)
    trainer = Trainer(net, x, policy="gist-lossy:fp8", **how)
    assert trainer.plan.rounded
    before = copy.deepcopy(net.state_dict())
    verdict = trainer.rounding_errors(x, y)
    assert all(map(torch.equal, before.values(), net.state_dict().values()))
    assert not verdict.dropped
    exact.step(x, y)
    trainer.step(x, y)
    found, kept_ones = (gradients_of(each)["first.weight"] for each in (trainer, exact))
    assert relative_error(found, kept_ones) > 1
    assert 0 < verdict.errors["first.weight"] < 0.1


def test_errors_do_not_depend_on_the_optimizer() -> None:
    found, ((x, y),) = [], batches(1)
    for each in (MOMENTUM, SGD(0.05), AdamW(1e-3)):
        torch.manual_seed(1)
        trainer = Trainer(smooth(), x, policy="gist-lossy:fp8", dtype="fp32", optimizer=each)
        assert trainer.plan.rounded
        found.append(trainer.rounding_errors(x, y).errors)
    assert any(found[0].values())
    for errors in found[1:]:
        assert errors == pytest.approx(found[0], rel=1e-4)


@pytest.mark.parametrize("optimizer", [SGD(0.05), AdamW(1e-3)], ids=["sgd", "adamw"])
def test_measuring_changes_no_bit_of_the_state(optimizer: SGD | AdamW) -> None:
    """Parameters, statistics, optimizer state and the steps that follow."""
    often, seldom = (
        trainer_of(normalized, WIDE, optimizer, lossy_check_every=every) for every in (1, 1000)
    )
    for x, y in batches(3):
        assert torch.equal(often.step(x, y), seldom.step(x, y))
        assert same_state(often, seldom)
    assert often.rounding is not None
    assert seldom.rounding is not None
    assert (often.rounding.measured, seldom.rounding.measured) == (3, 1)


def test_a_codec_over_the_limit_trains_no_parameter_and_is_dropped() -> None:
    """Each step is exact, and the next plan is made beside training."""
    exact, trainer = kept(normalized), trainer_of(normalized, "lossy:0.03")
    before, first = trainer.schedule, trainer.plan.rounding
    assert set(first.values()) == {FP8}
    plans, key = trainer._core.new_plans.rounding, trainer._steps.key((BATCH, *SHAPE))
    assert plans.permits(key, before)
    given = batches(6)
    with pytest.warns(RuntimeWarning, match=DROPPED):
        assert torch.equal(trainer.step(*given[0]), exact.step(*given[0]))
    assert same_state(trainer, exact)
    assert not trainer.plan.rounded
    assert not plans.permits(key, before)
    assert plans.permits(key, trainer.schedule)
    report = trainer.rounding
    assert report is not None
    assert report.worst[0] > 0.03
    assert report.worst == (report.errors[report.worst[1]], report.worst[1])
    assert {each.buffer for each in report.dropped} <= first.keys()
    assert all(each.error > 0.03 and each.form == FP8 for each in report.dropped)
    assert f"dropped fp8 of {report.dropped[0].buffer}: " in str(report)
    gone = {each.buffer for each in report.dropped}
    seen = []
    for x, y in given[1:]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.settle()
            trainer.step(x, y)
        seen.append(trainer.plan.rounding)
    assert not trainer.replanning
    assert not any(each.get(name) == FP8 for each in seen for name in gone)
    assert trainer.rounding is not None
    last = trainer.rounding
    assert not seen[-1] or last.worst[0] <= 0.03


def test_a_later_check_finds_what_has_come_over_the_limit() -> None:
    """What is normalized gets a large mean: rounding takes its deviations away."""
    trainer = trainer_of(normalized, WIDE, lossy_check_every=2)
    given = batches(3)
    trainer.step(*given[0])
    assert trainer.plan.rounding
    before = trainer.rounding
    assert before is not None
    with torch.no_grad():
        for name in ZERO_GRADIENTS:
            trainer.net.get_parameter(name).add_(50.0)
    trainer.step(*given[1])
    assert trainer.rounding is before
    with pytest.warns(RuntimeWarning, match="a gradient is wrong by more than 50.00%"):
        trainer.step(*given[2])
    after = trainer.rounding
    assert after is not None
    assert after.measured == 2
    assert after.dropped
    assert not trainer.plan.rounded


def test_no_budget_is_exceeded_while_gradients_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arena and slab stay as the present plan has them, and all probes run in that plan."""
    trainer = trainer_of(normalized, "lossy:0.03", lossy_check_every=1)
    core, sizes = trainer._core, []
    reserve = type(core.memory.arena).reserve

    def noted(arena: Arena, nbytes: int, pages: PageMap | None = None) -> None:
        reserve(arena, nbytes, pages)
        if arena is core.memory.arena:
            sizes.append(arena.bytes.numel())

    monkeypatch.setattr(type(core.memory.arena), "reserve", noted)
    budget = budget_of(normalized)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x, y in batches(4):
            trainer.step(x, y)
            trainer.settle()
            schedule = trainer.schedule
            assert schedule.peak_nbytes <= budget == schedule.budget_nbytes
            sizes.append(core.memory.arena.bytes.numel())
    assert max(sizes) + trainer.graph.fixed_nbytes <= budget


def test_no_value_of_a_normalization_changes_sides() -> None:
    """A mask of rounded values errs where these are near zero, and layer by layer more so."""
    torch.manual_seed(0)
    layers = [
        layer
        for number in range(6)
        for layer in (nn.Conv2d(8 if number else 3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    ]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 64, CLASSES))
    trainer = Trainer(net, torch.empty(BATCH, *SHAPE), policy=f"{LOSSY}:fused:{FP16}")
    assert len(trainer.plan.rounded) >= 10
    ((x, y),) = batches(1)
    assert trainer.rounding_errors(x, y).worst[0] < 0.002


@pytest.mark.gpu
def test_on_a_gpu_measuring_takes_no_byte_and_changes_no_bit() -> None:
    given = [(x.cuda(), y.cuda()) for x, y in batches(3)]
    how = {"device": "cuda", "budget": budget_of(normalized, share=0.3)}
    seldom = trainer_of(normalized, WIDE, **how, lossy_check_every=1000)
    losses = [seldom.step(x, y) for x, y in given]
    often = trainer_of(normalized, WIDE, **how, lossy_check_every=1)
    assert often.plan.rounded
    for each, loss in zip(given, losses, strict=True):
        assert torch.equal(often.step(*each), loss)
    assert often.peak_nbytes() <= how["budget"]
    assert same_state(often, seldom)
    assert often.rounding is not None
    assert often.rounding.measured == 3


def test_wrong_labels_are_reported_and_measured_again() -> None:
    """A step on a label that is no class has no gradients, and changes nothing."""
    trainer = trainer_of(smooth, WIDE)
    before = [each.clone() for each in state_of(trainer)]
    ((x, y),) = batches(1)
    wrong = y.clone()
    wrong[3] = CLASSES
    with pytest.raises(InputError, match=f"sample 3 has label {CLASSES}"):
        trainer.step(x, wrong).item()
    assert trainer.rounding is None
    assert all(map(torch.equal, before[:-1], list(state_of(trainer))[: len(before) - 1]))
    exact = kept(smooth)
    assert torch.equal(trainer.step(x, y), exact.step(x, y))
    assert trainer.rounding is not None
    assert trainer.rounding.measured == 1


@pytest.mark.parametrize("limit", ["0", "1e-9"])
def test_a_limit_below_all_codecs_has_the_bits_of_keep(limit: str) -> None:
    exact, trainer = kept(normalized), trainer_of(normalized, f"lossy:{limit}")
    assert not trainer.plan.rounded
    for x, y in batches(3):
        assert torch.equal(exact.step(x, y), trainer.step(x, y))
    assert same_state(exact, trainer)
    assert trainer.rounding is None


@pytest.mark.slow
def test_parts_of_a_batch_are_measured_too() -> None:
    """Accumulating steps have plans of their own. Their first part is measured."""
    often, seldom = (trainer_of(smooth, WIDE, lossy_check_every=every) for every in (1, 1000))
    for (x, y), (others, labels) in pairwise(batches(3)):
        x, y = torch.cat((x, others)), torch.cat((y, labels))
        assert torch.equal(often.step(x, y, accumulate=2), seldom.step(x, y, accumulate=2))
        assert same_state(often, seldom)


def test_dropout_draws_the_same_numbers_in_all_probes() -> None:
    def dropping() -> nn.Sequential:
        net = smooth()
        return nn.Sequential(*net[:2], nn.Dropout(0.5), *net[2:])

    trainer = trainer_of(dropping, WIDE)
    assert trainer.plan.rounded
    trainer.step(*batches(1)[0])
    assert trainer.rounding is not None
    assert trainer.rounding.worst[0] < 0.1


def test_a_checkpoint_is_as_it_was_before_measuring() -> None:
    trainer = trainer_of(normalized, WIDE)
    before = copy.deepcopy(trainer.state_dict())
    ((x, y),) = batches(1)
    trainer.step(x, y)
    trainer.load_state_dict(before)
    other = trainer_of(normalized, WIDE)
    assert torch.equal(trainer.step(x, y), other.step(x, y))
    assert same_state(trainer, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allow": "lossy"}, "allow='lossy' is not known; write for example"),
        ({"allow": "lossy:3%"}, "allow='lossy:3%' is not known"),
        ({"allow": "lossy:1.5"}, "allow='lossy:1.5' lets gradients be wrong by 150%"),
        ({"allow": "lossy:0.03", "policy": "keep"}, "policy 'keep' takes no allow"),
        ({"allow": "lossy:0.03", "policy": "gist-lossy:fp8"}, "policy 'gist-lossy:fp8' takes no"),
        ({"allow": "lossy:0.03", "lossy_check_every": 0}, "lossy_check_every is 0"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Trainer(smooth(), torch.empty(BATCH, *SHAPE), **options)


def test_fp10_follows_fp8_where_it_may_be_within_the_limit() -> None:
    """A codec whose error would be too large in proportion is not tried."""
    first = trainer_of(normalized, WIDE)
    first.step(*batches(1)[0])
    assert first.rounding is not None
    limit = 0.8 * first.rounding.worst[0]
    trainer = trainer_of(normalized, f"lossy:{limit:.6f}")
    assert set(trainer.plan.rounding.values()) == {FP8}
    with pytest.warns(RuntimeWarning, match="a gradient is wrong by more than"):
        trainer.step(*batches(1)[0])
    assert trainer.rounding is not None
    left = trainer._core.new_plans.rounding.lossy(trainer._steps.key((BATCH, *SHAPE)))
    for each in trainer.rounding.dropped:
        in_proportion = each.error * ROUNDING[FP10] / ROUNDING[FP8]
        assert left.get(each.buffer) == (FP10 if in_proportion <= limit else None)
    assert FP10 in left.values()
