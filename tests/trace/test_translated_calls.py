"""The ops of torch's layers and functions compute the module's results."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import tvdnn.nn
from tests.support.exact import Functional as Way
from tests.support.traced_networks import Stale, kinds, run, stored
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace


class Functional(torch.nn.Module):
    """One network in torch's functional forms, methods and modules, plain and in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding="same"), torch.nn.ReLU(True)
        )
        self.kernel = torch.nn.Parameter(torch.randn(6, 4, 3, 2))
        self.shift = torch.nn.Parameter(torch.randn(6))
        self.norm = tvdnn.nn.LocalResponseNorm(3, alpha=0.5)
        self.batch = torch.nn.BatchNorm2d(6, momentum=None)
        self.fc = tvdnn.nn.Linear(6 * 2 * 3, 10)
        self.square = torch.nn.Parameter(torch.randn(5, 10))

    def forward(self, x: Tensor, scale: float | None = None) -> tuple[Tensor, Tensor]:
        assert scale is None
        x = self.stem(x)
        x = functional.conv2d(x, self.kernel, self.shift, stride=(2, 1), groups=2, padding=1)
        x = functional.relu_(functional.max_pool2d(x, 3, 2, ceil_mode=True))
        x = torch.relu(self.norm(x)).relu()
        batch = self.batch
        x = functional.batch_norm(batch(x), batch.running_mean, batch.running_var, batch.weight)
        x = functional.avg_pool2d(x, (2, 1), count_include_pad=False)
        x = functional.dropout(x, 0.3, self.training)
        wide = functional.adaptive_avg_pool2d(x, (2, 3))
        y = wide.view(wide.size(0), -1)
        y = functional.linear(y, self.fc.weight, bias=self.fc.bias).relu_()
        if y.shape[1] > 8 and len(y) == y.size()[0] and y.dim() == y.ndim and y.numel():
            y = functional.linear(input=y, weight=self.square)
        return y.reshape(x.shape[0], -1), wide


def test_functional_forms_compute_the_same() -> None:
    torch.manual_seed(0)
    module = Functional().eval()
    x = torch.randn(2, 3, 12, 10)
    network = trace(module, (x,), name="functional")
    for ours, exact in zip(run(network, module, [x]), module(x), strict=True):
        assert torch.allclose(ours, stored(exact), rtol=1e-5, atol=1e-6)
    assert network.name == "functional"
    assert network.inputs == ("x",)
    assert network.gather is tuple
    assert network.batch == 2
    assert not network.training
    assert [op.name for op in network.ops] == [
        *("stem.0", "stem.1", "conv2d", "max_pool2d", "relu", "norm", "relu#2", "relu#3"),
        *("batch", "batch_norm", "avg_pool2d", "dropout", "adaptive_avg_pool2d", "view", "linear"),
        *("relu#4", "linear#2", "reshape"),
    ]
    assert network.ops[2].params == ("kernel", "shift")
    assert network.ops[9].params == (
        "batch.weight",
        "",
        "batch.running_mean",
        "batch.running_var",
        "",
    )
    assert network.ops[16].params == ("square", "")
    assert kinds(network)[11] == "view"


def test_attributes_are_pairs() -> None:
    module = torch.nn.Sequential(
        torch.nn.Conv2d(4, 6, (3, 5), stride=2, padding=(1, 2), dilation=(1, 2), groups=2),
        torch.nn.Conv2d(6, 6, 3, padding="same", dilation=2),
        torch.nn.Conv2d(6, 6, 1, padding="valid", bias=False),
        torch.nn.MaxPool2d(2, padding=1),
        torch.nn.AvgPool2d(3, stride=1, divisor_override=4),
        torch.nn.LocalResponseNorm(5),
    )
    ops = trace(module, (torch.empty(2, 4, 20, 20),)).ops
    assert ops[0].attrs == {
        "kernel": (3, 5),
        "stride": (2, 2),
        "padding": (1, 2),
        "dilation": (1, 2),
        "groups": 2,
    }
    assert ops[1].attrs["padding"] == (2, 2)
    assert ops[2].attrs["padding"] == (0, 0)
    assert ops[2].params == ("2.weight", "")
    assert ops[3].attrs == {
        "kernel": (2, 2),
        "stride": (2, 2),
        "padding": (1, 1),
        "dilation": (1, 1),
    }
    assert ops[4].attrs == {
        "kernel": (3, 3),
        "stride": (1, 1),
        "padding": (0, 0),
        "count_include_pad": True,
        "divisor_override": 4,
    }
    assert ops[5].attrs == {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 1.0}


ACTIVATIONS: list[tuple[Any, str, dict[str, float]]] = [
    (torch.nn.LeakyReLU(0.2), "leaky_relu", {"coefficient": 0.2}),
    (torch.nn.LeakyReLU(0, inplace=True), "leaky_relu", {"coefficient": 0.0}),
    (lambda x: functional.leaky_relu_(x, 0.3), "leaky_relu", {"coefficient": 0.3}),
    (torch.nn.ReLU6(inplace=True), "relu6", {}),
    (functional.relu6, "relu6", {}),
    (lambda x: functional.hardtanh_(x, 0, 6), "relu6", {}),
    (torch.nn.Hardtanh(), "hardtanh", {"a": -1.0, "b": 1.0}),
    (torch.nn.Softplus(2), "softplus", {"a": 2.0, "b": 20.0}),
    (torch.nn.PReLU(), "prelu", {}),
    (lambda x: x.clamp(max=2), "clamp", {"a": -math.inf, "b": 2.0}),
    (lambda x: x.clamp_min_(min=2), "clamp", {"a": 2.0, "b": math.inf}),
    (lambda x: x**2, "square", {}),
    (lambda x: x**1, "affine", {"scale": 1.0, "shift": 0.0}),
    (lambda x: x.pow(-1), "reciprocal", {"a": 1.0}),
    (lambda x: 3 / x, "reciprocal", {"a": 3.0}),
    (torch.nn.ELU(), "elu", {"coefficient": 1.0}),
    (lambda x: functional.elu(x, alpha=2, inplace=True), "elu", {"coefficient": 2.0}),
    (functional.elu_, "elu", {"coefficient": 1.0}),
    (tvdnn.nn.SiLU(inplace=True), "silu", {}),
    (functional.silu, "silu", {}),
    (torch.nn.GELU(), "gelu", {}),
    (tvdnn.nn.GELU("tanh"), "gelu_tanh", {}),
    (lambda x: functional.gelu(x, approximate="tanh"), "gelu_tanh", {}),
    (torch.nn.Sigmoid(), "sigmoid", {}),
    (functional.sigmoid, "sigmoid", {}),
    (torch.sigmoid_, "sigmoid", {}),
    (lambda x: x.sigmoid(), "sigmoid", {}),
    (lambda x: x.sigmoid_(), "sigmoid", {}),
    (tvdnn.nn.Tanh(), "tanh", {}),
    (functional.tanh, "tanh", {}),
    (torch.tanh_, "tanh", {}),
    (lambda x: x.tanh(), "tanh", {}),
    (lambda x: x.tanh_(), "tanh", {}),
    (torch.nn.Hardswish(inplace=True), "hardswish", {}),
    (functional.hardswish, "hardswish", {}),
    (tvdnn.nn.Hardsigmoid(), "hardsigmoid", {}),
    (functional.hardsigmoid, "hardsigmoid", {}),
]


@pytest.mark.parametrize(("function", "kind", "attrs"), ACTIVATIONS)
def test_activation_functions(function: Any, kind: str, attrs: dict[str, float]) -> None:
    op = trace(Stale(function), (torch.empty(2, 3, 4, 4),)).ops[-1]
    assert (op.kind, op.attrs) == (kind, attrs)


@pytest.mark.parametrize(
    ("layer", "shape", "attrs"),
    [
        (torch.nn.GroupNorm(2, 6, eps=1e-3), (2, 6, 4, 3), {"groups": 2, "eps": 1e-3}),
        (tvdnn.nn.GroupNorm(3, 12, affine=False), (3, 12), {"groups": 3, "eps": 1e-5}),
        (tvdnn.nn.InstanceNorm2d(3), (2, 3, 4, 3), {"groups": 3, "eps": 1e-5}),
        (torch.nn.InstanceNorm2d(3, affine=True), (2, 3, 4, 3), {"groups": 3, "eps": 1e-5}),
    ],
)
def test_norms_of_groups(
    layer: torch.nn.Module, shape: tuple[int, ...], attrs: dict[str, float]
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    network = trace(layer, [x])
    assert [(op.kind, op.attrs) for op in network.ops] == [("group_norm", attrs)]
    torch.testing.assert_close(run(network, layer, [x])[0], stored(layer(x)), rtol=1e-5, atol=1e-6)


def test_running_statistics_of_instances_are_refused() -> None:
    layer = torch.nn.InstanceNorm2d(3, track_running_stats=True)
    with pytest.raises(UnsupportedOpError, match="instance_norm with running statistics"):
        trace(layer, [torch.empty(2, 3, 4, 4)])


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (torch.nn.Conv2d(8, 8, 3, groups=8), "conv2d_depthwise"),
        (torch.nn.Conv2d(16, 16, (7, 5), 2, "valid", groups=16, bias=False), "conv2d_depthwise"),
        (torch.nn.Conv2d(8, 16, 3, groups=8), "conv2d"),
        (torch.nn.Conv2d(6, 6, 3, groups=6), "conv2d"),
    ],
)
def test_filters_of_single_channels(layer: torch.nn.Conv2d, kind: str) -> None:
    x = torch.randn(2, layer.in_channels, 9, 10)
    network = trace(layer, [x])
    assert kinds(network) == [kind]
    torch.testing.assert_close(run(network, layer, [x])[0], stored(layer(x)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.ConvTranspose2d(4, 6, 2, stride=2),
        tvdnn.nn.ConvTranspose2d(4, 6, (3, 2), 3, (1, 0), (2, 1), groups=2, bias=False, dilation=2),
    ],
)
def test_transposed_convolutions(layer: torch.nn.Module) -> None:
    x = torch.randn(2, 4, 5, 7)
    network = trace(layer, [x])
    assert kinds(network) == ["conv_transpose2d"]
    torch.testing.assert_close(run(network, layer, [x])[0], stored(layer(x)), rtol=1e-5, atol=1e-6)


class Scaled(torch.nn.Module):
    """Maps in two orders, and features, times a parameter."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"maps": (3, 1, 1), "whole": (1, 3, 1, 1), "last": (3,), "features": (60,)}
        self.scales = torch.nn.ParameterDict({name: torch.rand(n) for name, n in sizes.items()})

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = (self.scales["maps"] * x).mul(self.scales["whole"])
        last = torch.mul(x.permute(0, 2, 3, 1), self.scales["last"])
        return x.flatten(1) * self.scales["features"], last


def test_parameters_scale_channels() -> None:
    module, x = Scaled(), torch.randn(2, 3, 4, 5)
    network = trace(module, [x])
    flat, last = run(network, module, [x])
    torch.testing.assert_close(flat, module(x)[0])
    torch.testing.assert_close(last, module(x)[1])
    assert sorted(kinds(network)) == ["flatten", *["scale_channels"] * 4, "view"]
    assert [op.params for op in network.ops if op.params][2:] == [
        ("scales.last",),
        ("scales.features",),
    ]


@pytest.mark.parametrize(
    "way",
    [
        lambda net, x: functional.linear(x.mean((1, 2, 3)), net.weight[:, :2]),
        lambda net, x: functional.linear(x, net.weight[0]),
        lambda net, x: functional.layer_norm(x.mean((1, 2, 3)), (2,)),
    ],
)
def test_layers_of_too_few_dimensions_are_refused(way: Any) -> None:
    net = Way(way, weight=torch.nn.Parameter(torch.randn(4, 5)))
    with pytest.raises(UnsupportedOpError, match=r"linear of|layer_norm of"):
        trace(net, (torch.empty(2, 3, 4, 5),))


def test_linear_takes_the_columns_of_maps_as_channels() -> None:
    network = trace(torch.nn.Linear(5, 4), (torch.empty(2, 3, 4, 5),))
    assert kinds(network) == ["rearrange", "view", "conv2d", "view"]
