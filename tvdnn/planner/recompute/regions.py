"""Fusible regions: neighbouring ops whose passes may go section-major, and what recompute costs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TypeAlias

from ...graph import Direction, Graph, Kind, Pass
from ..ir.costs import Costs
from .joined_passes import JoinedPasses, goes_by_sample
from .supplies import Supplies

MOST_PRODUCTS = 4  # of a region: more would hold more sums of weight gradients at one time
MAPS = (Kind.MAP, Kind.AUX)
HANDED_OUT = -1  # the caller, among the passes that use a buffer

Spans: TypeAlias = Mapping[tuple[str, Direction], range]
Users: TypeAlias = Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class PassRegion:
    """Neighbouring passes of one direction."""

    before: tuple[int, ...]  # need no member and run ahead of them
    members: tuple[int, ...]  # may go through each block of samples together
    after: tuple[int, ...]  # run behind the members

    @property
    def passes(self) -> tuple[int, ...]:
        """All of them, in program order."""
        return tuple(sorted((*self.before, *self.members, *self.after)))


@dataclass(frozen=True, slots=True)
class Recompute:
    """Maps that one pass writes, if they are recomputed."""

    buffers: frozenset[str]
    nbytes: int  # that need not be saved
    seconds: float  # that it takes

    @property
    def seconds_per_byte(self) -> float:
        return self.seconds / self.nbytes


@dataclass(frozen=True, slots=True)
class FusibleRegion:
    """Neighbouring ops with their passes forward and backward."""

    forward: PassRegion
    backward: PassRegion
    inner: frozenset[str]  # maps that only these passes use
    stored: frozenset[str]  # inner maps that backward reads
    recomputes: tuple[Recompute, ...]  # of stored maps, the fewest seconds a byte first

    @property
    def passes(self) -> frozenset[int]:
        return frozenset((*self.forward.passes, *self.backward.passes))


def regions(supplies: Supplies, costs: Costs) -> tuple[FusibleRegion, ...]:
    """Regions of the graph that end where maps are narrow, none with a pass of another."""
    graph = supplies.graph
    spans, users = spans_of(graph), users_of(graph)
    found, taken = list[FusibleRegion](), frozenset[int]()
    for group in op_groups_of(graph, spans):
        region = _region_of(supplies, costs, group, spans, users)
        if region is not None and taken.isdisjoint(region.passes):
            found.append(region)
            taken |= region.passes
    return tuple(found)


def spans_of(graph: Graph) -> Spans:
    """By op and direction, the passes from its first to its last, with what lies between."""
    spans: dict[tuple[str, Direction], range] = {}
    for index, pass_ in enumerate(graph.passes):
        key = (pass_.op, pass_.direction)
        spans[key] = range(spans[key].start if key in spans else index, index + 1)
    return spans


def extent_of(spans: Spans, ops: Sequence[str], direction: Direction) -> range:
    """All passes from the first to the last of these ops in one direction."""
    owned = [spans[op, direction] for op in ops if (op, direction) in spans]
    return range(min(s.start for s in owned), max(s.stop for s in owned)) if owned else range(0)


def users_of(graph: Graph) -> Users:
    """By buffer, the passes that use it, and the caller where it is handed out."""
    users: dict[str, set[int]] = {name: {HANDED_OUT} for name in graph.outputs}
    for index, pass_ in enumerate(graph.passes):
        for name in pass_.used_buffers:
            users.setdefault(name, set()).add(index)
    return {name: frozenset(indices) for name, indices in users.items()}


def op_groups_of(graph: Graph, spans: Spans) -> Iterator[list[str]]:
    """Ops in their order, cut behind maps smaller than the one before and no larger than the next.

    No group has more than MOST_PRODUCTS products. None ends before a pass that changes its map in
    place.
    """
    buffers, maps, sizes = graph.buffers, dict[str, frozenset[str]](), dict[str, int]()
    is_product: dict[str, bool] = {}
    for op in graph.network.ops:
        forward = [graph.passes[i] for i in spans.get((op.name, Direction.FORWARD), ())]
        names = frozenset(name for pass_ in forward for name in pass_.written_buffers)
        maps[op.name] = frozenset(name for name in names if buffers[name].kind in MAPS)
        sizes[op.name] = max((buffers[name].row_nbytes for name in maps[op.name]), default=0)
        is_product[op.name] = any(pass_.flops > 0 for pass_ in forward)
    ops = [op for op in graph.network.ops if sizes[op.name]]
    group: list[str] = []
    products = 0
    for before, op, after in zip([*ops[:1], *ops], ops, [*ops[1:], None], strict=False):
        group.append(op.name)
        products += is_product[op.name]
        if after and maps[op.name] & maps[after.name]:
            continue
        size = sizes[op.name]
        narrow = after and sizes[before.name] > size <= sizes[after.name]
        if not after or narrow or products >= MOST_PRODUCTS:
            yield group
            group, products = [], 0


def _region_of(
    supplies: Supplies, costs: Costs, group: Sequence[str], spans: Spans, users: Users
) -> FusibleRegion | None:
    """The group as a region; None where its passes cannot go together."""
    graph = supplies.graph
    regions = [_region(graph, group, spans, way) for way in (Direction.FORWARD, Direction.BACKWARD)]
    forward, backward = regions
    if len(group) < 2 or forward is None or backward is None:
        return None
    inner = _inner(graph, forward, backward, users)
    used = frozenset(name for i in backward.members for name in graph.passes[i].used_buffers)
    stored = inner & used
    bare = FusibleRegion(forward, backward, inner, stored, ())
    recomputes = sorted(_recomputes(bare, supplies, costs), key=attrgetter("seconds_per_byte"))
    return replace(bare, recomputes=tuple(recomputes))


def _region(
    graph: Graph, group: Sequence[str], spans: Spans, direction: Direction
) -> PassRegion | None:
    """The group's passes of one direction; None where one that goes by sample cannot join."""
    before, members, after = list[int](), list[int](), list[int]()
    joined = JoinedPasses()
    for index in extent_of(spans, group, direction):
        pass_ = graph.passes[index]
        waits = any(_conflict(graph, graph.passes[other], pass_) for other in after)
        if goes_by_sample(pass_):
            if waits or not joined.admits(pass_):
                return None
            joined.add(pass_)
            members.append(index)
        elif waits or any(_conflict(graph, graph.passes[other], pass_) for other in members):
            after.append(index)
        else:
            before.append(index)
    return PassRegion(tuple(before), tuple(members), tuple(after)) if members else None


def _conflict(graph: Graph, first: Pass, second: Pass) -> bool:
    pair = first, second
    reads, other_reads = (graph.touched(each.reads) | set(each.params) for each in pair)
    changes, others = (graph.touched(each.writes) | set(each.updates) for each in pair)
    return bool(changes & (other_reads | others) or others & reads)


def _inner(graph: Graph, forward: PassRegion, backward: PassRegion, users: Users) -> frozenset[str]:
    """Maps that the forward members write and that no pass but the members uses."""
    members = frozenset((*forward.members, *backward.members))
    made = {name for index in forward.members for name in graph.passes[index].written_buffers}
    maps = (name for name in made if graph.buffers[name].kind in MAPS)
    return frozenset(name for name in maps if users[name] <= members)


def _recomputes(region: FusibleRegion, supplies: Supplies, costs: Costs) -> Iterator[Recompute]:
    """Stored maps that can be made again from maps of the region or from what it reads."""
    graph, seen = supplies.graph, set[str]()
    for index in region.forward.members:
        for name in sorted((graph.passes[index].written_buffers & region.stored) - seen):
            supply = supplies.of(name, supplies.backward_readers(name)[0])
            made = supply.buffers if supply else frozenset({name})
            seen |= made
            maps = frozenset(each for each in made if graph.buffers[each].kind is not Kind.WEIGHT)
            if supply is not None and maps <= region.inner:
                wanted = maps & region.stored
                makers = [graph.passes[each] for each in supply.passes]
                seconds = sum(costs.launch_s(pass_, pass_.domain) for pass_ in makers)
                yield Recompute(wanted, sum(graph.buffers[each].nbytes for each in wanted), seconds)
