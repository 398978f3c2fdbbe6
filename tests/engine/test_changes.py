"""Changes of a network after its first plan are followed as by torch, or refused by name."""

import copy
from collections.abc import Callable

import pytest
import torch

from tests.support.changed_networks import (
    ATOL,
    RTOL,
    SHAPE,
    SPEC,
    Net,
    assert_close,
    assert_follows,
    assign_state,
    batches_of,
    evaluate,
    freeze,
    freeze_and_evaluate,
    replace_layer,
    replace_norm,
    replace_parameter,
    torch_step,
    train_all,
    virtual,
)
from tvdnn.engine import Trainer
from tvdnn.engine.network_states import MOST_STATES
from tvdnn.optim import AdamW


def replace_buffers(net: Net) -> None:
    net.norm.running_mean = torch.full((4,), 0.2)
    net.norm.register_buffer("running_var", torch.full((4,), 0.7))


def set_momentum(net: Net) -> None:
    net.norm.momentum = 0.4


def set_cumulative(net: Net) -> None:
    net.norm.momentum = None


def set_eps(net: Net) -> None:
    net.norm.eps = 0.1


def use_norm_twice(net: Net) -> None:
    net.twice = True


def normalize_by_running(net: Net) -> None:
    net.norm.eval()


def zero_all(net: Net) -> None:
    net.drop.p = 1.0


SETTINGS: list[Callable[[Net], None]] = [
    set_momentum, set_cumulative, set_eps, use_norm_twice, zero_all, replace_buffers,
    normalize_by_running, freeze, freeze_and_evaluate, evaluate,
]  # fmt: skip
REPLACEMENTS: list[Callable[[Net], None]] = [
    replace_norm, replace_layer, replace_parameter, assign_state,
]  # fmt: skip


@pytest.mark.parametrize("change", [*SETTINGS, *REPLACEMENTS])
def test_a_virtualized_network_follows_a_change(change: Callable[[Net], None]) -> None:
    """Replaced parameters get their gradients, and new optimizers train them."""
    net = Net()
    twin = copy.deepcopy(net)
    made = virtual(net)
    for number, batch in enumerate(batches_of(4)):
        if number == 2:
            change(net)
            change(twin)
        for each, plain in ((made, net), (twin, twin)):
            torch_step(each, torch.optim.SGD(plain.parameters(), lr=0.05), batch)
        assert_close(net, twin)
    made.eval(), twin.eval()
    with torch.no_grad():
        x = batches_of(1)[0][0]
        torch.testing.assert_close(made(x), twin(x), rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("change", SETTINGS)
def test_a_trainer_follows_a_change(change: Callable[[Net], None], accumulate: int) -> None:
    assert_follows(Net(), {2: change}, SPEC, accumulate)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("change", [freeze, freeze_and_evaluate, evaluate])
def test_a_trainer_follows_a_change_and_its_end(
    change: Callable[[Net], None], accumulate: int
) -> None:
    assert_follows(Net(), {2: change, 4: train_all}, SPEC, accumulate)


@pytest.mark.parametrize("change", [freeze, freeze_and_evaluate, evaluate])
def test_a_trainer_by_adamw_follows_a_change(change: Callable[[Net], None]) -> None:
    assert_follows(Net(), {2: change}, AdamW(lr=0.01, eps=0.01, weight_decay=0.1))


def test_parameters_cast_in_place_are_followed_by_a_virtualized_network() -> None:
    net = Net()
    made = virtual(net)
    x, _ = batches_of(1)[0]
    made(x)
    net.bfloat16()
    twin = copy.deepcopy(net).float()
    expected = twin(x)
    assert made.schedule.graph.dtype == "fp32"
    torch.testing.assert_close(made(x), expected, rtol=0.05, atol=0.05)
    assert made.schedule.graph.dtype == "bf16"


def test_a_state_that_comes_back_finds_its_plan() -> None:
    net = Net()
    made = virtual(net)
    x, _ = batches_of(1)[0]
    schedules = []
    for momentum in (0.1, 0.2, 0.1, 0.2):
        net.norm.momentum = momentum
        made(x)
        schedules.append(made.schedule)
    assert schedules[0] is schedules[2] is not schedules[1] is schedules[3]


def test_few_states_are_kept() -> None:
    """A setting that changes at every step costs a plan each, and no more memory than a few."""
    net = Net()
    trainer = Trainer(net, torch.empty(SHAPE), optimizer=SPEC)
    (batch,) = batches_of(1)
    for step in range(MOST_STATES + 4):
        net.norm.momentum = 0.01 * (step + 1)
        trainer.step(*batch)
    core = trainer._core
    assert len(core.runners) == len(core.costs) == MOST_STATES
