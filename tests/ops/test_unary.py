"""Networks of elementwise functions and PReLU: gradients as torch's, the bits of keep."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support import twins
from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

pytestmark = pytest.mark.usefixtures("few_trials")

BATCH, SHAPE, CLASSES = 5, (4, 4, 4), 4
CHUNK_SIZE = 300  # bytes: a sample a section
LAYERS: list[Callable[[], nn.Module]] = [
    lambda: nn.Mish(inplace=True),
    lambda: nn.Softplus(beta=2, threshold=1),
    lambda: nn.CELU(0.5, inplace=True),
    lambda: nn.SELU(inplace=True),
    nn.LogSigmoid,
    nn.Softsign,
    lambda: nn.Hardtanh(-0.3, 0.4, inplace=True),
    lambda: nn.Threshold(0.1, -0.2, inplace=True),
    nn.PReLU,
    lambda: nn.PReLU(4, init=0.1),
    nn.Hardtanh,
]


class Functions(nn.Module):
    """Every function, method and in-place form that takes a map and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.wide = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 8, 1)
        self.slopes = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.prelu(self.conv(x), self.slopes)
        size = abs(y).add_(0.5)
        roots = size.sqrt() + torch.rsqrt(size) + torch.log(size)
        powers = y.square() + y**3 - torch.pow(size, 1.5) + size**-1 + 2 / size
        y = torch.clamp(roots, -1, 1.5) + powers.clip(max=2) + torch.exp(-size).reciprocal()
        y = functional.glu(self.wide(functional.threshold(y, 0.3, 0.2)), 1)
        return y.clamp_min(-0.2).clamp_(max=3).sigmoid().pow(2).exp_()


def make_net() -> nn.Sequential:
    """Each layer behind a convolution, then the functions."""
    torch.manual_seed(4)
    blocks = [layer for make in LAYERS for layer in (nn.Conv2d(4, 4, 1), make())]
    return nn.Sequential(*blocks, Functions(), nn.Flatten(), nn.Linear(64, CLASSES))


def make_small_net() -> nn.Sequential:
    torch.manual_seed(4)
    layers = (nn.Conv2d(4, 4, 1), nn.Mish(), nn.PReLU(4))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, CLASSES))


def assert_trains_to_the_same_bits(
    make: Callable[[], nn.Module], dtype: str, **options: Any
) -> None:
    """Under these options as under keep."""
    batches = random_batches(2, (BATCH, *SHAPE), CLASSES, seed=5)
    settings = {"chunk_size": CHUNK_SIZE, "dtype": dtype, **options}
    kept = twins.trained(make(), batches, **{**settings, "policy": "keep", "budget": None})
    moved = twins.trained(make(), batches, **settings)
    assert all(torch.isfinite(value).all() for value in kept)
    assert all(torch.equal(one, other) for one, other in zip(kept, moved, strict=True))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_offloading_changes_no_bit(dtype: str) -> None:
    assert_trains_to_the_same_bits(make_net, dtype, policy="vdnn-all:m")


def test_the_smallest_budget_changes_no_bit() -> None:
    assert_trains_to_the_same_bits(
        make_small_net, "fp32", policy="auto", budget="min", chunk_size=1200
    )


@pytest.mark.parametrize("policy", ["keep", "vdnn-all:m"])
def test_gradients_are_torchs(policy: str) -> None:
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=6)
    assert_gradients_are_torchs(
        make_net(), batch, policy=policy, chunk_size=CHUNK_SIZE, order_seed=1
    )


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(4, 4, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.conv(x))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: (-2) ** x, "pow of -2 with a tensor as exponent"),
        (lambda x: x.pow(x), "pow of a tensor with a tensor as exponent"),
        (lambda x: torch.clamp(x, x), "clamp with a tensor where it takes a number"),
        (lambda x: functional.prelu(x, torch.ones(4)), "prelu with a weight .* not a parameter"),
    ],
)
def test_what_hangs_on_tensors_is_refused(
    function: Callable[[Tensor], Tensor], message: str
) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(Calls(function), [torch.empty(2, *SHAPE)])
