"""Batch normalization inside modules that run by torch: forward alone changes its statistics."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.exact import Functional
from tvdnn.engine import virtualize
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

RTOL, ATOL = 1e-4, 1e-5  # of float32 beside float64
STEPS = 3


class Summed(nn.Module):
    """Running sums behind layers, which run by torch as one module."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x.cumsum(1))
        return y


class Own(nn.BatchNorm2d):
    """A batch normalization of a user's."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        return super().forward(input) * 2


def normalized(**options: Any) -> Summed:
    return Summed(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4, **options), nn.ReLU())


def frozen() -> Summed:
    part = normalized()
    part.layers[1].weight.requires_grad_(False)
    return part


PARTS: dict[str, Callable[[], nn.Module]] = {
    "tracked": normalized,
    "of another momentum": lambda: normalized(momentum=0.3),
    "without parameters": lambda: normalized(affine=False),
    "of the batch alone": lambda: normalized(track_running_stats=False),
    "frozen": frozen,
    "itself": lambda: Summed(nn.BatchNorm2d(4)),
    "of the user's": lambda: Summed(Own(4)),
}
WAYS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "between": lambda net, x: net.last(net.part(net.first(x))),
    "the output": lambda net, x: net.part(net.first(x)),
    "twice": lambda net, x: net.part(net.part(net.first(x)) + net.last(x)),
    "unread": lambda net, x: (net.part(net.first(x)), net.last(x))[1],
    "without gradients": lambda net, x: net.last(net.part(x.detach()).detach()),
}


def stepped(net: nn.Module, model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    """Outputs, gradients and buffers of some steps; every second one runs forward alone, too."""
    found: list[Tensor] = []
    for x in batches:
        net.zero_grad()
        y = model(x)
        y.square().mean().backward()
        found += [y.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
        with torch.no_grad():
            found.append(model(x).detach())
            for param in net.parameters():
                if param.grad is not None:
                    param -= 0.05 * param.grad
        found += [each.clone() for each in net.buffers()]
    return found


def assert_steps_are_torchs(net: nn.Module, device: torch.device) -> None:
    net = net.to(device)
    batches = [torch.randn(4, 4, 5, 6, device=device) for _ in range(STEPS)]
    exact = copy.deepcopy(net).double()
    wanted = stepped(exact, exact, [x.double() for x in batches])
    kept: list[Tensor] = []
    for policy in ("keep", "vdnn-all:m"):
        mine = copy.deepcopy(net)
        how: dict[str, Any] = {"opaque": True, "dtype": "fp32", "chunk_size": 600}
        virtual = virtualize(mine, batches[0], policy=policy, **how)
        found = stepped(mine, virtual, batches)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=RTOL, atol=ATOL)
        kept = kept or found
        assert all(torch.equal(one, other) for one, other in zip(found, kept, strict=True))
        virtual.close()


@pytest.mark.parametrize("name", PARTS)
def test_statistics_are_torchs(name: str, device: torch.device) -> None:
    torch.manual_seed(5)
    net = Functional(
        WAYS["between"], first=nn.Conv2d(4, 4, 1), part=PARTS[name](), last=nn.Conv2d(4, 4, 1)
    )
    assert_steps_are_torchs(net, device)


@pytest.mark.parametrize("name", WAYS)
def test_statistics_are_torchs_wherever_it_stands(name: str, device: torch.device) -> None:
    torch.manual_seed(5)
    net = Functional(
        WAYS[name], first=nn.Conv2d(4, 4, 1), part=normalized(), last=nn.Conv2d(4, 4, 1)
    )
    assert_steps_are_torchs(net, device)


def test_an_eval_network_and_a_switch_of_modes() -> None:
    torch.manual_seed(5)
    net, x = nn.Sequential(nn.Conv2d(4, 4, 1), normalized()), torch.randn(4, 4, 5, 6)
    exact = copy.deepcopy(net)
    virtual = virtualize(net, x, opaque=True)
    for training in (True, False, True, False):
        virtual.train(training)
        exact.train(training)
        torch.testing.assert_close(virtual(x), exact(x), rtol=RTOL, atol=ATOL)
    for one, other in zip(net.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=RTOL, atol=ATOL)
    virtual.close()


class Decaying(nn.BatchNorm2d):
    """Changes its statistics itself, too."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        self.running_var.mul_(0.9)
        return super().forward(input)


class Replacing(nn.BatchNorm2d):
    """Gives its statistics another tensor."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        self.running_mean = torch.zeros_like(input[0, :, 0, 0])
        return super().forward(input)


class Reading(nn.Module):
    """Reads statistics that its normalization changes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.cumsum(1))
        return y * self.norm.running_mean.view(4, 1, 1)


REFUSED: list[tuple[nn.Module, str]] = [
    (normalized(momentum=None), "changes its buffer layers.1.running_mean"),
    (Summed(nn.SyncBatchNorm(4)), "changes its buffer layers.0.running_mean"),
    (Summed(Decaying(4)), "reads or writes layers.0.running_var, which a batch normalization"),
    (Summed(Replacing(4)), "changes its buffer layers.0.running_mean"),
    (Reading(), "reads or writes norm.running_mean, which a batch normalization changes"),
    (Summed(nn.InstanceNorm2d(4, track_running_stats=True)), "changes its buffer layers.0.runn"),
    (Summed(nn.BatchNorm2d(4).to(torch.bfloat16)), "part.layers.0.running_mean, which is neither"),
]


@pytest.mark.parametrize(("part", "message"), REFUSED)
def test_other_statistics_are_refused(part: nn.Module, message: str) -> None:
    net = Functional(lambda net, x: net.part(net.first(x)), first=nn.Conv2d(4, 4, 1), part=part)
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net, (torch.empty(4, 4, 5, 6),), opaque=True)
