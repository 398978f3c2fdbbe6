"""Convolutions whose filters are buffers: gradients as torch's, the bits of keep, refusals."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support import twins
from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn import virtualize
from tvdnn.errors import InputError
from tvdnn.trace.trace import trace

BATCH, SHAPE, CLASSES = 5, (3, 8, 10), 4
CHUNK_SIZE = 900  # bytes


class Filters(nn.Module):
    """Filters of every kind in buffers, between convolutions that train."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 4, 1)
        self.head = nn.Linear(4 * 2 * 3, CLASSES)
        self.register_buffer("full", torch.randn(6, 6, 3, 3) / 8)
        self.register_buffer("shift", torch.randn(6))
        self.register_buffer("grouped", torch.randn(6, 2, 3, 3) / 4)
        self.register_buffer("lines", torch.randn(6, 6, 3) / 4)
        self.register_buffer("blur", (torch.ones(1, 1, 3, 3) / 9).expand(6, 1, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x))
        x = functional.relu(functional.conv2d(x, self.full, self.shift, padding=1))
        x = functional.conv2d(x, self.grouped, padding="same", groups=3)
        x = functional.conv1d(x.flatten(2), self.lines, padding=1).view_as(x)
        for _ in range(2):
            x = functional.pad(x, (1, 1, 1, 1), mode="reflect")
            x = functional.conv2d(x, self.blur, stride=2, groups=6)
        return self.head(self.second(x).flatten(1))


def seeded(make: Callable[[], nn.Module] = Filters) -> nn.Module:
    torch.manual_seed(3)
    return make()


def test_gradients_are_torchs() -> None:
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=2)
    assert_gradients_are_torchs(
        seeded(), batch, policy="keep", chunk_size=CHUNK_SIZE, order_seed=1, atol=1e-6
    )


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "tf32"])
def test_offloading_changes_no_bit_and_no_buffer(dtype: str) -> None:
    batches = random_batches(2, (BATCH, *SHAPE), CLASSES, seed=1)
    runs = []
    for policy in ("keep", "vdnn-all:m", "tvdnn-heuristic"):
        net = seeded()
        before = [each.clone() for each in net.buffers()]
        settings = {"chunk_size": CHUNK_SIZE, "dtype": dtype}
        runs.append(twins.trained(net, batches, policy=policy, **settings))
        assert all(map(torch.equal, net.buffers(), before))
    assert all(torch.equal(*pair) for run in runs[1:] for pair in zip(runs[0], run, strict=True))


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "tf32"])
def test_buffers_in_bfloat16_count_as_their_values(dtype: str, kernels: str) -> None:
    x = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(4))
    results = []
    for as_float in (False, True):
        net = seeded().bfloat16()
        if as_float:
            for name, buffer in list(net.named_buffers()):
                setattr(net, name, buffer.float())
        results.append(virtualize(net, x, policy="keep", dtype=dtype, kernels=kernels)(x))
    assert torch.equal(*results)


class Held(nn.Module):
    """A convolution that trains before one whose filter is what `hold` makes of its weight."""

    def __init__(self, hold: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.register_buffer("filter", hold(self.conv.weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.conv2d(self.conv(x), self.filter))


def test_a_buffer_that_changes_with_a_trained_parameter_is_refused() -> None:
    net = Held(lambda weight: weight.detach())
    with pytest.raises(InputError, match=re.escape("shares the storage of the parameter conv.w")):
        trace(net, [torch.empty(2, *SHAPE)])
    trace(net, [torch.empty(2, *SHAPE)], graded=False)
    net.conv.weight.requires_grad_(False)
    trace(net, [torch.empty(2, *SHAPE)])


def test_a_buffer_that_requires_a_gradient_is_refused() -> None:
    net = Held(lambda weight: weight.detach().clone().requires_grad_())
    with pytest.raises(InputError, match="buffer filter requires a gradient"):
        trace(net, [torch.empty(2, *SHAPE)])
