"""Backward in parts: each hands over gradients that are whole, while later ones run."""

from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tvdnn import virtualize
from tvdnn.engine import virtual_steps
from tvdnn.errors import EngineError

SHAPE, CLASSES = (4, 3, 8, 8), 5
POLICIES = ["keep", "vdnn-all", "superneurons", "auto"]


class Net(nn.Module):
    """Normalizations whose weights a later part could read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.norm1 = nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.conv2, self.norm2 = nn.Conv2d(12, 12, 3, padding=1), nn.GroupNorm(3, 12)
        self.fc1, self.fc2 = nn.Linear(12 * 64, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SHAPE, generator=generator)
    return x, torch.randint(0, CLASSES, SHAPE[:1], generator=generator)


def gradients(policy: str, *, updates: bool) -> dict[str, Tensor]:
    """The gradients of a step; a hook changes each parameter as soon as it has its own."""
    net, (x, y) = Net(), batch()
    virtual = virtualize(net, x, policy=policy, chunk_size=3000)
    seen: dict[str, Tensor] = {}

    def note(name: str, param: Tensor) -> None:
        assert param.grad is not None
        seen[name] = param.grad.clone()
        if updates:
            with torch.no_grad():
                param.sub_(50.0 * param.grad)

    for name, param in net.named_parameters():
        param.register_post_accumulate_grad_hook(lambda param, name=name: note(name, param))
    functional.cross_entropy(virtual(x), y).backward()
    return seen


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As inside a DistributedDataParallel whose buckets have a few gradients each."""
    monkeypatch.setattr(virtual_steps, "bucket_nbytes", lambda: 100)


@pytest.mark.parametrize("policy", POLICIES)
def test_hooks_may_update_parameters_between_parts(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gradients(policy, updates=False)
    monkeypatch.setattr(virtual_steps, "bucket_nbytes", lambda: 100)
    found = gradients(policy, updates=True)
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        assert torch.equal(found[name], each), name


@pytest.mark.usefixtures("small_buckets")
def test_a_parameter_that_a_later_part_reads_may_not_change() -> None:
    net, (x, y) = Net(), batch()
    virtual = virtualize(net, x)

    def spoil(_: Tensor) -> None:
        with torch.no_grad():
            net.conv2.weight.add_(1.0)

    net.fc2.weight.register_post_accumulate_grad_hook(spoil)
    with pytest.raises(EngineError, match=r"parameter conv2\.weight was changed in place"):
        functional.cross_entropy(virtual(x), y).backward()


def test_a_step_does_not_keep_its_inputs() -> None:
    virtual, (x, _) = virtualize(Net(), batch()[0]), batch()
    given = ref(x)
    out = virtual(x)
    del x
    assert given() is None
    out.sum().backward()
