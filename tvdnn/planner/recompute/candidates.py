"""All that may be recomputed: by block in fusible regions and barrier stages, or full batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...graph import Direction, Graph, Kind, Use, overlap
from ..ir.costs import Costs
from ..ir.plan import Segment, Slot
from ..lowering.segments import Variant, in_blocks
from .barriers import StagedGroup, barrier_stages
from .regions import MAPS, FusibleRegion, Recompute, op_groups_of, regions, spans_of

INPUT_KINDS = (*MAPS, Kind.INPUT, Kind.WEIGHT)
MIN_SHARE = 0.01  # of the largest map's bytes: less is not worth a trial of the search
NEAR_OPS = 3  # backward ops: a map recomputed so far ahead of its own use is just in time


@dataclass(frozen=True, slots=True)
class FullBatchRecompute:
    """Maps that passes recompute for all samples before backward reads them.

    Networks of batch normalization are recomputed so, since no block of samples goes through their
    layers: Chen et al. 2016, SuperNeurons (Wang et al. 2018).
    """

    recompute: Recompute
    makers: tuple[int, ...]  # the passes that run again
    takes: frozenset[str]  # maps that these read


@dataclass(frozen=True)
class Candidates:
    """What the backward passes of a graph may recompute."""

    regions: tuple[FusibleRegion, ...]
    full_batch: tuple[FullBatchRecompute, ...]  # outside regions, the fewest seconds a byte first
    first_backward_use: Mapping[str, int] = field(default_factory=dict)  # number of an op, by map
    find_stages: Callable[[], tuple[StagedGroup, ...]] = tuple

    @cached_property
    def stages(self) -> tuple[StagedGroup, ...]:
        """Barrier stages, found when first asked for: few plans need them."""
        return self.find_stages()

    def passes_of_stages(self, stages: Iterable[int]) -> frozenset[int]:
        """The passes of these barrier stages, which no other candidate may have then."""
        return frozenset(index for number in stages for index in self.stages[number].passes)


class RecomputeDependencies:
    """Full-batch recomputes that go together, none long before backward reads its maps.

    A recompute whose inputs are recomputed too has these made first, and their inputs before them,
    down to the first layers. All of them would fill the memory meanwhile.
    """

    def __init__(self, first_use: Mapping[str, int], early_nbytes: float) -> None:
        self._first_use = first_use
        self._early_nbytes = early_nbytes  # of maps that may be recomputed too early
        self._maker: dict[str, FullBatchRecompute] = {}
        self._takers: dict[str, list[FullBatchRecompute]] = {}

    def add(self, whole: FullBatchRecompute) -> bool:
        """Add one unless a map would be recomputed too early. Whether it is added."""
        known = whole.recompute.buffers & self._first_use.keys()
        self._maker |= dict.fromkeys(known, whole)
        for name in whole.takes:
            self._takers.setdefault(name, []).append(whole)
        if all(self._is_just_in_time(each) for each in self._roots(whole)):
            return True
        for name in known:
            del self._maker[name]
        for name in whole.takes:
            self._takers[name].pop()
        return False

    def _roots(self, whole: FullBatchRecompute) -> Iterator[FullBatchRecompute]:
        """The recompute, and all that have it run first."""
        left, seen = [whole], {whole.makers}
        while left:
            yield (each := left.pop())
            for name in each.recompute.buffers:
                new = [w for w in self._takers.get(name, ()) if w.makers not in seen]
                seen |= {w.makers for w in new}
                left += new

    def _is_just_in_time(self, root: FullBatchRecompute) -> bool:
        """Whether all maps made for `root` are read soon, or few bytes of them are not."""
        last = self._first(root) + NEAR_OPS
        left, seen, early = [root], {root.makers}, 0
        while left:
            for name in left.pop().takes:
                whole = self._maker.get(name)
                if whole is None or whole.makers in seen:
                    continue
                if self._first_use[name] > last:
                    early += whole.recompute.nbytes
                    if early > self._early_nbytes:
                        return False
                seen.add(whole.makers)
                left.append(whole)
        return True

    def _first(self, whole: FullBatchRecompute) -> int:
        return min(
            self._first_use[name] for name in whole.recompute.buffers if name in self._first_use
        )


def find_candidates(graph: Graph, costs: Costs) -> Candidates:
    """What the graph's backward passes may recompute."""
    found = regions(graph, costs)
    inner = frozenset(name for region in found for name in region.inner)
    finder = _FullBatchFinder(graph, inner)
    full_batch = sorted(finder.find(costs), key=lambda each: each.recompute.seconds_per_byte)

    def find_stages() -> tuple[StagedGroup, ...]:
        groups = op_groups_of(graph, spans_of(graph))
        return tuple(barrier_stages(graph, costs, groups, _least_nbytes(graph)))

    return Candidates(found, tuple(full_batch), finder.read_back, find_stages)


def _least_nbytes(graph: Graph) -> float:
    maps = (buffer.nbytes for buffer in graph.buffers.values() if buffer.kind in MAPS)
    return MIN_SHARE * max(maps, default=0)


def with_recomputed(
    graph: Graph,
    parts: Iterable[Segment],
    full_batch: Iterable[FullBatchRecompute],
    block: Variant,
    *,
    memory_centric: bool = False,
) -> Iterator[Segment]:
    """The segments, and before each backward one those that recompute the maps that it reads.

    `block` sets the blocks of these. Their inputs are recomputed first and stay, or with
    `memory_centric` are recomputed once more when backward itself reads them.
    """
    makers = {name: whole for whole in full_batch for name in whole.recompute.buffers}
    packs = {
        name: index
        for index, pass_ in enumerate(graph.passes)
        for name in pass_.written_buffers
        if graph.buffers[name].kind is Kind.WEIGHT and pass_.direction is Direction.FORWARD
    }
    made: set[str] = set()
    for part in parts:
        passes = [graph.passes[slot.pass_index] for slot in part.slots]
        if any(pass_.direction is not Direction.FORWARD for pass_ in passes):
            wanted = [name for pass_ in passes for name in sorted(pass_.read_buffers)]
            due = [name for name in wanted if name in makers and name not in made]
            there = set(made) if memory_centric and due else made
            for index in _making(graph, due, makers, packs, there):
                yield in_blocks(graph, [Slot(index, recompute=True)], block)
            made.update(*(makers[name].recompute.buffers for name in due))
        yield part


def _making(
    graph: Graph,
    wanted: Sequence[str],
    makers: Mapping[str, FullBatchRecompute],
    packs: Mapping[str, int],
    made: set[str],
) -> Iterator[int]:
    """The passes that recompute the wanted maps, each behind those that make its inputs."""
    due: list[str | int] = [*reversed(wanted)]  # maps to make, and passes once what they read is
    while due:
        item = due.pop()
        if isinstance(item, int):
            taken = sorted(graph.passes[item].read_buffers)
            yield from (packs[name] for name in taken if name in packs)
            yield item
        elif item in makers and item not in made:
            made |= makers[item].recompute.buffers
            for index in reversed(makers[item].makers):
                due += [index, *sorted(graph.passes[index].read_buffers, reverse=True)]


class _FullBatchFinder:
    """Finds full-batch recomputes outside regions, whose `inner` maps it leaves alone.

    Ops are numbered in the order of their backward passes.
    """

    def __init__(self, graph: Graph, inner: frozenset[str]) -> None:
        self._graph, self._inner = graph, inner
        self._writers: dict[str, list[int]] = {}  # forward passes
        self.read_back: dict[str, int] = {}  # first op of its backward reads
        self._last_read: dict[str, int] = {}  # last op of these
        self._first_read: dict[str, int] = {}  # first pass of these
        self._changed: dict[str, int] = {}  # by parameter, the first pass that changes it
        ops: dict[str, int] = {}
        for index, pass_ in enumerate(graph.passes):
            if pass_.direction is Direction.FORWARD:
                for name in pass_.written_buffers:
                    self._writers.setdefault(name, []).append(index)
            elif pass_.direction is Direction.BACKWARD:
                number = ops.setdefault(pass_.op, len(ops))
                for name in pass_.read_buffers:
                    self.read_back.setdefault(name, number)
                    self._last_read[name] = number
                    self._first_read.setdefault(name, index)
            for name in pass_.updates:
                self._changed.setdefault(name, index)

    def find(self, costs: Costs) -> Iterator[FullBatchRecompute]:
        """Each large group of maps outside regions that some forward passes write together.

        A group is left out that needs a map whose last backward use is long before.
        """
        least = _least_nbytes(self._graph)
        for buffers, makers in self._groups():
            wanted = buffers & self.read_back.keys()
            nbytes = sum(self._graph.buffers[name].nbytes for name in wanted)
            if nbytes < least or not self._can_make(buffers, makers):
                continue
            passes = (self._graph.passes[index] for index in makers)
            seconds = sum(costs.launch_s(pass_, pass_.domain) for pass_ in passes)
            takes = self._taken(makers) - buffers
            due = min(self.read_back[name] for name in wanted)
            if all(self._last_read.get(name, due) >= due - NEAR_OPS for name in takes):
                recompute = Recompute(buffers, nbytes, seconds)
                yield FullBatchRecompute(recompute, makers, frozenset(takes))

    def _groups(self) -> Iterator[tuple[frozenset[str], tuple[int, ...]]]:
        """Maps that backward reads with all their writers, joined where one writes several.

        Workspace that nothing reads in backward is left out. A map that such a pass reads and
        backward does not is recomputed as well: pooling that noted its maxima reads one.
        """
        seen: set[str] = set()
        for name in self._writers:
            if name not in seen and self._graph.buffers[name].kind in MAPS:
                buffers, makers = self._closed({name}, set())
                seen |= buffers
                while lost := {n for n in self._taken(makers) - buffers if self._is_lost(n)}:
                    buffers, makers = self._closed(buffers | lost, makers)
                if buffers & self.read_back.keys():
                    yield frozenset(buffers), tuple(sorted(makers))

    def _closed(self, buffers: set[str], makers: set[int]) -> tuple[set[str], set[int]]:
        """The buffers and their writers, with all other lasting buffers that these write."""
        more, graph = buffers, self._graph
        while more:
            makers = makers | {index for name in more for index in self._writers[name]}
            names = {name for index in makers for name in graph.passes[index].written_buffers}
            lasting = {n for n in names if graph.buffers[n].kind in MAPS or n in self.read_back}
            buffers, more = buffers | lasting, lasting - buffers
        return buffers, makers

    def _taken(self, makers: Iterable[int]) -> set[str]:
        return {name for index in makers for name in self._graph.passes[index].read_buffers}

    def _is_lost(self, name: str) -> bool:
        """Whether a map is one that forward makes and backward never reads."""
        known = name in self._writers and name not in self.read_back
        return known and self._graph.buffers[name].kind is Kind.MAP

    def _can_make(self, buffers: frozenset[str], makers: Sequence[int]) -> bool:
        """Whether the makers, run again in order, find what they read and write nothing else.

        No pass may change what a maker reads before it runs again. Copies of weights are made anew.
        Others may have read the first channels of a map before the next maker added to it: in
        backward all makers have run.
        """
        graph, taken = self._graph, self._taken(makers) - buffers
        passes = [graph.passes[index] for index in makers]
        if any(pass_.effects or pass_.updates for pass_ in passes):
            return False
        if buffers & set(graph.outputs) or (buffers | taken) & self._inner:
            return False
        if any(graph.buffers[name].kind not in MAPS for name in buffers):
            return False
        if any(graph.buffers[name].kind not in INPUT_KINDS for name in taken):
            return False
        weights = {name for name in taken if graph.buffers[name].kind is Kind.WEIGHT}
        packs = [graph.passes[index] for name in weights for index in self._writers[name]]
        first = min(self._first_read[name] for name in buffers & self._first_read.keys())
        params = (name for pass_ in (*passes, *packs) for name in pass_.params)
        if any(self._changed.get(name, first) < first for name in params):
            return False
        return not any(
            self._changes(use, index)
            for index in makers
            for use in graph.passes[index].reads
            if use.buffer not in buffers | weights
        )

    def _changes(self, use: Use, index: int) -> bool:
        """Whether a forward pass behind pass `index` writes what pass `index` reads by `use`."""
        behind = (self._graph.passes[i] for i in self._writers.get(use.buffer, ()) if i > index)
        writes = (write for pass_ in behind for write in pass_.writes if write.buffer == use.buffer)
        return any(
            use.channels is None or write.channels is None or overlap(use.channels, write.channels)
            for write in writes
        )
