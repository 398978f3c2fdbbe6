"""Squeeze and excitation: averages and gates normalize the map that they alone read."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.squeeze import (
    NETWORKS,
    Inverted,
    Residual,
    Squeeze,
    chain,
    inverted,
    residual,
)
from tests.support.lowered import lower
from tests.support.plans import random_plan
from tests.support.provenance import assert_refuses_others
from tests.support.running import Batch, random_batches, train
from tvdnn.engine import training_graph
from tvdnn.engine.build import default_costs
from tvdnn.graph import BITS, Direction, Graph, Kind, Pass
from tvdnn.optim import SGD
from tvdnn.planner.make import make_schedule
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.verify.check import check
from tvdnn.planner.verify.graph_values import check_provenance

SHAPE = (5, 3, 8, 8)
TYPES = ("bf16", "tf32")  # in which maps are normalized again
GATE, SUM, RECTIFIED = "gate_multiply", "gate_multiply_add", "gate_multiply_add_relu"


def graph_of(net: nn.Module, *, dtype: str = "bf16", **settings: object) -> Graph:
    options = {"fuse": True, "remakes_maps": True, "chunk_size": 4096} | settings
    return training_graph(net, torch.empty(SHAPE), optimizer=SGD(), dtype=dtype, **options)


def passes_of(graph: Graph, role: str, *kinds: str) -> list[Pass]:
    return [each for each in graph.passes if each.role == role and graph.ops[each.op].kind in kinds]


def makers(graph: Graph, role: str, *kinds: str) -> list[str]:
    return [each.attrs.get("maker", "") for each in passes_of(graph, role, *kinds)]


def kept(graph: Graph) -> dict[str, int]:
    """The bytes of the maps that backward passes read."""
    backward = [each for each in graph.passes if each.direction is Direction.BACKWARD]
    names = {use.buffer for each in backward for use in each.reads}
    held = {name: graph.buffers[name] for name in names}
    return {name: each.nbytes for name, each in held.items() if each.kind is Kind.MAP}


class Squeezed(nn.Module):
    """A normalized map, its squeeze and excitation, and what else reads the map."""

    def __init__(
        self, also: Callable[[Tensor], Tensor] | None = None, channels: int = 16, side: int = 1
    ) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.gate, self.also, self.side = nn.Conv2d(channels, channels, 1), also, side

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        gates = torch.sigmoid(self.gate(functional.adaptive_avg_pool2d(x, self.side)))
        y = x * functional.adaptive_avg_pool2d(gates, 1)
        return (y if self.also is None else y + self.also(x)).mean((2, 3))


class Half(Squeezed):
    """Of half of a map's channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        part, rest = self.stem(x).split(16, 1)
        x = self.norm(part).relu()
        y = x * torch.sigmoid(self.gate(functional.adaptive_avg_pool2d(x, 1)))
        return (y + rest).mean((2, 3))


def frozen(net: nn.Module, *, statistics: bool = False) -> nn.Module:
    """The network with parameters before the gate that do not train, or constant statistics."""
    if statistics:
        net.norm.eval()
    else:
        net.stem.requires_grad_(False)
        net.norm.requires_grad_(False)
    return net


class Own(Squeezed):
    """The map is also the residual."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        y = x * torch.sigmoid(self.gate(functional.adaptive_avg_pool2d(x, 1))) + x
        return y.relu().mean((2, 3))


class Joined(Squeezed):
    """Rectified sums that lie side by side in one map, one of them beside a frozen residual."""

    def __init__(self) -> None:
        super().__init__()
        self.other, self.last = nn.Conv2d(3, 16, 1), nn.Conv2d(40, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        z, other = self.norm(self.stem(x)), self.other(x)
        gates = torch.sigmoid(self.gate(functional.adaptive_avg_pool2d(z, 1)))
        first, second = (z * gates + other).relu(), (other * gates + z.detach()).relu()
        return self.last(torch.cat([first, x, second, x[:, :2], x], 1)).mean((2, 3))


def test_residual_blocks_are_one_pass_behind_the_gates() -> None:
    graph = graph_of(residual())
    kinds = [op.kind for op in graph.network.ops]
    assert not {"add", "relu", "gate_multiply"} & set(kinds)
    assert [each for each in kinds if "gate" in each] == [RECTIFIED, SUM, RECTIFIED]
    for role in ("forward", "grad_input"):
        assert makers(graph, role, SUM, RECTIFIED) == ["normalize"] * 3
    *blocks, head = makers(graph, "forward", "adaptive_avg_pool2d")
    assert (blocks, head) == (["normalize"] * 3, "")
    assert not passes_of(graph, "mask", RECTIFIED)
    (last, _, first) = passes_of(graph, "grad_input", SUM, RECTIFIED)
    assert [each.attrs["leaves_masked"] for each in (last, first)] == [True, True]


def test_no_map_is_stored_between_a_normalization_and_its_gate() -> None:
    graphs = [graph_of(residual(), remakes_maps=remakes) for remakes in (False, True)]
    stored, made = map(kept, graphs)
    norms = {op.output for op in graphs[0].network.ops if op.kind == "batch_norm"}
    assert len(norms) == 3
    assert norms <= stored.keys()
    assert not norms & graphs[1].buffers.keys()
    peaks = [make_schedule(each, default_costs(each), policy="keep").peak_nbytes for each in graphs]
    gone = sum(stored[name] for name in norms)
    assert peaks[1] <= peaks[0] - gone // 2  # gradients take the place of others
    assert sum(made.values()) <= sum(stored.values()) - gone


def test_products_that_a_convolution_makes_are_made_of_the_map_before_backward() -> None:
    """The first block's map is stored for its convolution, the second's not.

    The third's pixels start at no whole words.
    """
    graph = graph_of(inverted("hardswish"))
    maps = [op.output for op in graph.network.ops if op.kind == "batch_norm_activation"]
    assert [name in graph.buffers for name in maps] == [True, False, True]
    assert maps[0] not in kept(graph)
    assert [each for each in makers(graph, "forward", "conv2d") if each] == ["gate"]
    assert makers(graph, "forward", GATE) == ["normalize", ""]
    assert makers(graph, "grad_input", GATE) == ["", "normalize", "normalize"]
    both = [each for each in makers(graph, "grad_weight", "conv2d") if each]
    assert both == ["normalize gate"] * 2


def test_exponentials_and_many_outputs_load_the_stored_map() -> None:
    """Before a convolution, whose gradient of the weight would take longer to make it again."""
    wide = chain(Inverted(32, 96, 260, "relu"), channels=260)
    for net in (inverted("silu"), wide):
        graph = graph_of(net)
        norms = {op.output for op in graph.network.ops if op.kind.startswith("batch_norm_")}
        gated = {op.inputs[0] for op in graph.network.ops if op.kind == GATE}
        assert gated <= norms & kept(graph).keys()
        assert "gate" in makers(graph, "grad_weight", "conv2d")


@pytest.mark.parametrize(
    ("net", "settings"),
    [
        (Squeezed(), {"dtype": "fp32"}),
        (Squeezed(), {"remakes_maps": False}),
        (Squeezed(torch.neg), {}),
        (Squeezed(lambda x: functional.adaptive_avg_pool2d(x, 1)), {}),
        (Squeezed(channels=12), {}),
        (Squeezed(side=2), {}),
        (Half(), {}),
        (frozen(Squeezed()), {}),
        (frozen(Squeezed(), statistics=True), {}),
    ],
    ids=[
        "fp32",
        "not asked",
        "three readers",
        "two averages",
        "no whole words",
        "averages of parts",
        "a range",
        "no gradient",
        "constant statistics",
    ],
)
def test_other_maps_are_stored(net: nn.Module, settings: dict[str, object]) -> None:
    graph = graph_of(net, **settings)
    for role in ("forward", "grad_input"):
        assert set(makers(graph, role, GATE, SUM, "adaptive_avg_pool2d")) == {""}


@pytest.mark.parametrize("dtype", TYPES)
def test_the_case_itself_is_not_stored(dtype: str) -> None:
    graph = graph_of(Squeezed(), dtype=dtype)
    assert makers(graph, "forward", GATE, "adaptive_avg_pool2d").count("normalize") == 2


def assert_alike(make: Callable[[], nn.Module], batches: list[Batch], dtype: str) -> None:
    """Apart, fused, and normalized again by any plan, the network trains to the same bits."""
    how = {"optimizer": SGD(), "dtype": dtype, "chunk_size": 4096}
    plain, fused, made = (
        training_graph(make(), batches[0][0], fuse=fuse, remakes_maps=remakes, **how)
        for fuse, remakes in ((False, False), (True, False), (True, True))
    )
    costs = default_costs(made)
    expected = train(make(), lower(plain, keep(plain), costs), batches)
    assert train(make(), lower(fused, keep(fused), costs), batches).equals(expected)
    for seed in range(3):
        schedule = lower(made, random_plan(made, random.Random(seed)), costs)
        check(schedule)
        assert train(make(), schedule, batches, order_seed=seed).equals(expected)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["residual", "branches", "silu"])
def test_any_plan_trains_to_the_same_bits(name: str, dtype: str) -> None:
    assert_alike(NETWORKS[name].network, NETWORKS[name].batches(2, seed=6), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("make", [Squeezed, Half, Own, Joined])
def test_small_networks_train_to_the_same_bits(make: Callable[[], nn.Module], dtype: str) -> None:
    def seeded() -> nn.Module:
        torch.manual_seed(4)
        return make()

    assert_alike(seeded, random_batches(2, SHAPE, 4, seed=7), dtype)


def test_signs_rest_as_bits() -> None:
    """The output of a rectified sum may rest as the bits that mask its gradient."""
    net = chain(Residual(32, 16), Residual(32, 16), channels=32)
    graph = graph_of(net)
    for each in passes_of(graph, "forward", RECTIFIED):
        assert each.writes[0].also == (BITS,)
    for each in passes_of(graph, "grad_input", RECTIFIED):
        assert each.reads[3].forms == (BITS,)


@pytest.mark.parametrize("net", [residual(), inverted("silu")], ids=["residual", "inverted"])
def test_the_proof_finds_another_source(net: nn.Module) -> None:
    """Another buffer in the place of a map that is normalized on load, or of its statistics."""
    graph = graph_of(net)
    check_provenance(graph)
    for place, pass_ in enumerate(graph.passes):
        if "maker" not in pass_.attrs or pass_.role == "grad_weight":
            continue
        for use in (pass_.reads[0], pass_.reads[-1]):
            assert_refuses_others(graph, place, use)


def test_the_squeeze_of_a_product_loads_it() -> None:

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm = nn.Conv2d(3, 16, 1), nn.BatchNorm2d(16)
            self.first, self.second = Squeeze(16), Squeeze(16)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(self.norm(self.stem(x)))).mean((2, 3))

    assert makers(graph_of(Twice()), "forward", GATE) == ["normalize", ""]
