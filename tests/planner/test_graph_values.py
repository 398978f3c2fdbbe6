"""The checker's proof that the passes of a graph compute the traced network, and faults it finds.

Faults are made in right graphs: no op definition has a part in them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from random import Random

import pytest
import torch
from torch import Tensor, nn

from tests.support.networks import random_chain
from tvdnn.errors import ScheduleError
from tvdnn.graph import Direction, Graph, Kind, Pass, Use
from tvdnn.ops import Settings, expand
from tvdnn.ops.expand import Mode
from tvdnn.planner.verify.graph_values import check_provenance
from tvdnn.trace.trace import trace

SHAPE = (2, 3, 6, 6)
MAPS = (Kind.MAP, Kind.INPUT)


class DenseSum(nn.Module):
    """A concatenation, a longer one of the same maps, and a sum of that one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(3, 4, 3, padding=1) for _ in range(2))
        self.norm, self.third = nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)
        self.skip, self.head = nn.Conv2d(3, 12, 1), nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.first(x), self.second(x)
        third = self.third(self.norm(torch.cat([first, second], 1)))
        return self.head(torch.cat([first, second, third], 1) + self.skip(x))


class Residual(nn.Module):
    """Two normalized terms of a sum, one of which a ReLU goes through first, and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 4, 1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(3))
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first, second = (norm(conv(x)) for norm, conv in zip(self.norms, self.convs, strict=False))
        total = torch.relu(first + second)
        total = total + self.norms[2](total) + total.mean([2, 3], keepdim=True)
        return self.head(total * torch.sigmoid(total))


class Grouped(nn.Module):
    """A normalization that is read as it is, and by groups of channels that change places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6)
        self.side, self.stem = nn.Conv2d(3, 6, 1), nn.Conv2d(3, 3, 1)
        self.heads = nn.ModuleList(nn.Conv2d(6, 2, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        h = self.norm(self.conv(x))
        groups = h.view(h.shape[0], 3, 2, *h.shape[2:]).transpose(1, 2).reshape(h.shape)
        return self.heads[0]((h + self.side(x)).tanh()) + self.heads[1](groups.sigmoid())


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "dense": DenseSum,
    "residual": Residual,
    "grouped": Grouped,
}


@cache
def graph(name: str, mode: Mode = Mode.AUTOGRAD, *, fuse: bool = True) -> Graph:
    torch.manual_seed(0)
    network = trace(NETWORKS[name](), (torch.empty(SHAPE),))
    return expand(network, Settings("fp32", 1500, mode, fuse=fuse))


def with_pass(graph: Graph, index: int, *passes: Pass) -> Graph:
    """The graph with other passes in the place of one."""
    before, after = graph.passes[:index], graph.passes[index + 1 :]
    cut = graph.phase_split + (len(passes) - 1) * (index < graph.phase_split)
    return replace(graph, passes=(*before, *passes, *after), phase_split=cut)


def others(graph: Graph, index: int, use: Use) -> Iterator[str]:
    """Buffers of the same shape that no pass of the op uses and none writes beside its own."""
    op, own = graph.passes[index].op, graph.buffers[use.buffer]
    used = {use.buffer}
    for pass_ in graph.passes:
        names = {each.buffer for each in (*pass_.reads, *pass_.writes)}
        written = {each.buffer for each in pass_.writes}
        used |= names if pass_.op == op else set()
        used |= written if use.buffer in written else set()
    for name, buffer in graph.buffers.items():
        if name not in used and (buffer.kind, buffer.shape) == (own.kind, own.shape):
            yield name


def reads_of(graph: Graph, kinds: tuple[Kind, ...]) -> Iterator[tuple[int, int]]:
    """Pass and place of every read of buffers of these kinds."""
    for index, pass_ in enumerate(graph.passes):
        for place, use in enumerate(pass_.reads):
            if graph.buffers[use.buffer].kind in kinds:
                yield index, place


def reading(graph: Graph, index: int, place: int, use: Use) -> Graph:
    """The graph with another read of a pass."""
    pass_ = graph.passes[index]
    reads = (*pass_.reads[:place], use, *pass_.reads[place + 1 :])
    return with_pass(graph, index, replace(pass_, reads=reads))


@pytest.mark.parametrize(("name", "fuse"), list(product(NETWORKS, (False, True))))
@pytest.mark.parametrize("mode", list(Mode))
def test_graphs_as_expanded_are_proven(name: str, mode: Mode, fuse: bool) -> None:
    check_provenance(graph(name, mode, fuse=fuse))


class Viewed(nn.Module):
    """A concatenation of a map and of a view of it that was flat between."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 1, 1), nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return self.head(torch.cat([h, h.flatten(1).view(h.shape)], 1))


def test_a_map_and_a_view_of_its_channels_are_one_value() -> None:
    network = trace(Viewed(), (torch.empty(SHAPE),))
    assert "concat" in {op.kind for op in network.ops}
    check_provenance(expand(network, Settings("fp32", 1500, Mode.AUTOGRAD, fuse=True)))


@pytest.mark.parametrize("kinds", [MAPS, (Kind.GRAD,)], ids=["maps", "gradients"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_read_of_another_buffer_is_refused(name: str, kinds: tuple[Kind, ...]) -> None:
    right = graph(name)
    victims = 0
    for index, place in reads_of(right, kinds):
        use = right.passes[index].reads[place]
        for other in others(right, index, use):
            with pytest.raises(ScheduleError):
                check_provenance(reading(right, index, place, replace(use, buffer=other)))
            victims += 1
    assert victims >= 10


@pytest.mark.parametrize("name", NETWORKS)
def test_a_pass_left_out_or_run_twice_is_refused(name: str) -> None:
    right = graph(name)
    for index, pass_ in enumerate(right.passes):
        written = {right.buffers[use.buffer].kind for use in pass_.writes}
        if written & {Kind.MAP, Kind.GRAD}:
            with pytest.raises(ScheduleError):
                check_provenance(with_pass(right, index))
        if pass_.role == "add_grad":
            with pytest.raises(ScheduleError):
                check_provenance(with_pass(right, index, pass_, pass_))


def test_a_sum_over_a_concatenation_that_is_read_later_is_refused() -> None:
    """The sum takes the bytes of a concatenation in which an earlier one lies."""
    right = graph("dense", fuse=False)
    (index,) = (i for i, p in enumerate(right.passes) if p.op == "add" and p.role == "forward")
    total, whole = right.passes[index].writes[0].buffer, right.passes[index].reads[0].buffer
    if total == whole:
        pytest.fail("the sum already lies over the concatenation")

    def moved(use: Use) -> Use:
        return replace(use, buffer=whole) if use.buffer == total else use

    wrong = replace(
        right,
        passes=tuple(
            replace(p, reads=tuple(map(moved, p.reads)), writes=tuple(map(moved, p.writes)))
            for p in right.passes
        ),
    )
    with pytest.raises(ScheduleError, match="norm"):
        check_provenance(wrong)


def test_a_normalization_dropped_from_a_sum_is_refused() -> None:
    """The sum reads the map that a term normalizes as if it were the term."""
    right = graph("residual", fuse=False)
    (index,) = (i for i, p in enumerate(right.passes) if p.op == "add" and p.role == "forward")
    norm, *_ = right.passes[index].reads
    source = next(p for p in right.passes if p.role == "forward" and p.op == "norms.0").reads[0]
    assert norm != source
    with pytest.raises(ScheduleError, match="add"):
        check_provenance(reading(right, index, 0, source))


@pytest.mark.parametrize("seed", range(30))
def test_random_networks_are_proven(seed: int) -> None:
    net = random_chain(Random(seed), 3, 7, 4, forks=True)
    network = trace(net, (torch.empty(2, 3, 7, 7),))
    for fuse, row_tiles in product((False, True), (None, 1)):
        settings = Settings("fp32", 900, Mode.AUTOGRAD, fuse=fuse, row_tiles=row_tiles)
        graph = expand(network, replace(settings, input_grads=frozenset(network.inputs)))
        check_provenance(graph)
        assert any(each.direction is Direction.BACKWARD for each in graph.passes)
