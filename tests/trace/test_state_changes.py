"""A forward's changes of its own buffers and parameters: each step does them once, as by torch."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.beside_torch import assert_trains_as_torch
from tests.support.state_networks import (
    SHAPE,
    Net,
    Way,
    ahead,
    assert_same,
    decay,
    forget_statistics,
)
from tvdnn.engine import Trainer, virtualize
from tvdnn.engine.core import Core
from tvdnn.errors import InputError
from tvdnn.graph.state import NO_CHANGES
from tvdnn.optim import SGD
from tvdnn.planner.replan import sendable
from tvdnn.trace.trace import trace

pytestmark = pytest.mark.usefixtures("few_trials")


def count(net: Net) -> None:
    net.calls += 1


def shift(net: Net) -> None:
    net.ema[1:].copy_(net.ema[:-1].clone())
    net.ema[0] = 3


def follow_a_parameter(net: Net) -> None:
    net.ema.lerp_(net.conv.bias.detach(), 0.1)


def use_made_tensors(net: Net) -> None:
    step = torch.full((4,), 0.25, device=net.ema.device)
    step[2:] += net.ema[:2] * 0.5
    net.ema.add_(step).fill_diagonal_(0) if net.ema.dim() > 1 else net.ema.add_(step)


def write_by_out(net: Net) -> None:
    torch.add(net.ema, net.image.flatten(), alpha=2, out=net.ema)
    torch._foreach_mul_([net.ema, net.image], 1.5)


def clamp(net: Net) -> None:
    with torch.no_grad():
        net.conv.weight.clamp_(-0.1, 0.1)


def clamp_data(net: Net) -> None:
    net.conv.weight.data.clamp_(-0.1, 0.1)


CHANGES: list[Callable[[Net], object]] = [
    *(count, decay, shift, follow_a_parameter, use_made_tensors, write_by_out, clamp, clamp_data),
    forget_statistics,
]


def read_before(net: Net, x: Tensor) -> Tensor:
    h = net.conv(x) + net.image
    net.image.mul_(0.5)
    return net.norm(h)


def read_between(net: Net, x: Tensor) -> Tensor:
    h = net.conv(x + net.image)
    net.image.add_(1)
    h = net.conv((h + net.image).relu())
    net.image.add_(h.shape[0])
    return net.norm(h) * net.image


def normalize_twice(net: Net, x: Tensor) -> Tensor:
    net.norm.running_var.mul_(0.5)
    return net.norm(net.conv(net.norm(x)))


def in_training_alone(net: Net, x: Tensor) -> Tensor:
    if net.training:
        net.calls += 1
        net.image.add_(1)
    return net.conv(x) * net.image


def normalize_by_what_was(net: Net, x: Tensor) -> Tensor:
    """In evaluation the layer reads a buffer that is changed behind it."""
    with torch.no_grad():
        h = net.norm(x + 1)
    if not net.training:
        net.norm.running_mean.add_(0.5)
    return net.conv(h)


WAYS = [*map(ahead, CHANGES), ahead(*CHANGES), read_before, read_between, normalize_twice]


@pytest.mark.parametrize("way", [*WAYS, in_training_alone, normalize_by_what_was])
@pytest.mark.parametrize("training", [True, False])
def test_changes_are_torchs(way: Way, training: bool) -> None:
    torch.manual_seed(1)
    assert_trains_as_torch(Net(way).train(training), torch.randn(SHAPE), policies=("keep", "auto"))


@pytest.mark.parametrize("way", [ahead(*CHANGES), read_before, read_between])
def test_a_step_that_makes_maps_again_changes_state_once(way: Way) -> None:
    """Near the floor ops run again in backward, where they read the same values as in forward."""
    torch.manual_seed(1)
    x = torch.randn(SHAPE)
    found = []
    for options in ({"policy": "keep"}, {"policy": "auto", "budget": "min"}):
        net = Net(way)
        made = virtualize(net, x, sections=2, **options)
        for _ in range(3):
            net.zero_grad()
            out = made(x)
            (out * out.detach()).sum().backward()
        grads = [param.grad for param in net.parameters()]
        found.append([out, *grads, *net.state_dict().values()])
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


def test_planning_changes_nothing_and_each_forward_changes_once() -> None:
    net = Net(ahead(count))
    x = torch.randn(SHAPE)
    made = virtualize(net, x)
    made.prepare(torch.empty(2, *SHAPE[1:]))
    assert net.calls == 0
    made(x).sum().backward()
    assert net.calls == 1
    with torch.no_grad():
        made(x)
    made.eval()
    with torch.no_grad():
        made(x)
    assert net.calls == 3


def test_training_follows_a_call_under_inference_mode() -> None:
    net = Net(ahead(*CHANGES))
    twin, x = copy.deepcopy(net), torch.randn(SHAPE)
    made = virtualize(net, x)
    for _ in range(2):
        with torch.inference_mode():
            made(x), twin(x)
        made(x).sum().backward(), twin(x).sum().backward()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value)


def test_a_plan_that_is_made_anew_by_a_worker_has_no_functions() -> None:
    graph = virtualize(Net(read_between), torch.randn(SHAPE)).schedule.graph
    assert graph.network.changes.calls
    assert pickle.loads(pickle.dumps(sendable(graph))).network.changes == NO_CHANGES


def test_a_mode_has_its_own_changes() -> None:
    net = Net(in_training_alone)
    made, twin = virtualize(net, torch.randn(SHAPE)), copy.deepcopy(net)
    x = torch.randn(SHAPE)
    for mode in (True, False, True):
        made.train(mode), twin.train(mode)
        torch.testing.assert_close(made(x), twin(x))
        assert net.calls == twin.calls
        assert torch.equal(net.image, twin.image)


class StoppedError(Exception):
    """A step fails."""


def stop(*_: object) -> None:
    raise StoppedError


@pytest.mark.parametrize("change", CHANGES)
def test_a_forward_that_fails_leaves_state(
    change: Callable[[Net], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = Net(ahead(change)), torch.randn(SHAPE)
    made = virtualize(net, x)
    before = copy.deepcopy(net.state_dict())
    monkeypatch.setattr(Core, "run", stop)
    with pytest.raises(StoppedError):
        made(x)
    assert_same(before, net.state_dict())


class Rows(nn.Module):
    """A classifier whose forward changes state."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.net, self.fc = Net(way), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.net(x).mean((2, 3)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_trainer_changes_state_as_a_loop_does(way: Way, accumulate: int) -> None:
    net = Rows(way)
    twin = copy.deepcopy(net).double()
    trainer = Trainer(net, torch.randn(SHAPE), optimizer=SGD(lr=0.1), budget=None)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    torch.manual_seed(2)
    for _ in range(3):
        x, y = torch.randn(SHAPE), torch.randint(0, 3, (4,))
        found = trainer.step(x, y, accumulate=accumulate)
        optimizer.zero_grad()
        parts = zip(x.double().chunk(accumulate), y.chunk(accumulate), strict=True)
        losses = []
        for a, b in parts:
            losses.append(functional.cross_entropy(twin(a), b).div(accumulate))
            losses[-1].backward()
        optimizer.step()
        torch.testing.assert_close(found.double(), sum(losses).detach(), rtol=1e-5, atol=1e-6)
    for name, mine in net.state_dict().items():
        theirs = twin.state_dict()[name]
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_of_a_label_that_is_no_class_leaves_state(accumulate: int) -> None:
    net = Rows(ahead(*CHANGES))
    trainer = Trainer(net, torch.randn(SHAPE), optimizer=SGD(lr=0.1))
    x, y = torch.randn(SHAPE), torch.tensor([0, 1, 2, 7])
    before = copy.deepcopy(net.state_dict())
    loss = trainer.step(x, y, accumulate=accumulate)
    with pytest.raises(InputError, match="sample 3 has label 7"):
        loss.item()
    assert_same(before, net.state_dict())
    trainer.step(x, y % 3, accumulate=accumulate)
    assert net.net.calls == before["net.calls"] + accumulate


def test_a_trainer_that_fails_leaves_state(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Rows(ahead(*CHANGES))
    trainer = Trainer(net, torch.randn(SHAPE), optimizer=SGD(lr=0.1))
    before = copy.deepcopy(net.state_dict())
    monkeypatch.setattr(Core, "run", stop)
    with pytest.raises(StoppedError):
        trainer.step(torch.randn(SHAPE), torch.zeros(4, dtype=torch.int64))
    assert_same(before, net.state_dict())


def test_what_state_changes_take_is_in_the_budget() -> None:
    plain, counted = (trace(Net(ahead(*each)), (torch.empty(SHAPE),)) for each in ((), (decay,)))
    assert plain.changes.nbytes == 0
    assert counted.changes.nbytes == 4 * 4  # the copy of ema for a step that fails
    before, after = (
        virtualize(Net(each), torch.randn(SHAPE), budget="min").schedule.peak_nbytes
        for each in (ahead(), ahead(decay))
    )
    assert after - before >= 16
