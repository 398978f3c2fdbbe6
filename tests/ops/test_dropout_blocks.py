"""Networks that drop channels and branches: the same draws forward and backward, in any plan."""

import pytest
import torch
from torch import nn

import tvdnn
from tests.networks.dropout import Branched, ByHand, StochasticDepth
from tvdnn.engine import virtualize
from tvdnn.trace.trace import trace

BATCH, SHAPE, CLASSES = 6, (4, 5, 5), 3
CHUNK_SIZE = 400  # bytes: a sample a section


@pytest.mark.parametrize(
    ("layer", "dims"),
    [
        (nn.Dropout2d(0.5), (2, 3)),
        (tvdnn.nn.Dropout2d(0.5), (2, 3)),
        (StochasticDepth(0.5, "row"), (1, 2, 3)),
        (tvdnn.nn.StochasticDepth(0.5, "batch"), (0, 1, 2, 3)),
        (ByHand(0.5), (1, 2, 3)),
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
    assert [op.attrs["op_id"] for op in drawing] == [0, 1, 2, 3]
    assert [op.attrs["part"] for op in drawing] == ["row", "batch", "row", "channel"]
