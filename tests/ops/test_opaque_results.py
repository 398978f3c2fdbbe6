"""Modules by torch that make several tensors, of which the network reads the first."""

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

RTOL, ATOL = 1e-4, 1e-6  # of float32 beside float64


class Recurrent(nn.Module):
    """Columns of maps, read in turn: Shi, Bai and Yao, 2015."""

    def __init__(self, rows: nn.Module, end: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.conv, self.rows, self.head = nn.Conv2d(3, 8, 3, padding=1), rows, nn.LazyLinear(3)
        self.end = end

    def forward(self, x: Tensor) -> Tensor:
        columns = torch.relu(self.conv(x)).mean(2).transpose(1, 2)
        logits: Tensor = self.head(self.end(self.rows(columns)))
        return logits


def last_of_lstm(made: Any) -> Tensor:
    outputs, (_, _) = made
    last: Tensor = outputs[:, -1]
    return last


def mean_of_gru(made: Any) -> Tensor:
    mean: Tensor = made[0].mean(1)
    return mean


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: Recurrent(nn.LSTM(8, 8, num_layers=2, batch_first=True), last_of_lstm),
    "GRU": lambda: Recurrent(nn.GRU(8, 6, bidirectional=True, batch_first=True), mean_of_gru),
    "RNN": lambda: Recurrent(nn.RNN(8, 8, batch_first=True), mean_of_gru),
    "attention with weights": lambda: Functional(
        lambda net, x: net.attention(x, x, x)[0].mean(1),
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_first_result_is_torchs(name: str) -> None:
    net = NETWORKS[name]()
    x = torch.randn(4, 5, 8) if name.startswith("attention") else torch.randn(4, 3, 6, 7)
    net(x)  # of lazy layers
    exact = copy.deepcopy(net).double()
    exact(x.double()).square().sum().backward()
    kept: list[Tensor | None] = []
    for policy in ("keep", "vdnn-all:m"):
        mine = copy.deepcopy(net)
        virtual = virtualize(mine, x, policy=policy, opaque=True, chunk_size=600)
        virtual(x).square().sum().backward()
        found = [param.grad for param in mine.parameters()]
        for one, other in zip(found, exact.parameters(), strict=True):
            assert one is not None
            torch.testing.assert_close(one.double(), other.grad, rtol=RTOL, atol=ATOL)
        kept = kept or found
        assert all(torch.equal(one, other) for one, other in zip(found, kept, strict=True))
        virtual.close()


USES: list[Callable[[Any], Any]] = [
    lambda made: made[0].mean(1) + made[1][0],
    lambda made: made[1][0],
    lambda made: made[1].mean(0),
    lambda made: torch.cat([made[0].mean(1), made[1]], 1),
    lambda made: torch.stack([made[0].mean(1), made[1]]).sum(0),
    lambda made: made[0].mean(1) * (1 if made[1] else 2),
    lambda made: next(made[0].mean(1) for _ in made[1]),
]


@pytest.mark.parametrize("use", USES)
def test_a_further_result_that_is_read_is_refused(use: Callable[[Any], Any]) -> None:
    net = Functional(lambda net, x: use(net.rows(x)), rows=nn.GRU(8, 8, batch_first=True))
    message = "a further result of GRU, which runs by torch .one hands on one tensor."
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net, (torch.empty(4, 5, 8),), opaque=True)


def test_a_further_result_is_not_returned() -> None:
    net = Functional(lambda net, x: net.rows(x), rows=nn.GRU(8, 8, batch_first=True))
    with pytest.raises(UnsupportedOpError, match="the network returns UnreadResult"):
        trace(net, (torch.empty(4, 5, 8),), opaque=True)
