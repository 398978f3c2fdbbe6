"""Networks that concatenate and split maps: keep's bits under any plan, gradients as torch's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tvdnn.nn
from tests.networks.concat import NETWORKS, Recent, split, wide
from tests.support import twins
from tests.support.exact import Functional
from tests.support.networks import Dense
from tests.support.running import random_batches
from tvdnn.engine import training_graph
from tvdnn.errors import UnsupportedOpError
from tvdnn.graph import Graph, Kind, Network
from tvdnn.ops import buffers, builder
from tvdnn.trace.trace import trace

BATCH, SHAPE, CLASSES = 5, (3, 6, 6), 4
CHUNK_SIZE = 600  # bytes: a sample a section


def returning(way: Callable[[Tensor], Any]) -> nn.Module:
    """Returns `way` of a convolution's map of six channels."""
    return Functional(lambda net, x: way(net.conv(x)), conv=nn.Conv2d(3, 6, 1))


def traced(way: Callable[[Tensor], Any]) -> Network:
    return trace(returning(way), [torch.empty(2, *SHAPE)])


@pytest.mark.parametrize(
    ("way", "ranges"),
    [
        (lambda x: x[:, 2:5], [(2, 5)]),
        (lambda x: x[:, -2:, :, :], [(4, 6)]),
        (lambda x: x.narrow(-3, -4, 3), [(2, 5)]),
        (lambda x: torch.narrow(x, 1, 0, 1), [(0, 1)]),
        (lambda x: tuple(x.chunk(4, 1)), [(0, 2), (2, 4), (4, 6)]),
        (lambda x: torch.chunk(input=x, chunks=2, dim=1)[-1], [(3, 6)]),
        (lambda x: list(torch.split(x, 4, dim=1)), [(0, 4), (4, 6)]),
        (lambda x: [part[:, 1:] for part in x.split((3, 3), 1)], [(0, 3), (1, 3), (3, 6), (1, 3)]),
        (lambda x: x.flatten(1)[:, :100], [(0, 100)]),
        (lambda x: torch.cat([x[:, :], x.narrow(1, 0, 6)], 1), []),
    ],
)
def test_channels_are_taken_by_ranges(
    way: Callable[[Tensor], Any], ranges: list[tuple[int, int]]
) -> None:
    narrows = [op for op in traced(way).ops if op.kind == "narrow"]
    assert [op.attrs["channels"] for op in narrows] == ranges


@pytest.mark.parametrize(
    "way",
    [
        nn.ChannelShuffle(2),
        tvdnn.nn.ChannelShuffle(2),
        lambda x: functional.channel_shuffle(x, 2),
        lambda x: x.view(2, 2, 3, 6, 6).transpose(1, 2).contiguous().view(2, -1, 6, 6),
        lambda x: x.reshape(-1, 2, 3, 6, 6).permute(0, 2, 1, 3, 4).flatten(1, 2),
    ],
)
def test_channels_are_shuffled(way: Callable[[Tensor], Tensor]) -> None:
    network = traced(way)
    (shuffle,) = (op for op in network.ops if op.kind not in ("conv2d", "view"))
    assert (shuffle.kind, shuffle.attrs) == ("shuffle_channels", {"groups": 2})
    assert network.values[network.outputs[0]].shape == (2, 6, 6, 6)


def test_groups_joined_again_are_a_view() -> None:
    kinds = {op.kind for op in traced(lambda x: x.view(2, 3, 2, 6, 6).flatten(1, 2)).ops}
    assert kinds == {"conv2d", "view"}


@pytest.mark.parametrize("name", ["cat", "concat", "concatenate"])
def test_names_of_concatenation(name: str) -> None:
    network = traced(lambda x: getattr(torch, name)([x, x, x[:, :1]], dim=-3))
    concat = network.ops[-1]
    assert (concat.kind, concat.inputs) == ("concat", ("conv", "conv", "getitem"))
    assert network.values[concat.output].shape == (2, 6, 6, 13)
    assert traced(lambda x: torch.cat([x], 1)).ops[-1].kind == "view"


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda x: torch.cat([x, x]), r"cat of \(2, 6, 6, 6\) along the batch"),
        (lambda x: torch.stack([x, x]), r"stack of \(2, 6, 6, 6\) along the batch"),
        (lambda x: x.chunk(2)[0], "a slice of .* along the batch"),
        (lambda x: x.unbind()[0], "an index of .* along the batch"),
        (lambda x: x.narrow(0, 0, 1), "a slice of .* along the batch"),
        (lambda x: x[:1], "a slice of .* along the batch"),
        (lambda x: x[:, :, 6:], "a slice of .* that leaves nothing"),
        (lambda x: x[:, [0, 2]], "an index of .* by immutable_list"),
    ],
)
def test_other_parts_are_refused(way: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        traced(way)


def test_ranges_of_a_gradient_lie_in_one_map() -> None:
    """Parts of one map fill one gradient; only channels that no part covers are cleared."""
    net = nn.Sequential(returning(lambda x: torch.cat((x[:, 3:], x[:, 1:3]), 1)), nn.Flatten())
    graph = training_graph(net, torch.empty(2, *SHAPE))
    (cleared,) = (each for each in graph.passes if each.role == "zero_grad")
    assert [use.channels for use in cleared.writes] == [(0, 1)]
    filling = [each for each in graph.passes if each.role == "grad_input" and "getitem" in each.op]
    written = {use.buffer for each in filling for use in each.writes}
    assert written == {cleared.writes[0].buffer}


def test_the_features_of_a_block_are_one_map() -> None:
    """Every concatenation of a block is a range of the last, and its gradients add up in one."""
    net = nn.Sequential(nn.Conv2d(3, 4, 1), Recent(), nn.Flatten())
    graph = training_graph(net, torch.empty(2, *SHAPE))
    maps = [each for each in graph.buffers.values() if each.kind is Kind.MAP]
    (container,) = (each.name for each in maps if len(each.shape) == 4 and each.shape[-1] > 4)
    uses = [use for each in graph.passes for use in each.writes if use.buffer == container]
    assert [use.channels for use in uses] == [(0, 3), (3, 5), (5, 8), (8, 10)]
    added = [each.writes[0] for each in graph.passes if each.name.endswith("cat#3 add_grad")]
    assert [(use.buffer, use.channels) for use in added] == [(f"grad {container}", (0, 8))]
    assert not any(each.role == "forward" and each.op.startswith("1.cat") for each in graph.passes)


def test_normalizations_of_a_block_copy_and_add_nothing() -> None:
    """They read ranges, and their gradients add up in one map as they are made.

    The moments of a range are made once, for all that normalize it.
    """
    net = nn.Sequential(nn.Conv2d(3, 4, 1), Dense(4, 3, 3), nn.BatchNorm2d(13), nn.Flatten())
    graph = training_graph(net, torch.empty(2, *SHAPE))
    read = [each.reads[0] for each in graph.passes if each.role == "moments"]
    assert [use.channels for use in read] == [None, (0, 7), (7, 10), (10, 13)]
    assert len({use.buffer for use in read[1:]}) == 1
    merged = [each.reads[0] for each in graph.passes if each.role == "statistics"]
    assert [use.channels for use in merged] == [None, (0, 7), (0, 10), None]
    assert len({use.buffer for use in merged[1:]}) == 1
    made = [each for each in graph.passes if each.role == "grad_input" and ".0 " in each.name]
    assert [each.writes[0].channels for each in made] == [(0, 10), (0, 7), (0, 4)]
    assert len({each.writes[0].buffer for each in made}) == 1
    assert not any(each.role == "add_grad" for each in graph.passes)


class Branches(nn.Module):
    """Two normalized and rectified convolutions side by side, and a pooling of both."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, size, 1) for size in (2, 5))
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in (2, 5))

    def forward(self, x: Tensor) -> Tensor:
        pairs = zip(self.convs, self.norms, strict=True)
        left, right = (torch.relu(norm(conv(x))) for conv, norm in pairs)
        return torch.cat((left, right, functional.max_pool2d(right, 3, 1, 1)), 1)


def test_branches_of_fused_normalizations_are_never_copied() -> None:
    """Nor are their gradients: the normalization takes a range, and makes a map of its own."""
    net = nn.Sequential(Branches(), nn.Conv2d(12, 4, 1), nn.Flatten())
    graph = training_graph(net, torch.empty(2, *SHAPE), fuse=True)
    assert not any(graph.ops[each.op].kind == "concat" for each in graph.passes)
    assert not any(each.role == "copy_grad" for each in graph.passes)
    norms = [each for each in graph.passes if graph.ops[each.op].kind == "batch_norm_relu"]
    made = [each.writes[0].channels for each in norms if each.role in ("forward", "grad_input")]
    assert made == [(0, 2), (2, 7), None, None]


def wide_net() -> nn.Module:
    return NETWORKS["ranges of eight channels"].network()


def copies_of(graph: Graph) -> list[str]:
    roles = {each.role for each in graph.passes if graph.ops[each.op].kind in ("concat", "narrow")}
    return [*roles, *(each.role for each in graph.passes if each.role == "copy_grad")]


@pytest.mark.parametrize(
    ("kernels", "dtype", "samples", "policies"),
    [("torch", "fp32", BATCH, ("keep", "vdnn-all:m")), ("triton", "bf16", 2, ("keep",))],
)
def test_convolutions_in_ranges_have_the_bits_of_copies(
    kernels: str,
    dtype: str,
    samples: int,
    policies: tuple[str, ...],
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = random_batches(1, (samples, *SHAPE), CLASSES, seed=5)
    options = {"dtype": dtype, "kernels": kernels, "chunk_size": CHUNK_SIZE}
    results = [
        twins.trained(wide_net(), batches, device, policy=policy, **options) for policy in policies
    ]
    assert copies_of(training_graph(wide(), torch.empty(2, *SHAPE), fuse=True)) == []
    monkeypatch.setattr(buffers, "aliases", lambda *_: {})
    monkeypatch.setattr(builder.Builder, "takes_grad", lambda *_: False)
    assert copies_of(training_graph(wide(), torch.empty(2, *SHAPE), fuse=True))
    results.append(twins.trained(wide_net(), batches, device, policy="keep", **options))
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_parts_of_a_map_are_read_where_they_lie() -> None:
    graph = training_graph(split(), torch.empty(2, *SHAPE), fuse=True)
    assert copies_of(graph) == []
    assert not any(each.role == "zero_grad" for each in graph.passes)


def test_a_part_alone_is_copied() -> None:
    """Else backward would keep the rest of the map for it."""
    net = nn.Sequential(returning(lambda x: functional.max_pool2d(x[:, 2:], 2)), nn.Flatten())
    graph = training_graph(net, torch.empty(2, *SHAPE))
    assert copies_of(graph) != []


class Halves(nn.Module):
    """Concatenates three parts; a convolution reads the second of them, and the third's maker."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first, second = x[:, :1], x[:, 1:]
        return torch.cat((first, second, self.conv(second)), 1)


def test_what_lies_across_the_loads_of_a_convolution_is_copied_into_its_range() -> None:
    graph = training_graph(nn.Sequential(Halves(), nn.Flatten()), torch.empty(2, *SHAPE))
    (copied,) = (each for each in graph.passes if each.op == "0.cat" and each.role == "forward")
    assert [use.channels for use in copied.writes] == [(1, 3), (3, 5)]
    (taken,) = (each for each in graph.passes if each.role == "copy_grad")
    assert (taken.op, taken.reads[0].channels) == ("0.conv", (3, 5))
