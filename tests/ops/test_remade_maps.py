"""Convolutions make maps that they alone read, forward and backward, and nothing stores these."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.networks.remade_maps import NETWORKS, Dense, Inverted, Narrow
from tests.support.lowered import lower
from tests.support.plans import random_plan
from tests.support.provenance import assert_refuses_others
from tests.support.running import train
from tvdnn.engine import training_graph
from tvdnn.engine.build import default_costs
from tvdnn.graph import Direction, Graph, Kind
from tvdnn.optim import SGD
from tvdnn.planner.make import make_schedule
from tvdnn.planner.policies import POLICIES
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.verify.check import check
from tvdnn.planner.verify.graph_values import check_provenance

TYPES = ("bf16", "tf32")


def graph_of(net: nn.Module, *, dtype: str = "bf16", **settings: object) -> Graph:
    options = {"fuse": True, "remakes_maps": True, "chunk_size": 4096} | settings
    return training_graph(net, torch.empty(5, 3, 12, 12), optimizer=SGD(), dtype=dtype, **options)


def makers(graph: Graph, role: str = "grad_weight") -> list[str]:
    """By what convolutions make their maps, in passes of this role."""
    found = [each for each in graph.passes if "maker" in each.attrs and each.role == role]
    convolve = [each for each in found if graph.ops[each.op].kind.startswith("conv2d")]
    return [each.attrs["maker"] for each in convolve]


class TwoReaders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        return (self.convs[0](x) * self.convs[1](x)).mean((2, 3))


class Part(nn.Module):
    """A pointwise convolution of a normalized range of a map's channels."""

    def __init__(self, sizes: tuple[int, ...], kernel: int = 3) -> None:
        super().__init__()
        self.sizes, padding = sizes, 1 if kernel == 3 else 0
        self.stem = nn.Conv2d(3, sum(sizes), kernel, padding=padding)
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in sizes)
        self.convs = nn.ModuleList(nn.Conv2d(size, 16, 1) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.stem(x).split(self.sizes, 1)
        made = zip(parts, self.norms, self.convs, strict=True)
        return sum(conv(norm(part).relu()) for part, norm, conv in made).mean((2, 3))


def frozen_norm() -> nn.Module:
    net = chain()
    net[:2].requires_grad_(False)
    return net


def chain(kernel: int = 1, activation: nn.Module | None = None, **settings: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), activation or nn.ReLU(),
        nn.Conv2d(16, 16, kernel, **settings), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_convolutions_make_what_they_alone_read(dtype: str) -> None:
    # backward, each block's last convolution and those before; 20 channels fill no 16 bytes
    expected = ["normalize", "gate", *["normalize"] * 5]
    graph = graph_of(Inverted(), dtype=dtype)
    assert makers(graph) == expected
    assert makers(graph, "forward") == expected[::-1]
    for role in ("forward", "grad_weight"):
        assert makers(graph_of(Dense(), dtype=dtype), role) == ["normalize"] * 3


@pytest.mark.parametrize("net", [Inverted, Dense, Narrow])
def test_sources_of_maps_keep_every_bit(net: Callable[[], nn.Module]) -> None:
    """What is written is rounded where it is without remade maps, and gradients know of the rest.

    Of two graphs the passes that write the same are those whose reads another pass has not made.
    """
    stored, graph = (
        graph_of(net(), dtype="tf32", remakes_maps=remakes) for remakes in (False, True)
    )
    assert graph.rounded_ops == stored.rounded_ops
    rounded = [
        {(each.op, each.role): each.rounded for each in graph.passes} for graph in (stored, graph)
    ]
    assert rounded[1].items() <= rounded[0].items()


@pytest.mark.parametrize(
    ("net", "settings"),
    [
        (TwoReaders(), {}),
        (chain(3, padding=1), {}),
        (chain(stride=2), {}),
        (chain(groups=4), {}),
        (chain(7, padding=3, groups=16), {}),
        (chain(3, padding=1, groups=16, activation=nn.Sigmoid()), {}),
        (chain(5, stride=2, groups=16, activation=nn.SiLU()), {}),
        (chain(), {"dtype": "fp32"}),
        (chain(), {"remakes_maps": False}),
        (frozen_norm(), {}),
        (Part((4, 16, 4)), {}),
        (Part((4, 16, 16)), {}),
        (Part((8, 16, 4), kernel=12), {}),
    ],
    ids=[
        "two readers",
        "3x3",
        "stride",
        "groups",
        "depthwise 7x7",
        "depthwise behind a sigmoid",
        "depthwise by 2 behind an exponential",
        "fp32",
        "not asked",
        "no gradient",
        "from channel 4",
        "a padded map",
        "one pixel of 28 channels",
    ],
)
def test_other_convolutions_read_the_map(net: nn.Module, settings: dict[str, object]) -> None:
    assert makers(graph_of(net, **settings)) == makers(graph_of(net, **settings), "forward") == []


def test_ranges_of_whole_words_are_made_again() -> None:
    assert makers(graph_of(Part((16, 16)))) == ["normalize"] * 2


def test_padded_maps_are_made_on_load() -> None:
    assert makers(graph_of(Narrow()), "forward") == ["normalize"] * 3


def test_forward_stores_maps_that_cost_more_to_make_twice() -> None:
    """Of few channels, and of more outputs than two tiles have."""
    wide = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 257, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    for net in (Part((16, 16)), wide):
        graph = graph_of(net)
        assert makers(graph, "forward") == []
        assert "normalize" in makers(graph)


def test_auto_alone_plans_over_them() -> None:
    asking = {name for name, policy in POLICIES.items() if policy.rewrites().remakes_maps}
    assert asking == {"auto"}
    assert not POLICIES["auto"].rewrites(may_round=True).remakes_maps


def test_no_plan_has_remade_maps() -> None:
    graphs = [graph_of(Dense(), remakes_maps=remakes) for remakes in (True, False)]
    read, stored = map(_read_backward, graphs)
    assert read < stored
    assert not (stored - read) & graphs[0].buffers.keys()
    remade = sum(graphs[1].buffers[name].nbytes for name in stored - read)
    assert remade > 0
    peaks = [make_schedule(each, default_costs(each), policy="keep").peak_nbytes for each in graphs]
    assert peaks[0] <= peaks[1] - remade // 2  # gradients take the place of others


def _read_backward(graph: Graph) -> set[str]:
    """The maps that backward passes read."""
    passes = [each for each in graph.passes if each.direction is Direction.BACKWARD]
    found = {use.buffer for each in passes for use in each.reads}
    return {name for name in found if graph.buffers[name].kind is Kind.MAP}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", NETWORKS)
def test_any_plan_trains_to_the_same_bits(name: str, dtype: str) -> None:
    case = NETWORKS[name]
    batches = case.batches(2, seed=6)
    how = {"optimizer": SGD(), "dtype": dtype, "chunk_size": case.chunk_size, "fuse": True}
    stored, graph = (
        training_graph(case.network(), batches[0][0], remakes_maps=remakes, **how)
        for remakes in (False, True)
    )
    costs = default_costs(graph)
    kept = train(case.network(), lower(stored, keep(stored), costs), batches)
    for seed in range(4):
        schedule = lower(graph, random_plan(graph, random.Random(seed)), costs)
        check(schedule)
        assert train(case.network(), schedule, batches, order_seed=seed).equals(kept)


def test_the_proof_finds_another_source() -> None:
    """Another buffer of the same kind in the place of any that a remade map is made of."""
    graph = graph_of(Inverted())
    check_provenance(graph)
    for place, pass_ in enumerate(graph.passes):
        if "maker" not in pass_.attrs:
            continue
        sources = pass_.reads[1:] if pass_.role == "grad_weight" else pass_.reads[::2]
        for use in sources:
            assert_refuses_others(graph, place, use)
