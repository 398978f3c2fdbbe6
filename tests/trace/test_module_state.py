"""The state of a module that its trace depends on: every change is seen, and nothing else."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tvdnn.trace.guards.module_state import TraceState, fingerprint


class Plain(nn.Module):
    """Attributes of many kinds beside layers and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.1))
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("shift", torch.zeros(()))
        self.table = torch.ones(3)
        self.sizes = [1, 2]
        self.nested = {"deep": [1, {"deeper": (2, [3])}]}
        self.act = nn.functional.relu
        self.count = 1


def replace_scalar(net: nn.Module) -> None:
    net.scale = nn.Parameter(torch.ones(1))


def replace_buffer(net: nn.Module) -> None:
    net.shift = torch.zeros(())


def assign_state(net: nn.Module) -> None:
    net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True)


CHANGES: list[Callable[[Plain], object]] = [
    lambda net: setattr(net.layers[1], "momentum", 0.2),
    lambda net: setattr(net.layers[1], "momentum", None),
    lambda net: setattr(net.layers[1], "eps", 1e-3),
    lambda net: setattr(net.layers[2], "p", 0.2),
    lambda net: setattr(net.layers[0], "stride", (2, 2)),
    lambda net: setattr(net.layers[0], "padding_mode", "reflect"),
    lambda net: setattr(net, "act", nn.functional.gelu),
    lambda net: setattr(net, "count", 2),
    lambda net: setattr(net, "added", 2),
    lambda net: setattr(net, "table", torch.ones(3)),
    lambda net: delattr(net, "count"),
    lambda net: net.sizes.append(3),
    lambda net: net.nested["deep"][1]["deeper"][1].append(4),
    lambda net: net.eval(),
    lambda net: net.layers[1].eval(),
    lambda net: net.layers.requires_grad_(False),
    lambda net: net.scale.requires_grad_(False),
    replace_scalar,
    replace_buffer,
    assign_state,
    lambda net: setattr(net.layers, "1", nn.BatchNorm2d(4)),
    lambda net: net.layers.append(nn.ReLU()),
    lambda net: net.layers.pop(2),
    lambda net: setattr(net, "twin", net.layers),
    lambda net: setattr(net.layers[0], "__class__", nn.Conv1d),
    lambda net: net.layers[2].register_forward_hook(print),
    lambda net: net.layers[2].register_forward_pre_hook(print),
    lambda net: net.layers[2].register_full_backward_hook(print),
    lambda net: net.layers[0].register_parameter("bias", None),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: Callable[[Plain], object]) -> None:
    net = Plain()
    state, before = TraceState(net), fingerprint(net)
    assert state.now() == state.now() == 0
    assert fingerprint(net) == before
    change(net)
    assert state.now() == state.now() == 1
    assert fingerprint(net) != before


def test_a_state_that_comes_back_has_its_old_number() -> None:
    net = Plain()
    state = TraceState(net)
    numbers = []
    for training in (True, False, True, False):
        net.train(training)
        numbers.append(state.now())
    handle = net.layers[0].register_forward_hook(print)
    numbers.append(state.now())
    handle.remove()
    assert [*numbers, state.now()] == [0, 1, 0, 1, 2, 1]


def test_training_and_saving_change_nothing() -> None:
    net = Plain()
    state = TraceState(net)
    net.layers(torch.randn(2, 3, 8, 8)).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    net.load_state_dict(net.state_dict())
    net._register_state_dict_hook(lambda *_: None)
    assert state.now() == 0


def test_a_number_is_of_one_object() -> None:
    net = Plain()
    state = TraceState(net)
    numbers = set()
    for _ in range(20):  # a new parameter often gets the address of the one before
        replace_scalar(net)
        numbers.add(state.now())
    assert len(numbers) == 20
