"""What a caller writes into a trainer's optimizer is followed as torch follows it, or refused."""

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.trained_networks import (
    assert_same_parameters,
    batches_of,
    make_net,
    torch_optimizer,
    torch_step,
    trainer_of,
)
from tvdnn.errors import InputError
from tvdnn.optim import SGD, AdamW

pytestmark = pytest.mark.usefixtures("units_of_one", "few_trials")
Write = Callable[[Any, nn.Module], None]
MOMENTUM = SGD(lr=0.1, momentum=0.9, dampening=0.5)
ADAMW = AdamW(lr=0.01)


def clear(optimizer: Any, net: nn.Module) -> None:
    optimizer.state.clear()


def replace_by_another(optimizer: Any, net: nn.Module) -> None:
    optimizer.state = defaultdict(dict)


def take_out_each(optimizer: Any, net: nn.Module) -> None:
    for param in net.parameters():
        optimizer.state.pop(param)


def replace_by_zeros(optimizer: Any, net: nn.Module) -> None:
    for entry in optimizer.state.values():
        entry.update({name: torch.zeros_like(each) for name, each in entry.items()})


def take_out_momentum(optimizer: Any, net: nn.Module) -> None:
    for entry in optimizer.state.values():
        entry["momentum_buffer"] = None


def count_anew(optimizer: Any, net: nn.Module) -> None:
    for entry in optimizer.state.values():
        entry["step"] = torch.tensor(0.0)


BOTH = (clear, replace_by_another, take_out_each, replace_by_zeros)
CASES = [(spec, write) for spec in (MOMENTUM, ADAMW) for write in BOTH]


@pytest.mark.parametrize(
    ("spec", "write"), [*CASES, (MOMENTUM, take_out_momentum), (ADAMW, count_anew)]
)
def test_state_that_is_written_or_taken_out_is_followed(spec: SGD | AdamW, write: Write) -> None:
    net = make_net()
    twin = copy.deepcopy(net)
    optimizer, trainer = torch_optimizer(spec, twin), trainer_of(net, optimizer=spec)
    for number, (x, y) in enumerate(batches_of(5)):
        if number in (2, 4):
            write(optimizer, twin)
            write(trainer.optimizer, net)
        torch_step(twin, optimizer, x, y)
        trainer.step(x, y)
    assert_same_parameters(net, twin)


def stop_momentum(optimizer: Any, net: nn.Module) -> None:
    optimizer.param_groups[0]["momentum"] = 0.0


def take_out_a_parameter(optimizer: Any, net: nn.Module) -> None:
    optimizer.param_groups[0]["params"].pop()


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (stop_momentum, r"momentum .* is now 0 and was 0\.9 .*; make a new trainer"),
        (take_out_a_parameter, r"parameter .*bias was taken out of the trainer's optimizer"),
    ],
)
def test_what_a_step_cannot_follow_is_refused(write: Write, message: str) -> None:
    net, (first, second) = make_net(), batches_of(2)
    trainer = trainer_of(net, optimizer=MOMENTUM)
    trainer.step(*first)
    write(trainer.optimizer, net)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(InputError, match=message):
        trainer.step(*second)
    assert all(torch.equal(each, before[name]) for name, each in net.state_dict().items())
