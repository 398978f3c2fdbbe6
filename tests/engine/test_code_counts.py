"""Packed codes in training: keep's bits, counts of their values, and plans with room for these."""

import warnings

import pytest
import torch
from torch import nn

from tests.support.packing import packing
from tests.support.running import random_batches
from tests.support.simulated import h200
from tvdnn.engine import Trainer, virtualize
from tvdnn.graph import BITMAP, SHARES, SSDC, TF32, Form, with_share
from tvdnn.optim import SGD
from tvdnn.planner.capacities import MARGIN
from tvdnn.planner.ir.plan import HOST
from tvdnn.planner.policies import POLICIES
from tvdnn.planner.timing.simulate import simulate
from tvdnn.report.maps import map_rows
from tvdnn.report.traces import moments
from tvdnn.units import KIB

BATCH, SHAPE, CLASSES = 8, (3, 8, 8), 4
FORMS = [BITMAP, SSDC]


def make_net(depth: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    layers = list[nn.Module]()
    for number in range(depth):
        layers += [nn.Conv2d(16 if number else 3, 16, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 64, CLASSES))


def trainer_of(policy: str, depth: int = 2, budget: str | None = None) -> Trainer:
    x, optimizer = torch.empty(BATCH, *SHAPE), SGD(0.05, momentum=0.9)
    how = {"optimizer": optimizer, "chunk_size": 8 * KIB, "order_seed": 1}
    return Trainer(make_net(depth), x, policy=policy, budget=budget, **how)


@pytest.fixture
def kept() -> Trainer:
    return trainer_of("keep")


def packed(monkeypatch: pytest.MonkeyPatch, form: Form, tier: str | None = None) -> Trainer:
    monkeypatch.setitem(POLICIES, "packing", packing(form, tier))
    return trainer_of("packing")


def step_alike(*trainers: Trainer, seed: int) -> None:
    """One step of each, on the same batch, with the same loss."""
    for x, y in random_batches(1, (BATCH, *SHAPE), CLASSES, seed):
        first, *others = [trainer.step(x, y) for trainer in trainers]
        assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("tier", [None, HOST])
def test_values_beyond_the_capacity_are_reported_and_planned_for(
    form: Form, tier: str | None, kept: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = packed(monkeypatch, with_share(form, 0.25), tier)
    before = trainer.schedule
    assert before.num_counts > 4
    with pytest.warns(RuntimeWarning, match="packed codes of a step had more values than planned"):
        step_alike(kept, trainer, seed=1)
    counts = trainer.code_counts
    assert len(counts) == before.num_counts
    assert all(each.density > 0.25 and each.spilled > 0 for each in counts)
    assert trainer.schedule is before
    trainer.settle()
    assert not trainer.replanning
    after = trainer.schedule
    assert after is not before
    assert after.plan.bridges != before.plan.bridges
    assert after.slab_nbytes < before.slab_nbytes  # tails are shorter
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(2, 5):
            step_alike(kept, trainer, seed=seed)
    assert trainer.schedule is after
    for each in trainer.code_counts:
        assert each.spilled == 0
        room = each.count / each.code.values + (MARGIN + 1) / SHARES + 0.03
        assert each.code.capacity / each.code.values < room
    assert all(map(torch.equal, kept.net.parameters(), trainer.net.parameters()))


def test_a_plan_with_room_for_all_stays(kept: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = packed(monkeypatch, with_share(BITMAP, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(3):
            step_alike(kept, trainer, seed=seed)
    assert not trainer.replanning
    assert all(each.spilled == 0 < each.count for each in trainer.code_counts)


def test_a_plan_without_packed_codes_counts_nothing(kept: Trainer) -> None:
    step_alike(kept, seed=0)
    assert kept.code_counts == ()


def test_a_plan_for_which_there_are_no_bytes_is_not_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Training goes on, at the same bits, and no further plan is asked for."""
    monkeypatch.setitem(POLICIES, "packing", packing(with_share(BITMAP, 0.1)))
    kept, trainer = trainer_of("keep", depth=8), trainer_of("packing", depth=8, budget="min")
    before = trainer.schedule
    assert before.arena_nbytes < 0.6 * kept.schedule.arena_nbytes
    with pytest.warns(RuntimeWarning, match="none is lost"):
        step_alike(kept, trainer, seed=1)
    trainer.settle()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step_alike(kept, trainer, seed=2)
    assert trainer.schedule is before
    assert all(map(torch.equal, kept.net.parameters(), trainer.net.parameters()))


@pytest.mark.parametrize("form", [TF32, with_share(SSDC, 0.25)], ids=str)
@pytest.mark.filterwarnings("ignore:.*packed codes of a step:RuntimeWarning")
def test_codes_rest_between_the_halves_of_a_step(
    form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In autograd mode a step has two phases, each of which begins with its own order of steps."""
    monkeypatch.setitem(POLICIES, "packing", packing(form))
    ((x, _),) = random_batches(1, (BATCH, *SHAPE), CLASSES, 1)
    found = list[list[torch.Tensor]]()
    for policy in ("keep", "packing"):
        net, given = make_net(), x.clone().requires_grad_()
        how = {"dtype": "tf32", "chunk_size": 8 * KIB, "order_seed": 2}
        virtual = virtualize(net, x, policy=policy, **how)
        for _ in range(2):
            output = virtual(given)
            output.square().sum().backward()
        found.append([output.detach(), given.grad, *(each.grad for each in net.parameters())])
    assert all(map(torch.equal, *found))


def test_reports_show_the_words_of_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = packed(monkeypatch, with_share(BITMAP, 0.5)).schedule
    timeline = simulate(schedule, h200(schedule.graph))
    assert schedule.fixed["counts of codes"] == 512
    assert schedule.peak_nbytes == sum(schedule.fixed.values()) + schedule.arena_nbytes
    assert all(moment.nbytes["counts of codes"] == 512 for moment in moments(schedule, timeline))
    assert {row.decision for row in map_rows(schedule)} >= {"bitmap 128/256", "free"}
