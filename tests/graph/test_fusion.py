"""Fused ops: which ops the rewrites join, and the bits of a fused step."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from tests.networks.scaled_residual import falling
from tests.networks.squeeze import residual as gated_residuals
from tests.support.examples import CHAIN, examples
from tests.support.networks import NetworkMaker, random_chain, vgg
from tests.support.running import random_batches, train
from tvdnn import models
from tvdnn.engine import training_graph
from tvdnn.graph import Graph, Kind, Network, fuse, relu_max_pool2d_codes
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.make import make_schedule
from tvdnn.planner.verify.check import check
from tvdnn.trace.trace import trace
from tvdnn.units import MIB

STEPS = 2
CLASSES = 4

pytestmark = pytest.mark.usefixtures("units_of_one")


def kinds(network: Network) -> list[str]:
    return [op.kind for op in network.ops]


def chain(*layers: Sequence[object]) -> Network:
    """A network of maps [2, 8, 8, 4]; each layer is a method of NetworkMaker and its arguments."""
    maker = NetworkMaker((2, 8, 8, 4))
    for name, *arguments in layers:
        getattr(maker, name)(*arguments)
    return maker.build()


def test_conv2d_takes_relu_in() -> None:
    plain = chain(("conv", 8), ("relu",), ("flatten",), ("linear", 3))
    (conv, *_), (first, *_) = fuse(plain).ops, plain.ops
    assert kinds(fuse(plain)) == ["conv2d_relu", "flatten", "linear"]
    assert (conv.name, conv.inputs, conv.params) == (first.name, first.inputs, first.params)
    assert conv.output == plain.ops[1].output
    assert conv.attrs == first.attrs
    assert set(fuse(plain).values) == set(plain.values) - {first.output}


def test_conv2d_takes_relu_and_quartering_pools_in() -> None:
    network = fuse(chain(("conv", 8), ("relu",), ("max_pool",), ("flatten",), ("linear", 3)))
    assert kinds(network) == ["conv2d_relu_max_pool2d", "flatten", "linear"]
    assert network.ops[0].attrs["sides"] == (8, 8)
    assert network.values[network.ops[0].output].shape == (2, 4, 4, 8)


@pytest.mark.parametrize(("channels", "kernel"), [(8, 3), (6, 2)])
def test_other_pools_stay_apart(channels: int, kernel: int) -> None:
    """Windows that are not 2x2, and channels that no whole byte of codes covers."""
    network = fuse(chain(("conv", channels), ("relu",), ("max_pool", kernel), ("flatten",)))
    coded = "max_pool2d_codes" if channels == 8 else "max_pool2d"
    assert kinds(network) == ["conv2d_relu", coded, "flatten"]


def test_linear_takes_relu_and_dropout_in() -> None:
    plain = chain(("flatten",), ("linear", 5), ("relu",), ("dropout", 0.3), ("linear", 3))
    network = fuse(plain)
    assert kinds(network) == ["flatten", "linear_relu_dropout", "linear"]
    assert network.ops[1].attrs == {"p": 0.3, "op_id": plain.ops[3].attrs["op_id"]}
    assert kinds(fuse(chain(("flatten",), ("linear", 5), ("relu",)))) == ["flatten", "linear_relu"]


def test_what_others_read_or_the_network_returns_stays() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = self.conv(x)
            z = nn.functional.relu(y)
            return z, nn.functional.max_pool2d(z, 2), nn.functional.max_pool2d(y, 2)

    network = fuse(trace(Branches(), (torch.empty(2, 3, 4, 4),)))
    assert sorted(kinds(network)) == ["conv2d", "max_pool2d_codes", "max_pool2d_codes", "relu"]


def test_only_poolings_that_read_a_relu_alone_get_codes() -> None:
    """By hand: of three poolings one has no ReLU before it, and one shares its ReLU."""
    layers = [("conv", 8), ("max_pool",), ("relu",), ("max_pool",), ("conv", 8), ("relu",)]
    plain = chain(*layers, ("max_pool",), ("flatten",), ("linear", 3))
    *ops, pool, flat, last = plain.ops
    shared = replace(flat, name="other", inputs=(ops[-1].output,), output="other")
    values = {**plain.values, "other": replace(plain.values[ops[-1].output], name="other")}
    forked = replace(plain, ops=(*ops, pool, shared, flat, last), values=values)
    coded = "max_pool2d_codes"
    pools = [kind for kind in kinds(relu_max_pool2d_codes(plain)) if "pool" in kind]
    assert pools == ["max_pool2d", coded, coded]
    pools = [kind for kind in kinds(relu_max_pool2d_codes(forked)) if "pool" in kind]
    assert pools == ["max_pool2d", coded, "max_pool2d"]


def vgg16(*, fuse: bool) -> Graph:
    """A training step of VGG-16(16) in bfloat16."""
    return expand(vgg(16), Settings("bf16", 4 * MIB, optimizer=SGD(momentum=0.9), fuse=fuse))


def nbytes_of(graph: Graph, kind: Kind) -> int:
    return sum(buffer.nbytes for buffer in graph.buffers.values() if buffer.kind is kind)


def test_additions_take_scaled_and_dropped_branches_in() -> None:
    net, x = falling(), torch.empty(2, 3, 8, 8)
    plain = trace(net, (x,), ordered=True)
    joined = [op for op in fuse(plain).ops if op.kind.endswith("_add")]
    assert [op.kind for op in joined] == ["scale_channels_add"] * 3 + ["dropout_parts_add"]
    assert [op.attrs.get("part") for op in joined] == ["row", "batch", None, "channel"]
    apart = {"scale_channels", "dropout_parts", "add"}
    assert not apart & set(kinds(fuse(plain)))
    assert [op.output for op in joined] == [op.output for op in plain.ops if op.kind == "add"]


def test_additions_take_gated_branches_in_and_their_relu() -> None:
    network = fuse(trace(gated_residuals(), (torch.empty(2, 3, 8, 8),), ordered=True))
    gated = [op for op in network.ops if "gate" in op.kind]
    kinds_behind = ["gate_multiply_add_relu", "gate_multiply_add", "gate_multiply_add_relu"]
    assert [op.kind for op in gated] == kinds_behind
    assert all(len(op.inputs) == 3 for op in gated)
    assert not {"add", "relu"} & set(kinds(network))


def test_branches_that_others_read_stay() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(3, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.scale * x
            return (x + y) * y

    network = fuse(trace(Twice(), (torch.empty(2, 3, 8, 8),)))
    assert "scale_channels_add" not in kinds(network)


def test_vgg16_has_no_elementwise_pass_left() -> None:
    """Fifteen ReLUs, five poolings and two dropouts are in products, and their masks too.

    Also the last pooling's: the linear layer behind flatten reads the same elements. The sums over
    cells, that biases need, all leave with data gradients.
    """
    graph = vgg16(fuse=True)
    roles = Counter((graph.ops[pass_.op].kind, pass_.role) for pass_ in graph.passes)
    assert {kind for kind, _ in roles} == {
        "conv2d_relu",
        "conv2d_relu_max_pool2d",
        "flatten",
        "linear_relu_dropout",
        "linear",
        "cross_entropy",
    }
    assert not [role for _, role in roles if role == "mask"]
    assert all(len(p.writes) == 1 for p in graph.passes if p.role == "grad_bias")
    assert roles["conv2d_relu_max_pool2d", "unpool"] == 5


def test_pooled_maps_are_never_written() -> None:
    """Two fifths of the bytes of VGG-16's maps are before its poolings; in their place are codes.

    Two small ones more are those before dropout.
    """
    plain, fused = vgg16(fuse=False), vgg16(fuse=True)
    sides = ((224, 64), (112, 128), (56, 256), (28, 512), (14, 512))
    pooled = [16 * side**2 * channels for side, channels in sides]
    dropped = 2 * 16 * 4096
    gone = nbytes_of(plain, Kind.MAP) - nbytes_of(fused, Kind.MAP)
    assert gone == 2 * (sum(pooled) + dropped)
    assert nbytes_of(fused, Kind.AUX) - nbytes_of(plain, Kind.AUX) == sum(pooled) // 16
    costs = Roofline(load("H200"), "bf16")
    before, after = (make_schedule(graph, costs, policy="keep") for graph in (plain, fused))
    assert after.peak_nbytes < before.peak_nbytes - 0.9 * gone


def planned(
    net: nn.Module, x: torch.Tensor, *, fuse: bool, policy: str, dtype: str, chunk_size: int
) -> Schedule:
    graph = training_graph(
        net, x, optimizer=SGD(momentum=0.9), dtype=dtype, chunk_size=chunk_size, fuse=fuse
    )
    schedule = make_schedule(graph, Roofline(load("H200"), dtype), policy=policy)
    check(schedule)
    return schedule


def same_bits(
    net: nn.Module, shape: tuple[int, ...], *, dtype: str, chunk_size: int, seed: int = 0
) -> None:
    """Train plain, fused, and fused in another order, and compare all losses and weights."""
    batches = random_batches(STEPS, shape, CLASSES, seed)
    options = {"dtype": dtype, "chunk_size": chunk_size}
    x = batches[0][0]
    plain = train(net, planned(net, x, fuse=False, policy="keep", **options), batches)
    for policy in ("keep", "vdnn-all:m"):
        schedule = planned(net, x, fuse=True, policy=policy, **options)
        assert train(net, schedule, batches, order_seed=seed).equals(plain)


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("name", ["lenet5", "alexnet", "vgg"])
def test_fused_steps_have_the_bits_of_plain_ones(name: str, dtype: str) -> None:
    torch.manual_seed(1)
    if name == "lenet5":
        net, shape = models.lenet5(num_classes=CLASSES), (5, 1, 32, 32)
    elif name == "alexnet":
        net, shape = models.alexnet(width=0.125, num_classes=CLASSES), (3, 3, 96, 96)
    else:
        net, shape = models.vgg11(width=0.125, num_classes=CLASSES), (3, 3, 32, 32)
    same_bits(net, shape, dtype=dtype, chunk_size=4096)


@examples(
    40,
    **CHAIN | {"batch": st.integers(1, 7), "channels": st.integers(1, 8)},
    dtype=st.sampled_from(["fp32", "tf32", "bf16"]),
)
def test_any_fused_chain_has_the_bits_of_the_plain_one(
    seed: int, batch: int, image: int, channels: int, chunk_size: int, dtype: str
) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net = random_chain(rng, channels, image, CLASSES)
    shape = (batch, channels, image, image)
    same_bits(net, shape, dtype=dtype, chunk_size=chunk_size, seed=seed)
