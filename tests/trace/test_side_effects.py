"""A forward's effects beside its outputs: they occur in each step, or are refused by line."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.beside_torch import assert_trains_as_torch
from tvdnn.errors import InputError, UnsupportedOpError
from tvdnn.trace.trace import trace


class Net(nn.Module):
    """Layers, buffers and attributes that `way` uses."""

    def __init__(self, way: Callable[["Net", Tensor], Tensor], **settings: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.dead = nn.BatchNorm2d(4, **settings), nn.BatchNorm2d(4, **settings)
        self.register_buffer("ema", torch.zeros(4))
        self.register_buffer("grid", torch.ones(2, 4, 5, 5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.table = torch.ones(4)
        self.maps: list[Tensor] = []
        self.aux: Tensor | None = None
        self.count = 0
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def normalized_apart(net: Net, x: Tensor) -> Tensor:
    """No output depends on one of the normalizations."""
    h = net.conv(x)
    net.dead(h.detach())
    return net.norm(h)


def normalized_twice(net: Net, x: Tensor) -> Tensor:
    return net.norm(net.conv(net.norm(x)).relu())


def normalized_without_gradients(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        net.norm(x)
        h = net.norm(net.conv(x))
    return net.dead(net.conv(h))


class Counting(nn.BatchNorm2d):
    """Counts its batches itself, as classes that copy torch's do."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        state = (self.running_mean, self.running_var, self.weight, self.bias, self.training)
        return functional.batch_norm(x, *state, self.momentum, self.eps)


def counted_by_the_layer(net: Net, x: Tensor) -> Tensor:
    return net.conv(net.norm(x))


@pytest.mark.parametrize("way", [normalized_apart, normalized_twice, normalized_without_gradients])
@pytest.mark.parametrize("settings", [{}, {"momentum": None}, {"track_running_stats": False}])
@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_follow_torch(
    way: Callable[[Net, Tensor], Tensor], settings: dict[str, Any], training: bool
) -> None:
    torch.manual_seed(0)
    net = Net(way, **settings).train(training)
    assert_trains_as_torch(net, torch.randn(4, 4, 6, 5) + 1)


def test_a_layer_may_count_its_batches_itself() -> None:
    torch.manual_seed(0)
    net = Net(counted_by_the_layer)
    net.norm = Counting(4, momentum=0.3)
    assert_trains_as_torch(net, torch.randn(4, 4, 6, 5))


def set_buffer(net: Net, x: Tensor) -> Tensor:
    net.ema.copy_(net.conv(x).mean((0, 2, 3)))
    return x


def written_by_a_view(net: Net, x: Tensor) -> Tensor:
    """Through a view that a map gives its shape, and that nothing reads."""
    net.grid.view_as(x).copy_(x.detach())
    return net.conv(x)


def changed_by_a_view(net: Net, x: Tensor) -> Tensor:
    net.grid.expand_as(x).detach().mul_(2)
    return net.conv(x)


def changed_by_a_view_as_tvdnn_cannot(net: Net, x: Tensor) -> Tensor:
    net.grid.reshape_as(x).cumsum_(1)
    return net.conv(x)


def frozen(net: Net, x: Tensor) -> Tensor:
    net.conv.weight.requires_grad_(False)
    return net.conv(x)


def table_written(net: Net, x: Tensor) -> Tensor:
    net.table.add_(1)
    return net.conv(x)


def map_left(net: Net, x: Tensor) -> Tensor:
    net.aux = net.conv(x)
    return net.aux.relu()


def map_in_a_list(net: Net, x: Tensor) -> Tensor:
    net.maps.append(net.conv(x))
    return net.maps[-1].relu()


def number_counted(net: Net, x: Tensor) -> Tensor:
    net.count += 1
    return net.conv(x)


def replaced_layer(net: Net, x: Tensor) -> Tensor:
    net.conv = nn.Identity()
    return net.norm(x)


def asserted(net: Net, x: Tensor) -> Tensor:
    torch._assert(x.amax() < 1, "too large")
    return net.conv(x)


def hooked_map(net: Net, x: Tensor) -> Tensor:
    h = net.conv(x)
    h.register_hook(lambda grad: grad * 2)
    return h


def dead_call(dead: Callable[[Net, Tensor], Tensor]) -> Callable[[Net, Tensor], Tensor]:
    """A forward that calls `dead` on a map and does not read the result."""

    def way(net: Net, x: Tensor) -> Tensor:
        h = net.conv(x)
        dead(net, h)
        return h

    return way


def test_a_normalization_of_lines_that_nothing_reads_is_tracked() -> None:
    torch.manual_seed(0)
    net = Net(dead_call(lambda net, h: net.dead(h.flatten(2))))
    net.dead = nn.BatchNorm1d(4)
    assert_trains_as_torch(net, torch.randn(4, 4, 6, 5) + 1)


REFUSED_DEAD = [
    (nn.InstanceNorm2d(4, track_running_stats=True), "dead: instance_norm with running statistics"),
    (nn.BatchNorm3d(4), "dead: BatchNorm3d"),
]


@pytest.mark.parametrize(("layer", "message"), REFUSED_DEAD)
def test_a_refused_layer_with_statistics_counts_though_nothing_reads_it(
    layer: nn.Module, message: str
) -> None:
    net = Net(dead_call(lambda net, h: net.dead(h)))
    net.dead = layer
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net, (torch.randn(2, 4, 5, 5),))


CONSTANT = torch.ones(4)  # made outside of a network


def test_a_refused_normalization_by_a_function_counts_though_nothing_reads_it() -> None:
    def normalized(net: Net, h: Tensor) -> Tensor:
        state, weight = (net.dead.running_mean, net.dead.running_var), CONSTANT
        return functional.batch_norm(h, *state, weight, training=True)

    with pytest.raises(UnsupportedOpError, match=f"batch_norm with a weight.*{HERE}"):
        trace(Net(dead_call(normalized)), (torch.randn(2, 4, 5, 5),))


def moved_average(net: Net, x: Tensor) -> Tensor:
    """The method is none of tvdnn's, and nothing reads its result."""
    net.ema.lerp_(x.detach().mean((0, 2, 3)), 0.1)
    return net.conv(x)


def written_by_values(net: Net, x: Tensor) -> Tensor:
    """Torch cannot follow the method without values."""
    net.ema.masked_scatter_(net.ema > 0, x.detach())
    return net.conv(x)


HERE = "at tests/trace/test_side_effects.py"
REFUSED = [
    (moved_average, f"Net: lerp_ {HERE}"),
    (written_by_values, f"Net: masked_scatter_ {HERE}"),
    (set_buffer, f"copy_ changes ema of the module, which a step would not {HERE}"),
    (written_by_a_view, f"copy_ changes grid of the module, which a step would not {HERE}"),
    (changed_by_a_view, f"mul_ changes grid of the module, which a step would not {HERE}"),
    (changed_by_a_view_as_tvdnn_cannot, f"cumsum_ {HERE}"),
    (frozen, f"Net: requires_grad changes conv.weight of the module, which a step.* {HERE}"),
    (table_written, f"Net: add_ changes table of the module, which a step would not {HERE}"),
    (map_left, f"Net: forward changes the attribute aux, which a step would not {HERE}"),
    (map_in_a_list, "Net: forward changes the attribute maps, which a step would not"),
    (number_counted, f"Net: forward changes the attribute count, which a step would not {HERE}"),
    (replaced_layer, "Net: forward changes the attribute _modules, which a step would not"),
    (asserted, f"Net: _assert {HERE}"),
    (hooked_map, f"Net: register_hook {HERE}"),
]


@pytest.mark.parametrize(("way", "message"), REFUSED)
def test_other_effects_are_refused(way: Callable[[Net, Tensor], Tensor], message: str) -> None:
    net = Net(way)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    attributes = dict(net.__dict__)
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net, (torch.randn(2, 4, 5, 5),))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert net.__dict__ == attributes
    assert torch.equal(net.table, torch.ones(4))
    assert net.maps == []
    assert net.conv.weight.requires_grad


def test_a_write_to_a_parameter_that_torch_refuses() -> None:
    def way(net: Net, x: Tensor) -> Tensor:
        net.conv.weight.clamp_(-1, 1)
        return net.conv(x)

    with pytest.raises(InputError, match=rf"Net: RuntimeError: a leaf Variable.*{HERE}"):
        trace(Net(way), (torch.randn(2, 4, 5, 5),))


def test_what_a_forward_takes_back_is_no_effect() -> None:
    def way(net: Net, x: Tensor) -> Tensor:
        net.aux = net.conv(x)
        net.maps.append(net.aux)
        y = net.maps.pop() + net.aux
        net.aux = None
        mask = torch.zeros(3)
        mask[0] = 1
        return y

    torch.manual_seed(0)
    assert_trains_as_torch(Net(way), torch.randn(2, 4, 5, 5))


HELD: list[Any] = []


def test_maps_that_outlive_forward_are_refused() -> None:
    def way(net: Net, x: Tensor) -> Tensor:
        HELD.append(net.conv(x))
        return HELD[-1] * 2

    try:
        with pytest.raises(UnsupportedOpError, match=f"conv is still held after forward.*{HERE}"):
            trace(Net(way), (torch.randn(2, 4, 5, 5),))
    finally:
        HELD.clear()


def test_hooks_of_modules_take_part() -> None:
    torch.manual_seed(0)
    net = Net(lambda net, x: net.norm(net.conv(x)))
    net.conv.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    net.conv.register_forward_hook(lambda module, args, output: output + args[0])
    net.norm.register_forward_hook(
        lambda module, args, kwargs, output: output.relu(), with_kwargs=True
    )
    net.register_forward_hook(lambda module, args, output: output * 3)
    network = trace(net, (torch.randn(2, 4, 5, 5),))
    assert [op.kind for op in network.ops] == [
        *("affine", "conv2d", "add", "batch_norm", "relu", "affine")
    ]
    assert_trains_as_torch(net, torch.randn(2, 4, 5, 5))


def test_a_hook_that_keeps_a_map_is_refused() -> None:
    net = Net(lambda net, x: net.norm(net.conv(x)))
    seen: list[Any] = []
    net.conv.register_forward_hook(lambda module, args, output: seen.append(output))
    with pytest.raises(UnsupportedOpError, match="conv is still held after forward"):
        trace(net, (torch.randn(2, 4, 5, 5),))


def test_backward_hooks_are_refused() -> None:
    net = Net(lambda net, x: net.conv(x))
    net.conv.register_full_backward_hook(lambda module, before, after: None)
    with pytest.raises(UnsupportedOpError, match="conv: Conv2d with backward hooks"):
        trace(net, (torch.randn(2, 4, 5, 5),))
