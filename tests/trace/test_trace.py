"""Tracing: names of values, shared layers, dropouts, and an unchanged module."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tvdnn.nn
from tests.support.traced_networks import Inputs, Stale, Twice, kinds, run
from tvdnn.trace.trace import trace


def test_shared_layers_and_weights() -> None:
    module, x = Twice(), torch.randn(3, 4)
    network = trace(module, (x,))
    assert [op.name for op in network.ops] == ["first", "second", "first#2", "x returned"]
    assert [op.params[0] for op in network.ops[:3]] == ["first.weight"] * 3
    assert list(network.params) == ["first.weight", "first.bias", "second.bias"]
    assert [param.requires_grad for param in network.params.values()] == [True, True, False]
    assert network.params["first.weight"].nbytes == 64
    assert network.params["first.weight"].shape == (4, 4)
    assert network.outputs == ("first#2", "first#2", "x returned")
    assert network.gather is list
    for ours, exact in zip(run(network, module, [x]), module(x), strict=True):
        assert torch.allclose(ours, exact, rtol=1e-5, atol=1e-6)


def test_dropouts_are_numbered_in_order() -> None:
    module = torch.nn.Sequential(
        torch.nn.Dropout(0.25), torch.nn.Dropout(0.0), torch.nn.Dropout(0.5, inplace=True)
    )
    network = trace(module, (torch.empty(2, 3),))
    drops = [op.attrs for op in network.ops if op.kind == "dropout"]
    assert network.training
    assert drops == [{"p": 0.25, "op_id": 0}, {"p": 0.5, "op_id": 1}]
    assert set(kinds(trace(module.eval(), (torch.empty(2, 3),)))) == {"view", "affine"}


def test_inputs_have_forwards_names() -> None:
    shapes = ((2, 3, 4, 4), (2, 3), (2, 3))
    network = trace(Inputs(), [torch.empty(shape) for shape in shapes])
    assert network.inputs == ("image", "others0", "others1")
    assert network.outputs == ("relu", "fc", "fc#2")
    assert network.values["image"].shape == (2, 4, 4, 3)


def test_an_in_place_result_can_be_read() -> None:
    network = trace(Stale(lambda y: torch.relu(y.relu_())), (torch.empty(2, 3, 4, 4),))
    assert [op.inputs[0] for op in network.ops] == ["x", "conv", "relu"]


class Counting(torch.nn.Module):
    """Has a buffer and a lazy layer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.given = id(self.calls)
        self.conv = tvdnn.nn.LazyConv2d(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert self.calls.device == torch.device("cpu")
        assert id(self.calls) != self.given  # but a tensor of the meta device
        return self.conv(x)


def test_nothing_of_the_module_changes_but_lazy_layers() -> None:
    module = Counting()
    calls = module.calls
    network = trace(module, (torch.ones(2, 3, 8, 8),))
    assert module.calls is calls
    assert type(module.conv) is tvdnn.nn.Conv2d
    assert network.params["conv.weight"].shape == (4, 3, 3, 3)
    assert module.conv.weight.device.type == "cpu"
    before = copy.deepcopy(module.state_dict())
    trace(module, (torch.ones(2, 3, 8, 8),))
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert not any(hasattr(value, "node") for value in vars(module).values())


def by_keyword(layer: torch.nn.Module) -> torch.nn.Module:
    """A network that calls a layer by the name that torch gives its argument."""

    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(input=x)

    return Named()


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: tvdnn.nn.Conv2d(3, 4, 3), "conv2d"),
        (lambda: torch.nn.LazyConv2d(4, 3), "conv2d"),
        (lambda: tvdnn.nn.BatchNorm2d(3), "batch_norm"),
        (lambda: torch.nn.BatchNorm2d(3), "batch_norm"),
        (lambda: tvdnn.nn.MaxPool2d(2), "max_pool2d"),
        (lambda: tvdnn.nn.StochasticDepth(0.5, "row"), "dropout_parts"),
    ],
)
def test_layers_take_their_input_by_keyword(make: Callable[[], torch.nn.Module], kind: str) -> None:
    network = trace(by_keyword(make()), (torch.empty(2, 3, 8, 8),))
    assert [op.kind for op in network.ops] == [kind]


def test_a_network_of_forty_gigabytes_has_no_bytes() -> None:
    with torch.device("meta"):
        module = torch.nn.Sequential(*(torch.nn.Linear(50_000, 50_000) for _ in range(4)))
    network = trace(module, (torch.empty(64, 50_000, device="meta"),))
    assert sum(param.nbytes for param in network.params.values()) == 4 * (50_000**2 + 50_000) * 4
