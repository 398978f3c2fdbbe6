"""Networks that drop channels and branches: the same draws forward and backward, in any plan."""

import pytest
import torch
from torch import Tensor, nn

import tvdnn
from tests.support.running import random_batches
from tvdnn.engine import Trainer, virtualize
from tvdnn.optim import SGD
from tvdnn.trace.trace import trace

BATCH, SHAPE, CLASSES = 6, (4, 5, 5), 3
CHUNK_SIZE = 400  # bytes: a sample a section


class StochasticDepth(nn.Module):
    """Stands for torchvision's, which draws by torch."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.empty(len(x), 1, 1, 1).bernoulli_(1 - self.p)


StochasticDepth.__module__ = "torchvision.ops.stochastic_depth"


class Branched(nn.Module):
    """Residual branches that fall, and dropped channels."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        falling = [StochasticDepth(0.5, "row"), tvdnn.nn.StochasticDepth(0.4, "batch")]
        self.falling = nn.ModuleList([*falling, nn.Dropout2d(0.3)])
        self.head = nn.Linear(100, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for conv, falls in zip(self.convs, self.falling, strict=True):
            x = x + falls(torch.relu(conv(x)))
        return self.head(x.flatten(1))


def test_trains_to_the_bits_of_keep() -> None:
    batches, nets = random_batches(3, (BATCH, *SHAPE), CLASSES, seed=1), []
    for _ in range(2):
        torch.manual_seed(3)
        nets.append(Branched())
    settings = {"optimizer": SGD(lr=0.05), "chunk_size": CHUNK_SIZE}
    keep = Trainer(nets[0], batches[0][0], policy="keep", **settings)
    small = Trainer(nets[1], batches[0][0], policy="vdnn-all:m", order_seed=5, **settings)
    assert small.schedule.slab_nbytes > 0
    for x, y in batches:
        assert torch.equal(keep.step(x, y), small.step(x, y))
    for mine, theirs in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("layer", "dims"),
    [
        (nn.Dropout2d(0.5), (2, 3)),
        (tvdnn.nn.Dropout2d(0.5), (2, 3)),
        (StochasticDepth(0.5, "row"), (1, 2, 3)),
        (tvdnn.nn.StochasticDepth(0.5, "batch"), (0, 1, 2, 3)),
    ],
)
def test_gradients_fall_with_what_they_are_of(layer: nn.Module, dims: tuple[int, ...]) -> None:
    conv = nn.Conv2d(4, 4, 1, bias=False)
    nn.init.dirac_(conv.weight)
    x = torch.rand(BATCH, *SHAPE, requires_grad=True)
    net = virtualize(nn.Sequential(conv, layer), x, chunk_size=CHUNK_SIZE, dtype="fp32")
    found = set()
    for seed in range(5):
        torch.manual_seed(seed)
        y = net(x)
        (dx,) = torch.autograd.grad(y.sum(), x)
        kept = (y != 0).float().amax(dims, keepdim=True)
        found |= set(kept.unique().tolist())
        torch.testing.assert_close(y, 2 * kept * x)
        torch.testing.assert_close(dx, (2 * kept).expand_as(x))
    assert found == {0.0, 1.0}


def test_in_eval_nothing_falls() -> None:
    network = trace(Branched().eval(), (torch.empty(BATCH, *SHAPE),))
    assert [op.kind for op in network.ops].count("view") == 3
    assert "dropout_parts" not in {op.kind for op in network.ops}


def test_every_op_draws_numbers_of_its_own() -> None:
    network = trace(Branched(), (torch.empty(BATCH, *SHAPE),))
    drawing = [op for op in network.ops if op.kind == "dropout_parts"]
    assert [op.attrs["op_id"] for op in drawing] == [0, 1, 2]
    assert [op.attrs["part"] for op in drawing] == ["row", "batch", "channel"]
