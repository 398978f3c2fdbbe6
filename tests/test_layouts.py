"""Inputs in channels_last: as torch computes, or refused where a write tells of the layout."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.beside_torch import assert_trains_as_torch
from tvdnn.engine import Trainer, virtualize
from tvdnn.errors import UnsupportedOpError

SHAPE = (3, 4, 6, 5)
Way = Callable[[nn.Module, Tensor], Tensor]


class Net(nn.Module):
    def __init__(self, way: Way) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(4, 4, 1)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def flattened_first(net: nn.Module, x: Tensor) -> Tensor:
    h = net.conv(x)
    flat = h.flatten(1)
    h *= 2
    return h + flat.view(h.shape)


def written_through_a_reshape(net: nn.Module, x: Tensor) -> Tensor:
    h = net.conv(x)
    h.reshape(3, 4, 30).add_(1)
    return h * 2


def permuted_first(net: nn.Module, x: Tensor) -> Tensor:
    h = net.conv(x)
    rows = h.permute(0, 2, 3, 1).contiguous()
    rows.mul_(2)
    return h + rows.permute(0, 3, 1, 2)


def doubled_alone(net: nn.Module, x: Tensor) -> Tensor:
    return net.conv(x).flatten(1).mul_(2)


TELLING = [flattened_first, written_through_a_reshape, permuted_first]


def channels_last() -> Tensor:
    return torch.randn(SHAPE).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("way", [*TELLING, doubled_alone])
def test_contiguous_inputs_are_computed_as_by_torch(way: Way) -> None:
    assert_trains_as_torch(Net(way), torch.randn(SHAPE))


@pytest.mark.parametrize("way", TELLING)
def test_writes_that_tell_of_the_layout_are_refused(way: Way) -> None:
    virtual = virtualize(Net(way), torch.randn(SHAPE))
    with pytest.raises(UnsupportedOpError, match=r"reads at \S*test_layouts.py:\d+ .*contiguous"):
        virtual(channels_last())


def test_a_trainer_refuses_them_too() -> None:
    trainer = Trainer(Net(flattened_first), torch.randn(SHAPE), loss=nn.MSELoss())
    with pytest.raises(UnsupportedOpError, match="pass contiguous inputs"):
        trainer.step(channels_last(), torch.randn(SHAPE))


def test_writes_to_what_nothing_else_reads_take_any_layout() -> None:
    assert_trains_as_torch(Net(doubled_alone), channels_last())
