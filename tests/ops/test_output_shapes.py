"""Networks that return one number a sample, or maps of five dimensions and more."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tvdnn
from tests.support.beside_torch import assert_trains_as_torch
from tests.support.exact import Functional
from tvdnn.errors import InputError, UnsupportedOpError
from tvdnn.trace.trace import trace

BATCH = 3
Way = Callable[[Tensor], Tensor]


class Returns(nn.Module):
    """Returns `way` of a map of eight channels, and the map doubled."""

    def __init__(self, way: Way, side: int = 6) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.way = way
        self.input = torch.randn(BATCH, 4, side, side)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x).tanh()
        return self.way(y), y * 2


class One(Returns):
    """The first of these outputs alone."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


def numbers(y: Tensor) -> Tensor:
    return y.mean((2, 3))


WAYS: dict[str, Way] = {
    "anchors last": lambda y: y.view(BATCH, 2, 4, 6, 6).permute(0, 1, 3, 4, 2).contiguous(),
    "anchors": lambda y: y.view(BATCH, 2, 4, 6, 6),
    "blocks": lambda y: y.view(BATCH, 8, 2, 3, 2, 3).permute(0, 2, 4, 1, 3, 5),
    "a dimension more": lambda y: y[:, :, None],
    "mean": lambda y: y.mean((1, 2, 3)),
    "maximum": lambda y: y.amax((1, 2, 3)),
    "norm": lambda y: y.flatten(1).norm(dim=1),
    "squeezed": lambda y: numbers(y).sum(1, keepdim=True).squeeze(1).sigmoid(),
    "sums": lambda y: numbers(y).sum(1) * y.var((1, 2, 3)) + 1,
    "product of maps": lambda y: (numbers(y) * y.amax((2, 3))).sum(-1),
    "stacked": lambda y: torch.stack([numbers(y).sum(1), y.amax((1, 2, 3))], 1),
    "scaled": lambda y: y * numbers(y).sum(1).view(-1, 1, 1, 1),
}


@pytest.mark.parametrize("name", WAYS)
def test_any_shape_may_be_returned(name: str) -> None:
    torch.manual_seed(0)
    net = Returns(WAYS[name])
    assert_trains_as_torch(net, net.input, policies=("keep", "vdnn-all", "auto"))


def test_one_number_a_sample_is_multiplied_by_a_parameter() -> None:
    torch.manual_seed(0)
    net = Functional(
        lambda net, x: net.conv(x).view(-1, 1).squeeze(1) * net.scale + net.shift,
        conv=nn.Conv2d(4, 1, 6), scale=torch.ones(1), shift=torch.zeros(()),
    )  # fmt: skip
    assert_trains_as_torch(net, torch.randn(BATCH, 4, 6, 6))


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda y: y.permute(1, 0, 2, 3), "permute of the batch"),
        (lambda y: y.flatten(), "the batch must stay as it is"),
        (lambda y: y.mean(), "over None"),
    ],
)
def test_outputs_without_a_batch_are_refused(way: Way, message: str) -> None:
    net = Returns(way)
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net, [net.input])


@pytest.mark.parametrize(
    ("way", "loss", "shape"),
    [
        ("mean", nn.BCEWithLogitsLoss(), (BATCH,)),
        ("sums", nn.MSELoss(), (BATCH,)),
        ("anchors last", nn.MSELoss(), (BATCH, 2, 6, 6, 4)),
        ("blocks", nn.BCEWithLogitsLoss(), (BATCH, 2, 2, 8, 3, 3)),
    ],
)
def test_trainers_take_losses_of_them(way: str, loss: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    net = One(WAYS[way])
    exact = One(WAYS[way]).double()
    exact.load_state_dict(net.state_dict())
    target = torch.rand(shape)
    sgd = torch.optim.SGD(exact.parameters(), lr=0.1)
    trainer = tvdnn.Trainer(net, net.input, loss=loss, optimizer=tvdnn.optim.SGD(lr=0.1))
    for _ in range(3):
        mine = trainer.step(net.input, target)
        expected = loss(exact(net.input.double()), target.double())
        sgd.zero_grad()
        expected.backward()
        sgd.step()
        assert float(mine) == pytest.approx(float(expected.detach()), rel=1e-5)
    for one, other in zip(net.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-6)


def test_cross_entropy_of_one_number_a_sample_is_refused() -> None:
    net = One(WAYS["mean"])
    with pytest.raises(InputError, match=r"cross_entropy takes \[N, C\] or maps"):
        tvdnn.Trainer(net, net.input, loss=nn.CrossEntropyLoss())
