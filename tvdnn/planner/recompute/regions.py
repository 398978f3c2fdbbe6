"""Fusible regions: neighbouring ops whose passes may go section-major, and what recompute costs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...graph import Direction, Graph, Kind, Op, Pass, must_be_separate
from ..ir.costs import Costs

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
class RecomputeSet:
    """The forward passes that recompute maps."""

    packs: tuple[int, ...]  # copies of weights, made first
    members: tuple[int, ...]  # go by block


@dataclass(frozen=True, slots=True)
class Recompute:
    """Maps that one pass writes, if they are recomputed."""

    buffers: frozenset[str]
    nbytes: int  # that need not be saved
    seconds: float  # that it takes


@dataclass(frozen=True, slots=True)
class FusibleRegion:
    """Neighbouring ops with their passes forward and backward."""

    ops: tuple[str, ...]
    forward: PassRegion
    backward: PassRegion
    inner: frozenset[str]  # maps that only these passes use
    stored: frozenset[str]  # inner maps that backward reads
    recomputes: tuple[Recompute, ...]  # of stored maps, the fewest seconds a byte first

    @property
    def passes(self) -> frozenset[int]:
        return frozenset((*self.forward.passes, *self.backward.passes))


def regions(graph: Graph, costs: Costs) -> tuple[FusibleRegion, ...]:
    """Regions of the graph that end where maps are narrow, none with a pass of another."""
    spans, users = spans_of(graph), users_of(graph)
    found, taken = list[FusibleRegion](), frozenset[int]()
    for group in op_groups_of(graph, spans):
        region = _region_of(graph, costs, group, spans, users)
        if region is not None and taken.isdisjoint(region.passes):
            found.append(region)
            taken |= region.passes
    return tuple(found)


def recompute_passes(
    graph: Graph, region: FusibleRegion, recomputed: frozenset[str]
) -> RecomputeSet:
    """The passes that recompute these maps of the region, and the inner maps that they read."""
    wanted, packed, members = set(recomputed), set[str](), list[int]()
    for index in reversed(region.forward.members):
        pass_ = graph.passes[index]
        if wanted & written(pass_):
            members.append(index)
            wanted |= (read(pass_) & region.inner) - (region.stored - recomputed)
            packed |= {name for name in read(pass_) if graph.buffers[name].kind is Kind.WEIGHT}
    packs = (i for i in region.forward.before if packed & written(graph.passes[i]))
    return RecomputeSet(tuple(packs), tuple(reversed(members)))


def read(pass_: Pass) -> frozenset[str]:
    """The buffers that the pass reads."""
    return frozenset(use.buffer for use in pass_.reads)


def written(pass_: Pass) -> frozenset[str]:
    """The buffers that the pass writes."""
    return frozenset(use.buffer for use in pass_.writes)


def spans_of(graph: Graph) -> Spans:
    """By op and direction, the passes from its first to its last, with what lies between."""
    spans: dict[tuple[str, Direction], range] = {}
    for index, pass_ in enumerate(graph.passes):
        key = (pass_.op, pass_.direction)
        spans[key] = range(spans[key].start if key in spans else index, index + 1)
    return spans


def users_of(graph: Graph) -> Users:
    """By buffer, the passes that use it, and the caller where it is handed out."""
    users: dict[str, set[int]] = {name: {HANDED_OUT} for name in graph.outputs}
    for index, pass_ in enumerate(graph.passes):
        for use in (*pass_.reads, *pass_.writes):
            users.setdefault(use.buffer, set()).add(index)
    return {name: frozenset(indices) for name, indices in users.items()}


def op_groups_of(graph: Graph, spans: Spans) -> Iterator[list[Op]]:
    """Ops in their order, cut behind maps smaller than the one before and no larger than the next.

    No group has more than MOST_PRODUCTS products. None ends before a pass that changes its map in
    place.
    """
    ops = [op for op in graph.network.ops if _map_nbytes(graph, spans, op)]
    sizes = [_map_nbytes(graph, spans, op) for op in ops]
    group: list[Op] = []
    products = 0
    for number, op in enumerate(ops):
        group.append(op)
        products += _is_product(graph, spans, op)
        last = number + 1 == len(ops)
        if not last and _maps_of(graph, spans, op) & _maps_of(graph, spans, ops[number + 1]):
            continue
        narrow = not last and sizes[max(0, number - 1)] > sizes[number] <= sizes[number + 1]
        if last or narrow or products >= MOST_PRODUCTS:
            yield group
            group, products = [], 0


def _forward(graph: Graph, spans: Spans, op: Op) -> list[Pass]:
    return [graph.passes[i] for i in spans.get((op.name, Direction.FORWARD), range(0))]


def _maps_of(graph: Graph, spans: Spans, op: Op) -> frozenset[str]:
    names = frozenset(name for pass_ in _forward(graph, spans, op) for name in written(pass_))
    return frozenset(name for name in names if graph.buffers[name].kind in MAPS)


def _map_nbytes(graph: Graph, spans: Spans, op: Op) -> int:
    return max((graph.buffers[name].row_nbytes for name in _maps_of(graph, spans, op)), default=0)


def _is_product(graph: Graph, spans: Spans, op: Op) -> bool:
    return any(pass_.flops > 0 for pass_ in _forward(graph, spans, op))


def _region_of(
    graph: Graph, costs: Costs, group: Sequence[Op], spans: Spans, users: Users
) -> FusibleRegion | None:
    """The group as a region; None where its passes cannot go together."""
    regions = [_region(graph, group, spans, way) for way in (Direction.FORWARD, Direction.BACKWARD)]
    forward, backward = regions
    if len(group) < 2 or forward is None or backward is None:
        return None
    inner = _inner(graph, forward, backward, users)
    used = (read(graph.passes[i]) | written(graph.passes[i]) for i in backward.members)
    stored = inner & frozenset(name for names in used for name in names)
    names = tuple(op.name for op in group)
    bare = FusibleRegion(names, forward, backward, inner, stored, ())
    recomputes = tuple(sorted(_recomputes(graph, costs, bare), key=lambda r: r.seconds / r.nbytes))
    return FusibleRegion(names, forward, backward, inner, stored, recomputes)


def _region(
    graph: Graph, group: Sequence[Op], spans: Spans, direction: Direction
) -> PassRegion | None:
    """The group's passes of one direction; None where one that goes by sample cannot join."""
    owned = [spans[op.name, direction] for op in group if (op.name, direction) in spans]
    if not owned:
        return None
    before, members, after = list[int](), list[int](), list[int]()
    for index in range(min(s.start for s in owned), max(s.stop for s in owned)):
        pass_ = graph.passes[index]
        waits = any(_conflict(graph.passes[other], pass_) for other in after)
        if goes_by_sample(pass_):
            if waits or any(cannot_join(graph.passes[other], pass_) for other in members):
                return None
            members.append(index)
        elif waits or any(_conflict(graph.passes[other], pass_) for other in members):
            after.append(index)
        else:
            before.append(index)
    return PassRegion(tuple(before), tuple(members), tuple(after)) if members else None


def goes_by_sample(pass_: Pass) -> bool:
    return pass_.splittable and pass_.direction is not Direction.UPDATE


def _conflict(first: Pass, second: Pass) -> bool:
    mine, yours = ((read(p) | set(p.params), written(p) | set(p.updates)) for p in (first, second))
    return bool(mine[1] & (yours[0] | yours[1]) or yours[1] & mine[0])


def cannot_join(first: Pass, second: Pass) -> bool:
    return _meet_whole(first, second) or must_be_separate(first, second)


def _meet_whole(first: Pass, second: Pass) -> bool:
    ours, theirs = (frozenset(use.buffer for use in p.writes if use.whole) for p in (first, second))
    return bool(ours & (read(second) | written(second)) or theirs & (read(first) | written(first)))


def _inner(graph: Graph, forward: PassRegion, backward: PassRegion, users: Users) -> frozenset[str]:
    """Maps that the forward members write and that no pass but the members uses."""
    members = frozenset((*forward.members, *backward.members))
    made = {name for index in forward.members for name in written(graph.passes[index])}
    maps = (name for name in made if graph.buffers[name].kind in MAPS)
    return frozenset(name for name in maps if users[name] <= members)


def _recomputes(graph: Graph, costs: Costs, region: FusibleRegion) -> Iterator[Recompute]:
    """Each pass's maps that can be recomputed: all inner, by passes without other effects."""
    for group in _made_together(graph, region):
        wanted = group & region.stored
        if not wanted or not group <= region.inner:
            continue
        makers = [graph.passes[i] for i in recompute_passes(graph, region, wanted).members]
        if any(p.effects or p.updates or not written(p) <= region.inner for p in makers):
            continue
        seconds = sum(costs.launch_s(pass_, pass_.domain) for pass_ in makers)
        yield Recompute(wanted, sum(graph.buffers[name].nbytes for name in wanted), seconds)


def _made_together(graph: Graph, region: FusibleRegion) -> list[frozenset[str]]:
    """What the forward members write, joined where one pass writes several."""
    groups: list[frozenset[str]] = []
    for index in region.forward.members:
        joined = written(graph.passes[index])
        apart = [group for group in groups if not group & joined]
        joined = joined.union(*(group for group in groups if group & joined))
        groups = [*apart, joined]
    return groups
