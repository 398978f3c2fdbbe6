"""Tracing: what is recorded computes what the module computes; the rest is refused by name."""

import copy
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import tvdnn.nn
from tvdnn.errors import InputError, UnsupportedOpError
from tvdnn.graph import Network, Op
from tvdnn.ops.registry import SUPPORTED
from tvdnn.trace.trace import trace

Maps = dict[str, Tensor]


def run(network: Network, module: torch.nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The network's outputs by torch's own functions, op by op over channels-last values."""
    params = {"": None, **dict(module.named_parameters()), **dict(module.named_buffers())}
    values = dict(zip(network.inputs, map(stored, inputs), strict=True))
    for op in network.ops:
        sources = [values[name] for name in op.inputs]
        y = run_op(op, sources[0], [params[name] for name in op.params], network)
        assert y.shape == network.values[op.output].shape, op
        values[op.output] = y
    return [values[name] for name in network.outputs]


def run_op(op: Op, x: Tensor, params: list[Any], network: Network) -> Tensor:
    """One op; the output's shape decides ceil mode and the adaptive side."""
    shape, attrs = network.values[op.output].shape, dict(op.attrs)
    if op.kind == "view":
        return x.reshape(shape)
    if op.kind == "flatten":
        return torch_layout(x).flatten(1)
    if op.kind == "relu":
        return x.clamp(min=0)
    if op.kind == "affine":
        return x * attrs["scale"] + attrs["shift"]
    if op.kind == "layer_norm":
        return functional.layer_norm(x, x.shape[-1:], *params, **attrs)
    if op.kind == "group_norm":
        y = torch_layout(x) if x.dim() == 4 else x
        return stored(functional.group_norm(y, attrs["groups"], *params, attrs["eps"]))
    if op.kind == "scale_channels":
        return x * params[0].flatten()
    if op.kind == "linear":
        return functional.linear(x, *params)
    y = torch_layout(x)
    if op.kind == "batch_norm":
        weight, bias, mean, variance, count = params
        assert count is None
        return stored(functional.batch_norm(y, mean, variance, weight, bias, **attrs))
    if op.kind.startswith("conv2d"):
        weight = params[0] if params[0].dim() == 4 else params[0][:, :, None, None]
        assert attrs.pop("kernel") == tuple(weight.shape[2:])
        return stored(functional.conv2d(y, weight, params[1], **attrs))
    if op.kind == "conv_transpose2d":
        steps, padding = attrs["stride"], attrs["padding"]
        least = functional.conv_transpose2d(
            y, *params, steps, padding, 0, attrs["groups"], attrs["dilation"]
        )
        more = (shape[1] - least.shape[2], shape[2] - least.shape[3])
        return stored(
            functional.conv_transpose2d(
                y, *params, steps, padding, more, attrs["groups"], attrs["dilation"]
            )
        )
    if op.kind == "adaptive_avg_pool2d":
        return stored(functional.adaptive_avg_pool2d(y, shape[1:3]))
    if op.kind in ("max_pool2d", "avg_pool2d"):
        pool, kernel = getattr(functional, op.kind), attrs.pop("kernel")
        results = [stored(pool(y, kernel, ceil_mode=ceil, **attrs)) for ceil in (False, True)]
        return next(result for result in results if result.shape == shape)
    return stored(getattr(functional, op.kind)(y, **attrs))


def stored(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous() if x.dim() == 4 else x


def torch_layout(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2).contiguous()


def kinds(network: Network) -> list[str]:
    return [op.kind for op in network.ops]


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


@pytest.mark.parametrize(
    ("layer", "shape", "kind"),
    [
        (torch.nn.Flatten(), (2, 3, 4, 5), "flatten"),
        (torch.nn.Flatten(), (2, 3, 1, 1), "view"),
        (torch.nn.Flatten(), (2, 1, 4, 5), "view"),
        (torch.nn.Flatten(), (2, 7), "view"),
        (torch.nn.AdaptiveAvgPool2d((4, 5)), (2, 3, 4, 5), "view"),
        (torch.nn.AdaptiveAvgPool2d((None, 1)), (2, 3, 4, 5), "adaptive_avg_pool2d"),
        (torch.nn.AvgPool2d(1), (2, 3, 4, 5), "view"),
        (torch.nn.AvgPool2d(1, stride=2), (2, 3, 4, 5), "avg_pool2d"),
        (torch.nn.AvgPool2d(1, divisor_override=2), (2, 3, 4, 5), "avg_pool2d"),
        (torch.nn.Dropout(0.0), (2, 3, 4, 5), "view"),
        (torch.nn.Dropout(0.5), (2, 3, 4, 5), "dropout"),
        (torch.nn.Dropout(0.5).eval(), (2, 3, 4, 5), "view"),
        (torch.nn.Identity(), (2, 3, 4, 5), None),
    ],
    ids=str,
)
def test_what_moves_no_bytes_is_a_view(
    layer: torch.nn.Module, shape: tuple[int, ...], kind: str | None
) -> None:
    network = trace(torch.nn.Sequential(torch.nn.ReLU(), layer), (torch.empty(shape),))
    assert kinds(network) == (["relu", kind] if kind else ["relu"])


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


class Reshaped(torch.nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().contiguous().view(self.shape)


@pytest.mark.parametrize(
    ("shape", "target", "kind"),
    [
        ((2, 3, 4, 5), (2, -1), "flatten"),
        ((2, 3, 4, 5), (2, 60), "flatten"),
        ((2, 3, 4, 5), (2, 3, 4, 5), "view"),
        ((2, 6), (2, 6, 1, 1), "view"),
        ((2, 6), (2, 1, 2, 3), "view"),
        ((2, 6, 1, 1), (-1, 1, 2, 3), "view"),
    ],
)
def test_reshapes(shape: tuple[int, ...], target: tuple[int, ...], kind: str) -> None:
    module, x = Reshaped(*target), torch.randn(shape)
    network = trace(module, [x])
    assert kinds(network) == ["relu", "view", kind]
    assert torch.equal(run(network, module, [x])[0], stored(module(x)))


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((2, 3, 4, 5), (6, 20)),
        ((2, 6), (4, 3)),
    ],
)
def test_other_reshapes_are_refused(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedOpError, match=r"Reshaped: reshape of \(2.*to \("):
        trace(Reshaped(*target), (torch.empty(shape),))


class Twice(torch.nn.Module):
    """A layer that runs twice, and two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.unused = torch.nn.Linear(4, 4)

    def forward(self, x: Tensor) -> list[Tensor]:
        self.unused(x)
        y = self.first(self.second(self.first(x)))
        return [y, y, x]


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


class Inputs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)

    def forward(self, image: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        return (image.relu(), *(self.fc(other) for other in others))


def test_inputs_have_forwards_names() -> None:
    shapes = ((2, 3, 4, 4), (2, 3), (2, 3))
    network = trace(Inputs(), [torch.empty(shape) for shape in shapes])
    assert network.inputs == ("image", "others0", "others1")
    assert network.outputs == ("relu", "fc", "fc#2")
    assert network.values["image"].shape == (2, 4, 4, 3)


class Stale(torch.nn.Module):
    """Makes of a convolution's map what `way` says."""

    def __init__(self, way: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 3, 1)
        self.way = way

    def forward(self, x: Tensor) -> Any:
        return self.way(self.conv(x))


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


class Unsupported(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.SyncBatchNorm(4))
        self.reflect = torch.nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.act = torch.nn.Sequential(torch.nn.Softshrink(), torch.nn.ReLU())
        self.rnn = torch.nn.LSTM(4, 4)
        self.hooked = torch.nn.ReLU()
        self.hooked.register_full_backward_hook(lambda module, before, after: None)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hooked(self.act(self.reflect(self.block(x))))
        left, right = x.chunk(2, 1)
        x = torch.cat([left, right.cumsum(1)], 1) + x[:, :1]
        x, _ = functional.max_pool2d(x, 2, return_indices=True)
        x = functional.conv2d(x, torch.ones(4, 4, 3, 3))
        torch.softmax(x, 1)
        return self.rnn(x.std((2, 3)))[0]


def without_place(line: str) -> str:
    return re.sub(rf" at \S*{Path(__file__).name}:\d+$", "", line)


def test_everything_unsupported_is_listed_at_once() -> None:
    module = Unsupported()
    running = module.block[1].running_mean.clone()
    with pytest.raises(UnsupportedOpError) as caught:
        trace(module, (torch.ones(2, 3, 12, 12),))
    lines = str(caught.value).splitlines()
    here = Path(__file__).relative_to(Path.cwd())
    assert re.fullmatch(rf"  act\.0: Softshrink at {here}:\d+", lines[2])
    assert [without_place(line) for line in lines] == [
        "tvdnn cannot trace this network:",
        "  block.1: SyncBatchNorm (tvdnn.nn.BatchNorm2d, whose statistics are those of the whole"
        " batch)",
        "  act.0: Softshrink",
        "  hooked: ReLU with backward hooks, which would not run (remove them)",
        "  Unsupported: cumsum",
        "  Unsupported: max_pool2d_with_indices",
        "  Unsupported: conv2d with a weight or bias that is not a parameter or buffer",
        "  rnn: LSTM",
        f"supported: {SUPPORTED}",
    ]
    assert torch.equal(module.block[1].running_mean, running)
    assert module.block[1].num_batches_tracked == 0


class Deciding(torch.nn.Module):
    """Its course and the sizes of its maps hang on values, in branches, loops and a block."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Counted()
        self.gate = torch.nn.RReLU()

    def forward(self, x: Tensor) -> Tensor:
        if x.amax() > 1:
            x = x.relu()
        while x.amin() < 0:
            x = x.tanh()
        x = self.block(x)
        x = self.gate(x)
        return x.view(int(x.argmax()), -1).cos()


class Counted(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x[x > 0]
        return x.view(x.shape[0], 1)


def test_control_flow_and_dynamic_shapes_are_listed_with_all_else() -> None:
    with pytest.raises(UnsupportedOpError) as caught:
        trace(Deciding(), (torch.ones(2, 3),))
    values = "by which control flow or a shape would hang on the values of a tensor"
    lines = str(caught.value).splitlines()
    assert [without_place(line) for line in lines] == [
        "tvdnn cannot trace this network:",
        "  Deciding: amax of (2, 3) over () (it takes dimensions other than the batch)",
        f"  Deciding: gt as a condition, {values}",
        "  Deciding: amin of (2, 3) over () (it takes dimensions other than the batch)",
        f"  Deciding: lt as a condition, {values}",
        "  block: gt",
        "  block: getitem",
        "  gate: RReLU (tvdnn.nn.LeakyReLU has a fixed slope)",
        f"  Deciding: argmax as a number, {values}",
        "  Deciding: cos",
        f"supported: {SUPPORTED}",
    ]
    assert all(without_place(line) != line for line in lines[1:-1])


class Returns(torch.nn.Module):
    """Returns what `way` makes of its input."""

    def __init__(self, way: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2, 4))
        self.way = way

    def forward(self, x: Tensor) -> Any:
        return self.way(x)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda x: {"logits": {"main": {x}}}, "returns set where it may"),
        (lambda x: (x, object()), "returns object where"),
        (lambda x: ([None], {}), "returns no tensor where"),
        (lambda x: (), "returns no tensor where"),
        (lambda x: torch.ones(2), "does not come from its inputs"),
        (lambda x: x if x.sum() > 0 else -x, "Returns: .*control flow"),
        (lambda x: torch.relu(torch.ones(2, 4)) + x, "Returns: add of a tensor that does not come"),
        (lambda x: functional.linear(torch.ones(2, 4), x), "does not come from the inputs"),
        (lambda x: functional.linear(x.unsqueeze(1), x), "linear over an input of 3"),
        (lambda x: functional.dropout2d(x), "dropout2d of"),
        (lambda x: functional.leaky_relu(x, -0.1), "leaky_relu with a slope of -0.1"),
        (lambda x: x.T, "Returns: T"),
        (lambda x: x.long(), "Returns: long"),
    ],
)
def test_what_cannot_be_traced_says_so(way: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(Returns(way), (torch.empty(2, 4),))


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


class Permuted(torch.nn.Module):
    """Layers over the channels of maps whose channels are last, and ways to make such maps."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(3, eps=1e-3)
        self.fc = tvdnn.nn.Linear(3, 5)
        self.out = tvdnn.nn.LayerNorm(100, elementwise_affine=False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.fc(self.norm(torch.permute(x, (0, 2, 3, 1))))
        y = functional.dropout(functional.relu(y), 0.0)
        back = torch.transpose(y.transpose(1, -1), 2, 3)
        turned = functional.linear(x.permute([0, 3, 2, 1]).transpose(1, 2), self.fc.weight)
        return self.out(y.flatten(1)), back.reshape(2, -1), functional.max_pool2d(back, 2), turned


def test_permuted_maps_are_the_same_bytes() -> None:
    module, x = Permuted(), torch.randn(2, 3, 4, 5)
    network = trace(module, [x])
    found = dict(zip(network.outputs, run(network, module, [x]), strict=True))
    for name, exact in zip(network.outputs, module(x), strict=True):
        value = network.values[name]
        ours = found[name].permute(value.torch_axes)
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-6)
    assert kinds(network) == [
        *("view", "layer_norm", "conv2d", "relu", "view", "view", "view", "view", "view"),
        *("conv2d", "view", "layer_norm", "flatten", "max_pool2d"),
    ]


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda x: functional.layer_norm(x, (5,)), r"layer_norm of \(2, 3, 4, 5\) over \(5,\)"),
        (lambda x: x.transpose(0, 1), "permute of the batch"),
    ],
)
def test_what_would_move_permuted_bytes_is_refused(
    way: Callable[[Tensor], Any], message: str
) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        trace(Returns(way), (torch.empty(2, 3, 4, 5),))


def test_linear_of_maps_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="linear over an input of 4 dimensions"):
        trace(torch.nn.Linear(5, 4), (torch.empty(2, 3, 4, 5),))


def test_parameters_are_float32_or_bfloat16() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3).bfloat16(), torch.nn.Linear(3, 3).half())
    with pytest.raises(InputError, match=r"parameter 1\.weight is float16.*\.float\(\)"):
        trace(module, (torch.empty(2, 3),))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((torch.empty(2),), r"image has shape \(2,\); inputs are"),
        (
            (torch.empty(2, 3), torch.empty(3, 3)),
            "others0 has a batch of 3 where the first input's is 2",
        ),
        ((torch.zeros(2, 3, dtype=torch.int64),), "image is int64"),
        ((), "no example inputs"),
    ],
)
def test_inputs_are_checked(inputs: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        trace(Inputs(), inputs)


def test_too_many_inputs() -> None:
    with pytest.raises(InputError, match="does not take 2 example inputs"):
        trace(Twice(), (torch.empty(2, 4), torch.empty(2, 4)))


def test_sizes_that_do_not_fit_name_the_layer() -> None:
    module = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(5, 2))
    with pytest.raises(InputError, match=r"1 of shapes \[\(2, 4\), \(2, 5\)"):
        trace(module, (torch.empty(2, 4),))
