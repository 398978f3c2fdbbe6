"""Networks that compute with maps: gradients as torch's, the bits of keep, what is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn.engine import Trainer, training_graph
from tvdnn.errors import UnsupportedOpError
from tvdnn.graph import Kind
from tvdnn.optim import SGD
from tvdnn.trace.trace import trace

BATCH, SHAPE, CLASSES = 5, (3, 6, 6), 4
CHUNK_SIZE = 600  # bytes: a sample a section


class Excited(nn.Module):
    """Squeeze and excitation (Hu et al. 2018), and every other way to compute with maps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.squeeze, self.excite = nn.Conv2d(6, 2, 1), nn.Conv2d(2, 6, 1)
        self.shift, self.head = nn.Conv2d(6, 6, 1), nn.Linear(6 * 36, CLASSES)
        self.scale, self.bias = (nn.Parameter(torch.rand(6, 1, 1)) for _ in range(2))
        self.weights, self.levels = nn.Linear(6, CLASSES), nn.Parameter(torch.rand(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x * 0.5 - 0.1)
        pooled = functional.adaptive_avg_pool2d(x, 1)
        gates = torch.sigmoid(self.excite(torch.relu(self.squeeze(pooled))))
        x = gates * x + self.shift(pooled)
        y = self.second(x)
        x = torch.sub(y, x, alpha=0.3) * torch.tanh(y)
        x = x.mul_(2).add_(1)
        x = x - (-x / 3) - y * y
        x = self.bias + torch.softmax(self.scale * (1 - x), 1)
        weights = functional.log_softmax(self.weights(x.mean([2, 3])), 1)
        pooled = x.mean((-2, -1), keepdim=True).squeeze(-1).squeeze(-1)
        pooled = torch.cat([y.mean([2, 3]), pooled], 1)[:, 3:9]
        return self.head(x.flatten(1)) * self.levels + weights * self.weights(pooled)


def make_net() -> nn.Module:
    torch.manual_seed(3)
    return Excited()


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "tf32"])
def test_trains_to_the_bits_of_keep(dtype: str) -> None:
    batches = random_batches(2, (BATCH, *SHAPE), CLASSES, seed=1)
    nets = [make_net(), make_net()]
    settings = {"optimizer": SGD(lr=0.05), "chunk_size": CHUNK_SIZE, "dtype": dtype}
    keep = Trainer(nets[0], batches[0][0], policy="keep", **settings)
    small = Trainer(nets[1], batches[0][0], policy="vdnn-all:m", order_seed=5, **settings)
    assert small.schedule.slab_nbytes > 0
    for x, y in batches:
        assert torch.equal(keep.step(x, y), small.step(x, y))
    for mine, theirs in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_gradients_are_torchs() -> None:
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=2)
    assert_gradients_are_torchs(
        make_net(), batch, policy="vdnn-all:m", chunk_size=CHUNK_SIZE, atol=1e-6
    )


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 3, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.conv(x)).flatten(1)


@pytest.mark.parametrize(
    "function", [lambda x: 2 * x, lambda x: -x, lambda x: x + 1, lambda x: 1 - x / 2]
)
def test_multiples_run_in_place(function: Callable[[Tensor], Tensor]) -> None:
    graphs = [
        training_graph(Calls(each), torch.empty(2, *SHAPE)) for each in (torch.relu, function)
    ]
    maps = [[b for b in graph.buffers.values() if b.kind is Kind.MAP] for graph in graphs]
    assert len(maps[0]) == len(maps[1])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x * torch.ones(2, 3, 6, 6), "does not come from the inputs"),
        (lambda x: x + torch.ones(3, 1, 1), "not a parameter"),
        (lambda x: x.mean(0), r"mean of \(2, 3, 6, 6\) over 0"),
        (lambda x: x.softmax(0), "softmax of .* over 0"),
    ],
)
def test_other_arithmetic_is_refused(function: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(Calls(function), [torch.empty(2, *SHAPE)])
