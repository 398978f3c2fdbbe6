"""In-place operations: all aliases of a tensor show a write to it, as in torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.beside_torch import assert_trains_as_torch
from tests.support.exact import Functional
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

Way = Callable[[Tensor, Tensor], Any]


class Net(nn.Module):
    """Returns `way` of two maps."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.way = way

    def forward(self, x: Tensor) -> Any:
        return self.way(self.a(x), self.b(x))


def whole(h: Tensor, y: Tensor) -> Tensor:
    alias = h
    h += y
    return alias * 2 + h


def product(h: Tensor, y: Tensor) -> Tensor:
    alias = h.view(h.shape)
    h *= 2
    h -= y
    h /= 4
    return torch.cat([alias, h.neg_()], 1)


def result_discarded(h: Tensor, y: Tensor) -> Tensor:
    h.add_(y)
    functional.relu(h, inplace=True)
    functional.leaky_relu(y, 0.3, inplace=True)
    return h + y


def read_through_a_view(h: Tensor, y: Tensor) -> Tensor:
    flat = h.view(h.size(0), -1)
    h.add_(y).relu_()
    return flat + y.flatten(1)


def written_through_views(h: Tensor, y: Tensor) -> Tensor:
    last = h.permute(0, 2, 3, 1)
    flat = h.view(3, 8, 6, 5)
    last.add_(1)
    flat.mul_(3)
    last -= 2
    return h * y + flat.view(h.shape)


def range_of_channels(h: Tensor, y: Tensor) -> Tensor:
    h[:, 2:5] += y[:, :3]
    h[:, :4] *= 2
    return h + y


def part_read_before_and_after(h: Tensor, y: Tensor) -> Tensor:
    part = h[:, 2:6]
    before = part * 1
    h[:, 4:].add_(y[:, 4:])
    return torch.cat([before, part, h], 1)


def assigned(h: Tensor, y: Tensor) -> Tensor:
    h[:, 1:3] = y[:, :2]
    y[:, 4:].copy_(h[:, :4])
    return h * 1.5 + y


def rows_and_columns(h: Tensor, y: Tensor) -> Tensor:
    h[:, :, 1:3] += y[:, :, :2]
    h[:, 2:4, :2, 1:] *= 2
    return h


def one_channel(h: Tensor, y: Tensor) -> Tensor:
    h[:, 3] = y[:, 1]
    return h


def parts_of_a_split(h: Tensor, y: Tensor) -> Tensor:
    h = h * 1
    first, second = h.narrow(1, 0, 4), h.narrow(1, 4, 4)
    first += second
    second *= 2
    return torch.cat([h, first], 1)


def view_of_a_view(h: Tensor, y: Tensor) -> Tensor:
    inner = h[:, 2:8][:, 1:3]
    h.mul_(2)
    inner.add_(y[:, :2])
    return h + inner.repeat(1, 4, 1, 1)


def the_same_twice(h: Tensor, y: Tensor) -> Tensor:
    h += h
    return h * y


def read_in_between(h: Tensor, y: Tensor) -> Tensor:
    one = h + 0
    h += y
    two = h + 0
    h *= 2
    return one * two + h


def returned_by_the_old_name(h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    functional.dropout(h, 0.0, inplace=True)
    h2 = h.squeeze(-1)
    h2.add_(y)
    return h, h2


def out_of_gradients(h: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        mask = h.sigmoid()
        alias = mask[:, :4]
        torch.add(mask, y, out=mask)
        alias *= 2
    return h * mask


WAYS = [
    whole,
    product,
    result_discarded,
    read_through_a_view,
    written_through_views,
    range_of_channels,
    part_read_before_and_after,
    assigned,
    rows_and_columns,
    one_channel,
    parts_of_a_split,
    view_of_a_view,
    the_same_twice,
    read_in_between,
    returned_by_the_old_name,
    out_of_gradients,
]


@pytest.mark.parametrize("way", WAYS)
def test_aliases_show_what_is_written(way: Way) -> None:
    torch.manual_seed(0)
    assert_trains_as_torch(Net(way), torch.randn(3, 4, 6, 5))


def by_a_mask(h: Tensor, y: Tensor) -> Tensor:
    h[y > 0] = 0
    return h


def filled(h: Tensor, y: Tensor) -> Tensor:
    h[:, :2] = 0
    return h


def by_steps(h: Tensor, y: Tensor) -> Tensor:
    h[:, ::2] += 1
    return h


def rearranged(h: Tensor, y: Tensor) -> Tensor:
    h.transpose_(2, 3)
    return h


def into_a_constant(h: Tensor, y: Tensor) -> Tensor:
    kept = torch.zeros(3, 8, 6, 5)
    kept[:, :4] = h[:, :4]
    return kept + y


def forgotten(h: Tensor, y: Tensor) -> Tensor:
    h.copy_(y)
    return h + y


def forgotten_by_a_view(h: Tensor, y: Tensor) -> Tensor:
    h[:] = y.tanh()
    return h * 2


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (forgotten, "Net: copy_ over a whole map that has a gradient, of what is not made of it"),
        (forgotten_by_a_view, "Net: copy_ over a whole map that has a gradient"),
        (by_a_mask, r"Net: \w+ reads a after an in-place operation|Net: setitem"),
        (filled, "Net: fill_ at tests/trace/test_functionalize.py"),
        (
            by_steps,
            r"after an in-place operation, which cannot be followed "
            r"at tests/trace/test_functionalize.py",
        ),
        (rearranged, "Net: transpose_ at tests/trace/test_functionalize.py"),
        (into_a_constant, "Net: __setitem__ at tests/trace/test_functionalize.py"),
    ],
)
def test_other_writes_are_refused_by_line(way: Way, message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(Net(way), (torch.empty(3, 4, 6, 5),))


def test_a_write_that_nothing_reads_is_left_out() -> None:
    def way(h: Tensor, y: Tensor) -> Tensor:
        h[:, ::2] += 1
        return y

    assert [op.kind for op in trace(Net(way), (torch.empty(3, 4, 6, 5),)).ops] == ["conv2d"]


def test_an_in_place_operation_alone_makes_one_op() -> None:
    network = trace(Net(lambda h, y: h.relu_().add_(y)), (torch.empty(3, 4, 6, 5),))
    assert [op.kind for op in network.ops] == ["conv2d", "conv2d", "relu", "add"]


def test_a_view_taken_after_the_only_other_reader_sees_the_value() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 6, 5)
    assert_trains_as_torch(Net(lambda h, y: (2 * h) * y + h.detach().tanh()), x)


@pytest.mark.parametrize("write", [torch.relu_, lambda x: x.view(3, -1).add_(1).view_as(x)])
def test_a_write_over_an_input_is_warned_of(write: Callable[[Tensor], Tensor]) -> None:
    net = Functional(lambda net, x: net.conv(write(x)), conv=nn.Conv2d(4, 4, 1))
    with pytest.warns(RuntimeWarning, match="forward writes over its input inputs0. A step gives"):
        trace(net, (torch.empty(3, 4, 6, 5),))
