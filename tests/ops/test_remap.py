"""Networks that pad, slice, roll, join and rearrange maps: keep's bits, gradients as torch's."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.remap import Returns
from tests.support.exact import Functional
from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

BATCH, SHAPE, CLASSES = 5, (3, 6, 6), 4
CHUNK_SIZE = 600  # bytes: a sample a section
pad = functional.pad
Way = Callable[[Tensor], Tensor]


def first_batch() -> tuple[Tensor, Tensor]:
    return random_batches(1, (BATCH, *SHAPE), CLASSES, seed=6)[0]


def kinds(net: nn.Module) -> list[str]:
    """The ops behind the first, but views."""
    ops = trace(net, [torch.empty(2, *SHAPE)]).ops
    return [op.kind for op in ops[1:] if op.kind not in ("view", "flatten", "linear")]


class Padded(nn.Module):
    """A convolution of `way` of another one's map. With `beside` that map is read too."""

    def __init__(self, way: Way, *, beside: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 5, padding=1)
        self.way, self.beside = way, beside

    def forward(self, x: Tensor) -> Tensor:
        padded = self.way(self.first(x))
        y: Tensor = self.second(padded)
        return (y + padded[:, :, 1:-1, 1:-1] if self.beside else y).flatten(1)


def test_a_convolution_pads_with_zeros_itself() -> None:
    assert kinds(Padded(lambda x: pad(x, (1, 1, 0, 0)))) == ["conv2d"]
    assert kinds(Padded(lambda x: pad(x, (3, 3, 3, 3)))) == ["conv2d"]
    assert kinds(Padded(lambda x: pad(x, (4, 4, 4, 4)))) == ["remap", "conv2d"]
    assert kinds(Padded(lambda x: pad(x, (0, 1, 0, 1)))) == ["remap", "conv2d"]
    assert kinds(Padded(lambda x: pad(x, (1, 1, 1, 1), value=1.0))) == [
        "remap",
        "conv2d",
    ]
    assert kinds(Padded(lambda x: pad(x, (1, 1, 0, 0), mode="reflect"))) == [
        "remap",
        "conv2d",
    ]


def test_what_changes_nothing_is_a_view() -> None:
    assert kinds(Returns(lambda x: pad(x, (0, 0)).roll(6, 2).repeat(1, 1, 1, 1)[:, :, :6])) == []


def test_a_pad_that_a_convolution_takes_over_is_still_there_for_others() -> None:
    net = Padded(lambda x: pad(x, (1, 1, 1, 1)), beside=True)
    assert sorted(kinds(net)) == ["add", "conv2d", "remap", "remap"]
    assert_gradients_are_torchs(net, first_batch())


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda x: x.roll(1), "roll of .* as one row"),
        (lambda x: x.roll(1, 0), "roll of .* along the batch"),
        (lambda x: x.flip(0), "flip of .* along the batch"),
        (lambda x: x.repeat(2, 1, 1, 1), "repeat of .* along the batch"),
        (lambda x: x.repeat(1, 1, 1, 1, 1), r"repeat of .* \(it takes as many dimensions\)"),
        (lambda x: x.reshape(-1, 36), "reshape of .* .the batch must stay"),
    ],
)
def test_what_moves_samples_is_refused(way: Way, message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(Functional(lambda _, x: way(x)), [torch.empty(2, *SHAPE)])
