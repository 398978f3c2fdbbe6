"""Modules by torch that make several tensors, of which the network reads the first."""

import contextlib
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


class Called(nn.Module):
    """A module of the user's that calls what tvdnn has not."""

    def __init__(self, way: Callable[..., Any]) -> None:
        super().__init__()
        self.way = way

    def forward(self, *maps: Tensor) -> Any:
        return self.way(*maps)


def own_input_first(first: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    sums = other.cumsum(1)
    return first.add_(sums), sums


def by_gradient(first: Tensor, other: Tensor) -> Tensor:
    return first.cumsum(1) * (2.0 if other.requires_grad else 1.0)


WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "its input": (own_input_first, lambda part, h: part(h, h.detach().sin())[0].relu()),
    "a tuple of two": (
        own_input_first,
        lambda part, h: (r := part(h, h.detach().sin()))[0] * len(r),
    ),
    "twice the same": (lambda x: 2 * (x.cumsum(1),), lambda part, h: part(h)[1].relu()),
    "an input without a gradient": (by_gradient, lambda part, h: part(h, h.detach())),
    "one map twice, written": (
        lambda one, two: (one.add_(1), two.cumsum(1))[1],
        lambda part, h: part(h, h),
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_modules_of_other_kinds_are_torchs(name: str) -> None:
    way, use = WAYS[name]
    parts = {"first": nn.Linear(8, 8), "part": Called(way)}
    net, x = Functional(lambda net, x: use(net.part, net.first(x)), **parts), torch.randn(4, 5, 8)
    exact = copy.deepcopy(net).double()
    wanted = exact(x.double())
    wanted.square().sum().backward()
    virtual = virtualize(net, x, opaque=True)
    found = virtual(x)
    found.square().sum().backward()
    torch.testing.assert_close(found.double(), wanted, rtol=RTOL, atol=ATOL)
    for mine, theirs in zip(net.parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=RTOL, atol=1e-4)
    virtual.close()


WRITES = Called(lambda one, two: (one.add_(1), two.cumsum(1))[1])
NESTED = Called(lambda x: ((x.cumsum(1), x), x))
LISTED = Called(lambda x, y: [x.cumsum(1), y])
REFUSED: list[tuple[nn.Module, Callable[..., Any], str]] = [
    (WRITES, lambda part, h: part(h, h.flatten(1)), "writes one of two maps that share memory"),
    (WRITES, lambda part, h: part(h, h[:, :2]), "writes one of two maps that share memory"),
    (NESTED, lambda part, h: part(h)[0][0].relu(), "makes no tensor whose shape is known"),
    (LISTED, lambda part, h: part(h, h.sin())[0].relu(), "makes no tensor whose shape is known"),
]


@pytest.mark.parametrize(("part", "use", "message"), REFUSED)
def test_other_modules_are_refused(part: nn.Module, use: Callable[..., Any], message: str) -> None:
    net = Functional(lambda net, x: use(net.part, net.first(x)), first=nn.Linear(8, 8), part=part)
    with pytest.raises(UnsupportedOpError, match=f"part: Called that {message} at"):
        trace(net, (torch.empty(4, 5, 8),), opaque=True)


def kept_where_it_fails(made: Any) -> Tensor:
    outputs, state = made
    with contextlib.suppress(ValueError):  # the tracer's errors are such
        outputs = outputs + state[0][:, None]
    total: Tensor = outputs.mean(1)
    return total


USES: list[Callable[[Any], Any]] = [
    lambda made: made[0].mean(1) + made[1][0],
    lambda made: made[1][0],
    lambda made: made[1].mean(0),
    lambda made: torch.cat([made[0].mean(1), made[1]], 1),
    lambda made: torch.stack([made[0].mean(1), made[1]]).sum(0),
    lambda made: made[0].mean(1) * (1 if made[1] else 2),
    lambda made: next(made[0].mean(1) for _ in made[1]),
    lambda made: sum(each.mean(1) for each in made if isinstance(each, Tensor)),
    lambda made: made[0].mean(1) * len(f"{made[1]}"),
    lambda made: made[0].mean(1) * (made[1] == 0),
    lambda made: setattr(made[1], "kept", True) or made[0].mean(1),
    kept_where_it_fails,
    lambda made: made,
]


@pytest.mark.parametrize("use", USES)
def test_a_further_result_that_is_read_is_refused(use: Callable[[Any], Any]) -> None:
    net = Functional(lambda net, x: use(net.rows(x)), rows=nn.GRU(8, 8, batch_first=True))
    message = "a further result of GRU, which runs by torch .one hands on one tensor."
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net, (torch.empty(4, 5, 8),), opaque=True)


def test_a_further_result_may_be_asked_whether_it_is_there() -> None:
    net = Functional(
        lambda net, x: (r := net.rows(x))[0] * (2 if r[1] is not None else 1),
        rows=nn.GRU(8, 8, batch_first=True),
    )
    kinds = [op.kind for op in trace(net, (torch.empty(4, 5, 8),), opaque=True).ops]
    assert kinds == ["opaque", "affine"]
