"""Changes of a network after its first plan are followed as by torch, or refused by name."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

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
from tvdnn.errors import InputError
from tvdnn.optim import SGD, AdamW


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


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_trainer_trains_what_was_frozen(accumulate: int) -> None:
    net = Net()
    freeze(net)
    assert_follows(net, {3: train_all}, SPEC, accumulate)


def test_adamw_trains_what_was_frozen_from_the_first_step_on() -> None:
    net = Net()
    freeze(net)
    assert_follows(net, {0: train_all}, AdamW(lr=0.01, eps=0.01))


def test_adamw_refuses_other_counts() -> None:
    """One count of steps corrects the averages of all that a planned step updates."""
    net = Net()
    freeze(net)
    trainer = Trainer(net, torch.empty(SHAPE), optimizer=AdamW(lr=0.01))
    batch, _ = batches_of(2)
    trainer.step(*batch)
    train_all(net)
    with pytest.raises(InputError, match=r"conv.weight was updated 0 times and norm.weight 1 "):
        trainer.step(*batch)


def test_state_of_parameters_that_are_not_trained_is_in_the_budget() -> None:
    """The budget has state of frozen parameters and of those that no output depends on."""
    net: Any = Net()
    net.unread = nn.Linear(64, 64)
    trainer = Trainer(net, torch.empty(SHAPE), optimizer=AdamW(lr=0.01))
    before = trainer.graph.fixed_nbytes
    assert trainer.graph.fixed["reserve"] >= 2 * 4 * (64 * 64 + 64)
    net.unread.requires_grad_(False)
    freeze(net)
    trainer.step(*batches_of(1)[0])
    assert trainer.graph.fixed_nbytes == before


@pytest.mark.parametrize(
    ("change", "name"),
    [(replace_norm, "norm.weight"), (replace_layer, "fc.weight"),
     (replace_parameter, "fc.weight"), (assign_state, "conv.weight")],
)  # fmt: skip
def test_a_trainer_refuses_parameters_that_its_optimizer_has_not(
    change: Callable[[Net], None], name: str
) -> None:
    """Torch's optimizer goes on with the old ones, in silence."""
    net = Net()
    trainer = Trainer(net, torch.empty(SHAPE), optimizer=SPEC)
    (batch,) = batches_of(1)
    trainer.step(*batch)
    change(net)
    before = copy.deepcopy(net.state_dict())
    for _ in range(2):
        with pytest.raises(InputError, match=f"parameter {name} was added or replaced .* make a"):
            trainer.step(*batch)
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_a_trainer_follows_replaced_frozen_parameters() -> None:
    net = Net()
    net.conv.requires_grad_(False)
    twin = copy.deepcopy(net)
    trainer = Trainer(net, torch.empty(SHAPE), optimizer=SPEC)
    trained = [param for param in twin.parameters() if param.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
    for number, batch in enumerate(batches_of(3)):
        if number == 1:
            for each in (net, twin):
                torch.manual_seed(8)
                each.conv = nn.Conv2d(3, 4, 3, padding=1).requires_grad_(False)
        expected = torch_step(twin, optimizer, batch)
        torch.testing.assert_close(trainer.step(*batch), expected, rtol=RTOL, atol=ATOL)
    assert_close(net, twin)


def test_a_trainer_leaves_a_layer_that_is_gone() -> None:
    """A parameter that is no longer the network's has no gradient: it stays as it is."""
    net = Net()
    trainer = Trainer(net, torch.empty(SHAPE), optimizer=SPEC)
    first, second = batches_of(2)
    trainer.step(*first)
    norm, net.norm = net.norm, nn.Identity()
    before = copy.deepcopy(norm.state_dict())
    trainer.step(*second)
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())


def test_parameters_cast_in_place_are_refused_by_a_trainer() -> None:
    net = Net()
    trainer = Trainer(net, torch.empty(SHAPE), optimizer=SPEC)
    net.bfloat16()
    with pytest.raises(InputError, match=r"is bfloat16, not float32; call .float\(\)"):
        trainer.step(*batches_of(1)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it.param_groups[0].update(nesterov=True), "nesterov .* is now True"),
        (lambda it: it.param_groups[0].update(maximize=True), "maximize .* is now True"),
        (lambda it: it.param_groups[0].update(momentum=0.9), "momentum .* is now 0.9 and was 0"),
        (
            lambda it: it.add_param_group({"params": [torch.zeros(1, requires_grad=True)]}),
            "several parameter groups",
        ),
    ],
)
def test_optimizer_settings_that_a_step_ignores_are_refused(
    change: Callable[[Any], None], message: str
) -> None:
    trainer = Trainer(Net(), torch.empty(SHAPE), optimizer=SGD(lr=0.05))
    change(trainer.optimizer)
    with pytest.raises(InputError, match=message):
        trainer.step(*batches_of(1)[0])


@pytest.mark.parametrize("spec", [SPEC, AdamW(lr=0.01)])
def test_optimizer_state_loaded_directly_is_used(spec: SGD | AdamW) -> None:
    """`trainer.optimizer.load_state_dict` writes the tensors that planned steps update."""
    nets = [Net() for _ in range(2)]
    first, second = (Trainer(net, torch.empty(SHAPE), optimizer=spec) for net in nets)
    *batches, last = batches_of(3)
    for batch in batches:
        first.step(*batch)
    second.step(*last)
    nets[1].load_state_dict(nets[0].state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    for each in (first, second):
        each.step(*last)
    assert all(map(torch.equal, nets[0].parameters(), nets[1].parameters()))
