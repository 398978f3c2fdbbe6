"""Regions without gradients and detached maps: layers that torch does not train are not trained."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support.beside_torch import assert_trains_as_torch
from tests.support.exact import Functional
from tvdnn.errors import InputError, UnsupportedOpError
from tvdnn.graph import fuse
from tvdnn.trace.trace import trace


class Net(nn.Module):
    """Layers that `way` puts together."""

    def __init__(self, way: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.norm, self.other = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def frozen_backbone(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = net.norm(net.a(x)).relu()
    return net.b(h)


def detached_residual(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.norm(net.b(h)) + net.other(net.c(h)).detach()


def detached_before_a_function(net: Net, x: Tensor) -> Tensor:
    return net.a(x).detach().relu() * net.b(x).relu().detach() + net.c(x)


def function_without_gradients(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    with torch.no_grad():
        gate = h.sigmoid()
    return net.b(h * gate) + net.norm(gate)


def detached_in_place(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    y = 2 * h  # read before: its gradient passes on
    h.detach_()
    h = h.add_(1)
    return y + net.c(h)


def gradients_within(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = net.a(x)
        with torch.enable_grad():
            y = net.b(h)
        torch.set_grad_enabled(True)
        z = net.c(h)
        torch.set_grad_enabled(False)
    return y + z


def inferred(net: Net, x: Tensor) -> Tensor:
    with torch.inference_mode():
        h = net.a(x).relu_()
    return net.b(x) + h


def detached_part(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    return torch.cat([h[:, :2].detach(), net.b(h)[:, 2:], h.data], 1)


def padded_without_gradients(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = torch.nn.functional.pad(net.a(x), (1, 1, 1, 1))
    return torch.nn.functional.conv2d(h, net.b.weight)


def by_flags(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    frozen = h.detach()
    assert h.requires_grad
    assert not frozen.requires_grad
    assert not h.is_leaf
    assert frozen.is_leaf
    assert torch.is_grad_enabled()
    return net.b(frozen.requires_grad_(False)) + h.requires_grad_()


@torch.no_grad()
def decorated(net: Net, x: Tensor) -> Tensor:
    return net.norm(net.a(x))


WAYS = [
    frozen_backbone,
    detached_residual,
    detached_before_a_function,
    function_without_gradients,
    detached_in_place,
    gradients_within,
    inferred,
    detached_part,
    padded_without_gradients,
    by_flags,
    lambda net, x: net.c(decorated(net, x)),
]


@pytest.mark.parametrize("way", WAYS)
def test_gradients_stop_where_torchs_do(way: Callable[[Net, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    assert_trains_as_torch(Net(way), torch.randn(3, 4, 6, 5))


@pytest.mark.parametrize("way", [frozen_backbone, detached_residual, decorated])
def test_gradients_of_inputs_stop_there(way: Callable[[Net, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    assert_trains_as_torch(Net(way), torch.randn(3, 4, 6, 5, requires_grad=True))


def test_a_network_whose_output_needs_no_gradient() -> None:
    torch.manual_seed(0)
    assert_trains_as_torch(Net(decorated), torch.randn(3, 4, 6, 5))
    frozen = Net(frozen_backbone).requires_grad_(False)
    assert_trains_as_torch(frozen, torch.randn(3, 4, 6, 5))


def test_no_op_is_fused_over_a_value_that_stops_the_gradient() -> None:
    network = fuse(trace(Net(detached_before_a_function), (torch.empty(2, 4, 5, 5),)))
    kinds = [op.kind for op in network.ops]
    assert kinds.count("conv2d_relu") == 1  # the gradient stops behind it


def written_through_data(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    h.data.mul_(2)
    return net.b(h)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (written_through_data, "reads a after an in-place operation"),
        (lambda net, x: torch.autograd.grad(net.a(x).sum(), x)[0], "Net: .*test_detached.py"),
    ],
)
def test_values_that_change_without_their_gradient_are_refused(
    way: Callable[[Net, Tensor], Tensor], message: str
) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(Net(way), (torch.empty(2, 4, 5, 5),))


def test_what_torch_refuses_is_an_input_error() -> None:
    net = Net(lambda net, x: net.a(x).requires_grad_(False))
    with pytest.raises(InputError, match="requires_grad"):
        trace(net, (torch.empty(2, 4, 5, 5),))


Way = Callable[[nn.Module, Tensor], Tensor]


def read_behind(h: Tensor) -> Tensor:
    """A function of a map whose gradients tell of its values."""
    return h * h


def scaled_behind(net: nn.Module, h: Tensor) -> Tensor:
    y = h.detach()
    y.mul_(3)
    return h * y + read_behind(h)


def filled_behind(net: nn.Module, h: Tensor) -> Tensor:
    h.detach().mul_(0).add_(0.5)
    return read_behind(h)


def infinite_behind(net: nn.Module, h: Tensor) -> Tensor:
    """Values that no sum of differences gives back."""
    logs = (h.relu() * 1).log()
    logs.detach().clamp_(min=-2)
    return read_behind(logs.exp() + logs)


def part_behind(net: nn.Module, h: Tensor) -> Tensor:
    y = h.detach()
    y[:, 1:3].mul_(2.0)
    y[:, 0] = y[:, 1]
    return read_behind(h)


def view_behind(net: nn.Module, h: Tensor) -> Tensor:
    v = h.flatten(2)
    y = v.detach().transpose(1, 2)
    y.add_(1).relu_()
    return read_behind(h) + v.view_as(h)


def before_and_behind(net: nn.Module, h: Tensor) -> Tensor:
    first = h * 2
    h.detach().mul_(2)
    h.add_(1)
    h.detach().mul_(2)
    return first + read_behind(h)


def map_behind(net: nn.Module, h: Tensor) -> Tensor:
    y = h.detach()
    y.add_(h.sigmoid().detach())
    return read_behind(h) + y


def both_ways(net: nn.Module, h: Tensor) -> Tensor:
    y = h.detach()
    h.mul_(2)
    y.add_(1)
    h.add_(y)
    return h + y * h.sigmoid()


def written_behind_twice(net: nn.Module, h: Tensor) -> Tensor:
    y, z = h.detach(), h.detach()
    y.mul_(2)
    z.add_(1)
    return h * z + y


def without_gradients(net: nn.Module, h: Tensor) -> Tensor:
    with torch.no_grad():
        h.mul_(2).relu_()
    return read_behind(h)


def part_without_gradients(net: nn.Module, h: Tensor) -> Tensor:
    v = h[:, 1:3]
    with torch.no_grad():
        v.mul_(2)
        h[:, 3] = v[:, 0]
    return read_behind(h) + v.sum(1, keepdim=True)


def first_without_gradients(net: nn.Module, h: Tensor) -> Tensor:
    y = h.detach()
    with torch.no_grad():
        torch.add(h, 1, out=y)
        h += y
    h *= 2
    return h * y


def rebound_without_gradients(net: nn.Module, h: Tensor) -> Tensor:
    v = h.view_as(h)
    with torch.no_grad():
        v.add_(0.5)
        h *= 0.7
    return h * h + v


BEHIND = [
    rebound_without_gradients,
    without_gradients,
    part_without_gradients,
    first_without_gradients,
    scaled_behind,
    filled_behind,
    infinite_behind,
    part_behind,
    view_behind,
    before_and_behind,
    map_behind,
    both_ways,
    written_behind_twice,
]


def behind(way: Way) -> nn.Module:
    """A layer behind `way` of a convolution's map."""
    layers = {"conv": nn.Conv2d(4, 4, 3, padding=1), "last": nn.Conv2d(4, 2, 1)}
    return Functional(lambda net, x: net.last(way(net, net.conv(x) + 0)), **layers)


@pytest.mark.parametrize("way", BEHIND)
def test_writes_behind_a_map_change_its_values_and_no_gradient(way: Way) -> None:
    torch.manual_seed(0)
    assert_trains_as_torch(behind(way), torch.randn(3, 4, 6, 5))


def by_data(net: nn.Module, h: Tensor) -> Tensor:
    h.data.mul_(2)
    return h * h


def with_a_gradient(net: nn.Module, h: Tensor) -> Tensor:
    h.detach().add_(h.sigmoid())
    return h * h


def with_a_gradient_beside_none(net: nn.Module, h: Tensor) -> Tensor:
    plain = h.detach() * 2
    plain.detach().add_(h)
    return plain * h


def with_a_gradient_twice(net: nn.Module, h: Tensor) -> Tensor:
    y = h.detach()
    y.add_(h.sigmoid())
    y.mul_(2)
    return h * h


def by_a_view_without_gradients(net: nn.Module, h: Tensor) -> Tensor:
    with torch.no_grad():
        v = h.view_as(h)
    v.mul_(2)  # which torch refuses
    return h * h


@pytest.mark.parametrize(
    "way",
    [
        by_data,
        with_a_gradient,
        with_a_gradient_beside_none,
        with_a_gradient_twice,
        by_a_view_without_gradients,
    ],
)
def test_other_writes_behind_a_map_are_refused_by_line(way: Way) -> None:
    with pytest.raises(UnsupportedOpError, match=r"cannot be followed at \S*test_detached.py:\d+"):
        trace(behind(way), (torch.randn(3, 4, 6, 5),))
