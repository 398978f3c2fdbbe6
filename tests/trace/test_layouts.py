"""Inputs in channels_last: as torch computes, or refused where a write tells of the layout."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support.beside_torch import assert_trains_as_torch
from tests.support.exact import Functional
from tvdnn.engine import Trainer, virtualize
from tvdnn.errors import UnsupportedOpError

SHAPE = (3, 4, 6, 5)
Way = Callable[[nn.Module, Tensor], Tensor]


def net_of(way: Way) -> nn.Module:
    torch.manual_seed(0)
    return Functional(way, conv=nn.Conv2d(4, 4, 1))


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
    assert_trains_as_torch(net_of(way), torch.randn(SHAPE))


@pytest.mark.parametrize("way", TELLING)
def test_writes_that_tell_of_the_layout_are_refused(way: Way) -> None:
    virtual = virtualize(net_of(way), torch.randn(SHAPE))
    with pytest.raises(UnsupportedOpError, match=r"reads at \S*test_layouts.py:\d+ .*contiguous"):
        virtual(channels_last())


def test_a_trainer_refuses_them_too() -> None:
    trainer = Trainer(net_of(flattened_first), torch.randn(SHAPE), loss=nn.MSELoss())
    with pytest.raises(UnsupportedOpError, match="pass contiguous inputs"):
        trainer.step(channels_last(), torch.randn(SHAPE))


def test_writes_to_what_nothing_else_reads_take_any_layout() -> None:
    assert_trains_as_torch(net_of(doubled_alone), channels_last())


def stands_alone(net: nn.Module, x: Tensor) -> bool:
    return x.storage_offset() == 0 and not x._is_view() and x._base is None


ASKED: dict[str, tuple[Callable[[nn.Module, Tensor], bool], str]] = {
    "strides": (lambda net, x: x.stride() == (120, 30, 5, 1), "channels_last"),
    "one stride": (lambda net, x: net.conv(x).stride(1) == 30, "channels_last"),
    "contiguous": (lambda net, x: net.conv(x).is_contiguous(), "channels_last"),
    "channels_last": (
        lambda net, x: not x.is_contiguous(memory_format=torch.channels_last),
        "channels_last",
    ),
    "a view": (lambda net, x: net.conv(x).flatten(1)._is_view(), "channels_last"),
    "alone": (stands_alone, "a part of a tensor"),
    "offset": (lambda net, x: x.storage_offset() == 0, "a part of a tensor"),
    "base": (lambda net, x: x._base is None, "a part of a tensor"),
    "version": (lambda net, x: x._version == 0, "written"),
    "gradient": (lambda net, x: x.grad is None, "with a gradient"),
    "leaf": (lambda net, x: x.is_leaf, "computed"),
    "grad_fn": (lambda net, x: x.grad_fn is None, "computed"),
}


def with_gradient() -> Tensor:
    x = torch.randn(SHAPE).requires_grad_()
    x.grad = torch.ones_like(x)
    return x


INPUTS: dict[str, Callable[[], Tensor]] = {
    "channels_last": channels_last,
    "a part of a tensor": lambda: torch.cat([torch.randn(SHAPE), torch.randn(SHAPE)])[3:],
    "written": lambda: torch.zeros(SHAPE).uniform_(),
    "with a gradient": with_gradient,
    "computed": lambda: torch.randn(SHAPE).requires_grad_() * 2,
}


@pytest.mark.parametrize(("asks", "given"), ASKED.values(), ids=ASKED.keys())
def test_what_a_forward_asks_of_its_inputs_holds_or_is_refused(
    asks: Callable[[nn.Module, Tensor], bool], given: str
) -> None:
    def way(net: nn.Module, x: Tensor) -> Tensor:
        return net.conv(x) if asks(net, x) else -net.conv(x)

    assert_trains_as_torch(net_of(way), torch.zeros(SHAPE) + torch.rand(SHAPE))
    virtual = virtualize(net_of(way), torch.randn(SHAPE))
    with pytest.raises(UnsupportedOpError, match=r"asks for \S+ of its maps at \S*:\d+.*; pass"):
        virtual(INPUTS[given]())


def test_whether_an_input_requires_a_gradient_is_not_told_without_one() -> None:
    net = net_of(lambda net, x: net.conv(x) if x.requires_grad else -net.conv(x))
    x = torch.randn(SHAPE).requires_grad_()
    virtual = virtualize(net, torch.randn(SHAPE))
    torch.testing.assert_close(virtual(x), net(x))
    with torch.no_grad(), pytest.raises(UnsupportedOpError, match="asks for requires_grad"):
        virtual(x)


def test_a_trainer_tells_no_layout_either() -> None:
    net = net_of(lambda net, x: net.conv(x) if x.is_contiguous() else -net.conv(x))
    trainer = Trainer(net, torch.randn(SHAPE), loss=nn.MSELoss())
    with pytest.raises(UnsupportedOpError, match="asks for strides"):
        trainer.step(channels_last(), torch.randn(SHAPE))
