"""All that may be recomputed: by block in fusible regions and barrier stages, or full batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ...graph import Direction, Graph, Kind
from ..ir.costs import Costs
from .barriers import StagedGroup, barrier_stages
from .regions import MAPS, FusibleRegion, Recompute, op_groups_of, regions, spans_of
from .supplies import Supplies, Supply

INPUT_KINDS = (*MAPS, Kind.INPUT)
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

    supplies: Supplies
    regions: tuple[FusibleRegion, ...] = ()
    full_batch: tuple[FullBatchRecompute, ...] = ()  # outside regions, fewest seconds a byte first
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
    supplies = Supplies(graph)
    found = regions(supplies, costs)
    inner = frozenset(name for region in found for name in region.inner)
    finder = _FullBatchFinder(supplies, inner)
    full_batch = sorted(finder.find(costs), key=lambda each: each.recompute.seconds_per_byte)

    def find_stages() -> tuple[StagedGroup, ...]:
        groups = op_groups_of(graph, spans_of(graph))
        return tuple(barrier_stages(supplies, costs, groups, _least_nbytes(graph)))

    return Candidates(supplies, found, tuple(full_batch), finder.read_back, find_stages)


def _least_nbytes(graph: Graph) -> float:
    maps = (buffer.nbytes for buffer in graph.buffers.values() if buffer.kind in MAPS)
    return MIN_SHARE * max(maps, default=0)


class _FullBatchFinder:
    """Finds full-batch recomputes outside regions, whose `inner` maps it leaves alone.

    Ops are numbered in the order of their backward passes.
    """

    def __init__(self, supplies: Supplies, inner: frozenset[str]) -> None:
        self._supplies, self._graph, self._inner = supplies, supplies.graph, inner
        self.read_back: dict[str, int] = {}  # first op of its backward reads
        self._last_read: dict[str, int] = {}  # last op of these
        ops: dict[str, int] = {}
        for pass_ in self._graph.passes:
            if pass_.direction is Direction.BACKWARD:
                number = ops.setdefault(pass_.op, len(ops))
                for name in pass_.read_buffers:
                    self.read_back.setdefault(name, number)
                    self._last_read[name] = number

    def find(self, costs: Costs) -> Iterator[FullBatchRecompute]:
        """Each large group of maps outside regions that some forward passes write together.

        A group is left out that needs a map whose last backward use is long before.
        """
        least = _least_nbytes(self._graph)
        for supply in sorted(self._found(), key=lambda each: each.passes):
            buffers = frozenset(n for n in supply.buffers if self._lasts(n))
            wanted = buffers & self.read_back.keys()
            nbytes = sum(self._graph.buffers[name].nbytes for name in wanted)
            if nbytes < least or not self._is_outside(buffers, supply.takes):
                continue
            passes = (self._graph.passes[index] for index in supply.passes)
            seconds = sum(costs.launch_s(pass_, pass_.domain) for pass_ in passes)
            due = min(self.read_back[name] for name in wanted)
            if all(self._last_read.get(name, due) >= due - NEAR_OPS for name in supply.takes):
                recompute = Recompute(buffers, nbytes, seconds)
                yield FullBatchRecompute(recompute, supply.passes, supply.takes)

    def _found(self) -> Iterator[Supply]:
        """The supplies of all maps for the first passes of backward that read them."""
        seen = set[str]()
        for name in self.read_back:
            if name not in seen and self._graph.buffers[name].kind in MAPS:
                supply = self._supplies.of(name, self._supplies.backward_readers(name)[0])
                if supply is not None and supply.passes:
                    seen |= supply.buffers
                    yield supply

    def _lasts(self, name: str) -> bool:
        """Whether the buffer is no workspace of one pass, nor a copy of weights."""
        return self._graph.buffers[name].kind in MAPS or name in self.read_back

    def _is_outside(self, buffers: frozenset[str], takes: frozenset[str]) -> bool:
        """Whether these are maps of no region, made of maps of none."""
        kinds = [self._graph.buffers[name].kind for name in (*buffers, *takes)]
        alike = all(kind in MAPS for kind in kinds[: len(buffers)])
        return alike and {*kinds} <= {*INPUT_KINDS} and not (buffers | takes) & self._inner
