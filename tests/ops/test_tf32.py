"""In tf32, what products read was rounded to nearest, and no other map is.

Tensor cores would cut their operands toward zero; of other maps torch keeps every bit.
"""

import copy
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.accuracy import (
    eager_tf32,
    gradients,
    pooled_rms,
    relative_errors,
    torch_layers,
    torchs_precision,
)
from tests.support.networks import Dense, Gated, Sum, activations, random_chain
from tests.support.running import random_batches
from tvdnn.engine import Trainer, training_graph, virtualize
from tvdnn.engine.build import resolve_dtype
from tvdnn.graph import Graph, Need, Use
from tvdnn.kernels.conv.conv2d import rounding
from tvdnn.kernels.language.rounding import stored_reference
from tvdnn.models.resnet import Bottleneck
from tvdnn.ops.registry import copies_values, multiplies
from tvdnn.runtime import runner
from tvdnn.runtime.kernel_set import kernel_set

BATCH, SIDE, CLASSES = 3, 8, 4
SEEDS, MOST = range(8), 1.25
PRODUCTS = (
    "conv2d",
    "conv2d_max_pool",
    "conv2d_grad_input",
    "conv2d_grad_last",
    "conv2d_grad_weight",
    "linear",
    "linear_grad_input",
    "linear_grad_weight",
    "linear_grad_weight_sgd",
)


def make_net() -> nn.Sequential:
    """Every op whose results TF32 does not hold, between products."""
    torch.manual_seed(3)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.LocalResponseNorm(3), nn.MaxPool2d(3, 1, 1)),
        *(nn.Conv2d(16, 16, 3), nn.AvgPool2d(3, 1), nn.Conv2d(16, 16, 1), nn.Dropout(0.3)),
        *(nn.Conv2d(16, 16, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 1)),
        *(nn.BatchNorm2d(16), nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16), nn.ReLU()),
        nn.Conv2d(16, 16, 1),
        *(module for each in activations() for module in (each, nn.Conv2d(16, 16, 1))),
        *(nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Dropout(0.3)),
        *(nn.LayerNorm(16), nn.Linear(16, 16), nn.GroupNorm(4, 16), nn.Linear(16, 16)),
        *(nn.Linear(16, 8), nn.Dropout(0.3), nn.Linear(8, CLASSES)),
    )


def head(channels: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)


def is_tf32(values: torch.Tensor) -> bool:
    return torch.equal(values, stored_reference(values, torch.float32, "tf32"))


def forks() -> nn.Sequential:
    """Products, and others, that read sums, ranges of concatenations, gates and means."""
    torch.manual_seed(3)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), Bottleneck(16, 4, 8, 1, 1), Dense(16, 8, 3)),
        *(nn.BatchNorm2d(40), nn.Sigmoid(), nn.Conv2d(40, 16, 1), Gated(16)),
        *(Sum([nn.ConvTranspose2d(16, 16, 1), nn.Conv2d(16, 16, 3, 1, 1, groups=16)], False),),
        *(nn.Conv2d(16, 8, 1, bias=False), nn.Conv2d(8, 8, 1), nn.GELU()),
        *head(8),
    )


@pytest.mark.parametrize("policy", ["keep", "vdnn-all:m"])
@pytest.mark.parametrize("make", [make_net, forks])
def test_products_read_what_tf32_holds(
    make: Callable[[], nn.Module], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, seen = kernel_set("torch"), set()

    def watched(name: str) -> Callable[..., None]:
        launch = getattr(whole, name)

        def run(*args: Any, **settings: Any) -> None:
            seen.add(name)
            for operand in args[:2]:
                assert is_tf32(operand), name
            launch(*args, **settings)

        return run

    watching = {name: watched(name) for name in PRODUCTS}
    both = SimpleNamespace(**(vars(whole) | watching))
    monkeypatch.setattr(runner, "kernel_set", lambda *_: both)
    net = make()
    ((x, y),) = random_batches(1, (BATCH, 3, SIDE, SIDE), CLASSES, seed=3)
    trainer = Trainer(net, x, policy=policy, dtype="tf32", kernels="torch")
    trainer.step(x, y)
    trainer.close()
    assert {"conv2d", "conv2d_grad_input", "conv2d_grad_weight", "linear"} <= seen


def test_what_no_product_reads_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some convolutions' outputs are operands. Others a normalization or a sum reads."""
    whole, rounded = kernel_set("torch"), defaultdict(list)

    def watched(name: str) -> Callable[..., None]:
        launch = getattr(whole, name)

        def run(*args: Any, **settings: Any) -> None:
            launch(*args, **settings)
            out = args[3 if name == "conv2d" else 2]
            asked = settings["out_precision"] == "tf32"
            assert is_tf32(out) == asked, name
            rounded[name].append(asked)

        return run

    watching = {name: watched(name) for name in ("conv2d", "conv2d_grad_input")}
    both = SimpleNamespace(**(vars(whole) | watching))
    monkeypatch.setattr(runner, "kernel_set", lambda *_: both)
    ((x, y),) = random_batches(1, (BATCH, 3, SIDE, SIDE), CLASSES, seed=3)
    trainer = Trainer(forks(), x, policy="keep", dtype="tf32", kernels="torch")
    trainer.step(x, y)
    trainer.close()
    assert {name: set(asked) for name, asked in rounded.items()} == {
        "conv2d": {True, False},
        "conv2d_grad_input": {True, False},
    }


Spot = tuple[int, int, int]  # a pass, one of its writes, and a channel of that


def operands_of(graph: Graph) -> set[Spot]:
    """The operands of products, found pass by pass from the pass that wrote or moved them."""
    holds: dict[tuple[str, int], set[Spot]] = defaultdict(set)
    found: set[Spot] = set()

    def spots(use: Use) -> Iterable[tuple[str, int]]:
        channels = use.channels or (0, graph.buffers[use.buffer].shape[-1])
        return [(use.buffer, channel) for channel in range(*channels)]

    for index, each in enumerate(graph.passes):
        kind = graph.ops[each.op].kind
        read = [set().union(*(holds[spot] for spot in spots(use))) for use in each.reads]
        if multiplies(kind, each.role):
            for use, makers in zip(each.reads, read, strict=True):
                found |= makers if use.need is Need.VALUES and not use.exact else set()
        for number, use in enumerate(each.writes):
            moved = read[number] if copies_values(kind, each.role) and number < len(read) else set()
            for place, spot in enumerate(spots(use)):
                holds[spot] = {(index, number, place)} | moved
    return found


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_maps_are_rounded_where_products_read_them(seed: int, fuse: bool) -> None:
    net = random_chain(random.Random(seed), 6, 10, CLASSES, forks=True) if seed else forks()
    x = torch.empty(BATCH, 6 if seed else 3, 10, 10)
    graph = training_graph(net, x, dtype="tf32", fuse=fuse)
    want: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, number, channel in operands_of(graph):
        want[index, number].append(channel)
    got = {
        (index, number): channels
        for index, each in enumerate(graph.passes)
        for number, channels in enumerate(each.rounded)
        if channels is not None
    }
    assert got == {spot: (min(channels), max(channels) + 1) for spot, channels in want.items()}
    for other in ("fp32", "bf16"):
        graph = training_graph(net, x, dtype=other, fuse=fuse)
        assert not any(each.rounded for each in graph.passes)


def test_of_a_dense_blocks_gradient_the_last_channels_are_rounded() -> None:
    """Gradients of complete sums, which the convolution that made the map multiplies."""
    net = nn.Sequential(nn.Conv2d(3, 16, 1), nn.BatchNorm2d(16), nn.ReLU(), Dense(16, 8, 3))
    net.extend([nn.BatchNorm2d(40), nn.Flatten(), nn.Linear(40, CLASSES)])
    graph = training_graph(net, torch.empty(2, 3, 1, 1), dtype="tf32", fuse=True)
    grads = [each for each in graph.passes if each.role == "grad_input" and "adds" in each.attrs]
    assert [each.rounded for each in grads] == [
        *(((32, 40),), ((24, 32),), ((16, 24),), (None,), ((0, 16),))
    ]


def test_biases_sum_gradients_that_are_not_rounded_yet() -> None:
    """In place behind GELU, in a copy where a sum's other term has the gradient too."""
    both = Sum([nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.Conv2d(8, 8, 1)], False)
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.GELU(), both, nn.Conv2d(8, 8, 1), nn.ReLU())
    net.extend([nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, CLASSES)])
    graph = training_graph(net, torch.empty(2, 3, 2, 2), dtype="tf32", fuse=True)
    roles: dict[str, list[str]] = defaultdict(list)
    copies = {}
    for each in graph.passes:
        if each.role in ("grad_bias", "round", "grad_weight") and "conv" in graph.ops[each.op].kind:
            roles[each.op].append(each.role)
        if each.role == "round":
            copies[each.op] = each.reads[0].buffer != each.writes[0].buffer
    exactly = ["grad_bias", "round", "grad_weight"]
    behind_relu = ["grad_weight", "grad_bias"]
    assert [*roles.values()] == [behind_relu, exactly, ["grad_weight"], exactly]
    assert [*copies.values()] == [True, True, False]  # a linear layer's is a copy always


def smooth(net: nn.Module) -> nn.Module:
    """The network with SiLU for ReLU. All runs take the same piece of it."""
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, nn.SiLU())
    return net


def dense(channels: int, layers: int) -> nn.Sequential:
    """A dense block as DenseNet has it, whose convolutions have no bias."""
    block = Dense(channels, 8, layers)
    for layer in block.layers:
        layer[2].bias = None
    width = channels + 8 * layers
    return nn.Sequential(block, nn.BatchNorm2d(width), nn.ReLU())


def gated(channels: int) -> nn.Sequential:
    """A depthwise convolution, squeeze and excitation, and a product over channels."""
    depthwise = nn.Conv2d(channels, channels, 3, 1, 1, groups=channels)
    layers = depthwise, nn.BatchNorm2d(channels), nn.SiLU(), Gated(channels)
    return nn.Sequential(*layers, nn.Conv2d(channels, channels, 1))


WIDTH = 32
NETS: dict[str, Callable[[], Iterable[nn.Module]]] = {
    "residual": lambda: (
        *(Bottleneck(WIDTH, WIDTH // 4, 16, 1, 1) for _ in range(3)),
        *head(WIDTH),
    ),
    "dense": lambda: (dense(WIDTH, 6), *head(WIDTH + 48)),
    "gated": lambda: (*(gated(WIDTH) for _ in range(3)), *head(WIDTH)),
}


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_as_accurate_as_products_of_tf32_allow(name: str) -> None:
    """Errors beside torch with only the operands of products rounded, pooled over seeds."""
    errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seed in SEEDS:
        torch.manual_seed(seed)
        blocks = NETS[name]()
        net = smooth(nn.Sequential(nn.Conv2d(3, WIDTH, 3, 1, 1, bias=False), *blocks))
        ((x, y),) = random_batches(1, (8, 3, SIDE, SIDE), CLASSES, seed)
        exact = gradients(torch_layers(net).double(), x.double(), y)
        nets = {
            "eager": eager_tf32(net),
            "ours": virtualize(copy.deepcopy(net), x, dtype="tf32", policy="keep"),
        }
        for side, each in nets.items():
            for param, error in relative_errors(gradients(each, x, y), exact).items():
                errors[param][side].append(error)
    ratios = {
        param: pooled_rms(both["ours"]) / pooled_rms(both["eager"])
        for param, both in errors.items()
    }
    assert max(ratios.values()) <= MOST, {n: r for n, r in ratios.items() if r > MOST}


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("function", ["Sigmoid", "Tanh", "Softmax", "LogSoftmax"])
def test_gradients_do_not_read_rounded_outputs(function: str, normalized: bool) -> None:
    """A product that reads the output, moved, has one weight: no other terms hide an element."""
    settings = {"dim": 1} if "oftmax" in function else {}
    product = nn.Conv2d(4, 1, 1, bias=False)
    before = [nn.BatchNorm2d(4, affine=False, eps=1e-12)] if normalized else []
    net = nn.Sequential(*before, getattr(nn, function)(**settings), nn.ChannelShuffle(2), product)
    with torch.no_grad():
        product.weight[:] = torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 4, 1, 1)
    spread = 2.0 if function == "Tanh" else 4.0
    x = spread * torch.randn(BATCH, 4, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    found = []
    for each, given in ((copy.deepcopy(net).double(), x.double()), (net, x.clone())):
        given.requires_grad_()
        run = each if given.dtype == torch.float64 else virtualize(net, given, dtype="tf32")
        run(given).sum().backward()
        found.append(given.grad)
    exact, ours = found
    assert exact is not None
    assert ours is not None
    assert (ours[:, 0].abs() > 0).all()
    torch.testing.assert_close(ours.double(), exact, rtol=2**-9, atol=0.0)


@pytest.mark.parametrize("dtype", ["fp32", "tf32"])
def test_torchs_switch_of_convolutions_alone_is_followed_and_left(dtype: str) -> None:
    """Where that of recurrent layers differs, torch refuses to say what cuDNN as a whole does."""
    with torchs_precision(dtype):
        asked = torch.backends.cudnn.conv.fp32_precision
        for precision in ("ieee", "tf32"):
            with rounding(precision):
                assert torch.backends.cudnn.conv.fp32_precision == precision
        assert torch.backends.cudnn.conv.fp32_precision == asked
        assert resolve_dtype(None, torch.device("cuda")) == dtype
    assert resolve_dtype(None, torch.device("cpu")) == "fp32"
