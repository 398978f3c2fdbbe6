"""Networks that compute with maps: torch's gradients, keep's bits, and refusals."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support.exact import Functional
from tvdnn.engine import training_graph
from tvdnn.errors import UnsupportedOpError
from tvdnn.graph import Kind
from tvdnn.trace.trace import trace

CONSTANT = torch.ones(3, 1, 1)  # made outside of a network


def calling(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return Functional(lambda net, x: function(net.conv(x)).flatten(1), conv=nn.Conv2d(3, 3, 1))


@pytest.mark.parametrize(
    "function", [lambda x: 2 * x, lambda x: -x, lambda x: x + 1, lambda x: 1 - x / 2]
)
def test_multiples_run_in_place(function: Callable[[Tensor], Tensor]) -> None:
    graphs = [
        training_graph(calling(each), torch.empty(2, 3, 6, 6)) for each in (torch.relu, function)
    ]
    maps = [[b for b in graph.buffers.values() if b.kind is Kind.MAP] for graph in graphs]
    assert len(maps[0]) == len(maps[1])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x * torch.arange(216.0).view(2, 3, 6, 6), "the first dimension is the batch"),
        (lambda x: x + torch.rand(3, 1, 1), "draws random numbers"),
        (lambda x: x + CONSTANT, "not a parameter"),
        (lambda x: x.mean(0), r"mean of \(2, 3, 6, 6\) over 0"),
        (lambda x: x.softmax(0), "softmax of .* over 0"),
    ],
)
def test_other_arithmetic_is_refused(function: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(calling(function), [torch.empty(2, 3, 6, 6)])
