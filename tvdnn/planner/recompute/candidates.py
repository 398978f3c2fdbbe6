"""Recipes: all that may be made again, block by block in chains and rounds, or as whole maps."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from ...graph import Direction, Graph, Kind, Pass, Use, overlap
from ..ir.costs import Costs
from ..ir.plan import Segment, Slot
from ..lowering.segments import Variant, in_blocks
from .barriers import Rounds, in_rounds
from .regions import MAPS, Chain, Remake, chains, read, spans_of, stages_of, written

INGREDIENTS = (*MAPS, Kind.INPUT, Kind.WEIGHT)
LEAST_SHARE = 0.01  # of the largest map's bytes: less is not worth a trial of the search
NEAR_OPS = 3  # backward, within which a map may well be made ahead of its own use


@dataclass(frozen=True, slots=True)
class Whole:
    """Maps that the passes `makers` make again, all samples of them, before backward reads them.

    `takes` are the maps that these read. Networks of batch normalization are recomputed so, since
    no block of samples goes through their layers: Chen et al. 2016, SuperNeurons (Wang et al.
    2018).
    """

    remake: Remake
    makers: tuple[int, ...]
    takes: frozenset[str]


@dataclass(frozen=True)
class Recipes:
    """The chains of a graph, what may go in rounds, and maps outside chains, the best first.

    `due` has by map the number of the first op that reads it in backward.
    """

    chains: tuple[Chain, ...]
    wholes: tuple[Whole, ...]
    due: Mapping[str, int] = field(default_factory=dict)
    find_rounds: Callable[[], tuple[Rounds, ...]] = tuple

    @cached_property
    def rounds(self) -> tuple[Rounds, ...]:
        """What may go in rounds: found when asked for, since few plans need it."""
        return self.find_rounds()

    def gone(self, rounds: Iterable[int]) -> frozenset[int]:
        """The passes of these rounds: no chain or whole map has them then."""
        return frozenset(index for number in rounds for index in self.rounds[number].passes)


class Together:
    """Whole maps that are made again together, none long before backward reads it.

    What is made again and takes what is made again has that made first, and what this takes, and so
    on to the first layers: all would fill the memory meanwhile.
    """

    def __init__(self, due: Mapping[str, int], room: float) -> None:
        self._due = due
        self._room = room
        self._maker: dict[str, Whole] = {}
        self._takers: dict[str, list[Whole]] = {}

    def add(self, whole: Whole) -> bool:
        """Make this one again as well, unless one would be made too early; whether it is."""
        known = whole.remake.buffers & self._due.keys()
        self._maker |= dict.fromkeys(known, whole)
        for name in whole.takes:
            self._takers.setdefault(name, []).append(whole)
        if all(self._in_time(each) for each in self._roots(whole)):
            return True
        for name in known:
            del self._maker[name]
        for name in whole.takes:
            self._takers[name].pop()
        return False

    def _roots(self, whole: Whole) -> Iterator[Whole]:
        """The whole, and all that have it made first."""
        left, seen = [whole], {whole.makers}
        while left:
            yield (each := left.pop())
            for name in each.remake.buffers:
                new = [w for w in self._takers.get(name, ()) if w.makers not in seen]
                seen |= {w.makers for w in new}
                left += new

    def _in_time(self, root: Whole) -> bool:
        """Whether all that is made with `root` is read soon, or finds room until it is."""
        last = self._first(root) + NEAR_OPS
        left, seen, early = [root], {root.makers}, 0
        while left:
            for name in left.pop().takes:
                whole = self._maker.get(name)
                if whole is None or whole.makers in seen:
                    continue
                if self._due[name] > last:
                    early += whole.remake.nbytes
                    if early > self._room:
                        return False
                seen.add(whole.makers)
                left.append(whole)
        return True

    def _first(self, whole: Whole) -> int:
        return min(self._due[name] for name in whole.remake.buffers if name in self._due)


def recipes(graph: Graph, costs: Costs) -> Recipes:
    """What the graph's backward passes may make again."""
    found = chains(graph, costs)
    uses = _Uses(graph)
    wholes = sorted(_wholes(graph, costs, found, uses), key=_price)
    return Recipes(found, tuple(wholes), uses.read_back, partial(_rounds, graph, costs))


def _rounds(graph: Graph, costs: Costs) -> tuple[Rounds, ...]:
    stages = ([op.name for op in stage] for stage in stages_of(graph, spans_of(graph)))
    return tuple(in_rounds(graph, costs, stages, _least_nbytes(graph)))


def _least_nbytes(graph: Graph) -> float:
    """Bytes of maps, from which on these are worth a trial."""
    maps = (buffer.nbytes for buffer in graph.buffers.values() if buffer.kind in MAPS)
    return LEAST_SHARE * max(maps, default=0)


def with_remade(
    graph: Graph,
    parts: Iterable[Segment],
    wholes: Iterable[Whole],
    block: Variant,
    *,
    afresh: bool = False,
) -> Iterator[Segment]:
    """The segments, and before each of backward those that make again the maps that it reads.

    `block` sets the blocks in which these are made. What they take is made first, and there from
    then on, or with `afresh` made once more when backward reads it itself.
    """
    makers = {name: whole for whole in wholes for name in whole.remake.buffers}
    packs = {
        name: index
        for index, pass_ in enumerate(graph.passes)
        for name in written(pass_)
        if graph.buffers[name].kind is Kind.WEIGHT and pass_.direction is Direction.FORWARD
    }
    made: set[str] = set()
    for part in parts:
        passes = [graph.passes[slot.pass_index] for slot in part.slots]
        if any(_is_backward(pass_) for pass_ in passes):
            wanted = [name for pass_ in passes for name in sorted(read(pass_))]
            due = [name for name in wanted if name in makers and name not in made]
            there = set(made) if afresh and due else made
            for index in _making(graph, due, makers, packs, there):
                yield in_blocks(graph, [Slot(index, recompute=True)], block)
            made.update(*(makers[name].remake.buffers for name in due))
        yield part


def _making(
    graph: Graph,
    wanted: Sequence[str],
    makers: Mapping[str, Whole],
    packs: Mapping[str, int],
    made: set[str],
) -> Iterator[int]:
    """The passes that make again those of the wanted maps that can be, behind what these read."""
    due: list[str | int] = [*reversed(wanted)]  # maps to make, and passes once what they read is
    while due:
        item = due.pop()
        if isinstance(item, int):
            taken = sorted(read(graph.passes[item]))
            yield from (packs[name] for name in taken if name in packs)
            yield item
        elif item in makers and item not in made:
            made |= makers[item].remake.buffers
            for index in reversed(makers[item].makers):
                due += [index, *sorted(read(graph.passes[index]), reverse=True)]


def _wholes(graph: Graph, costs: Costs, found: Sequence[Chain], uses: "_Uses") -> Iterator[Whole]:
    """Each group of maps outside chains that some forward passes write together, if it is large.

    Left out is what takes a map that backward would have read for the last time long before.
    """
    least = _least_nbytes(graph)
    inner = frozenset(name for chain in found for name in chain.inner)
    for buffers, makers in _groups(graph, uses):
        wanted = frozenset(name for name in buffers if name in uses.read_back)
        nbytes = sum(graph.buffers[name].nbytes for name in wanted)
        if nbytes >= least and _can_make(graph, uses, buffers, makers, inner):
            passes = (graph.passes[index] for index in makers)
            seconds = sum(costs.launch_s(pass_, pass_.domain) for pass_ in passes)
            takes = _taken(graph, makers) - buffers
            due = min(uses.read_back[name] for name in wanted)
            if all(uses.last_read.get(name, due) >= due - NEAR_OPS for name in takes):
                yield Whole(Remake(buffers, nbytes, seconds), makers, frozenset(takes))


class _Uses:
    """By buffer, the forward passes that write it, and the first and last op of its backward reads.

    Ops are numbered in the order of their backward passes. `first_read` are the passes of the
    first ones, `changed` the first that change each parameter.
    """

    def __init__(self, graph: Graph) -> None:
        self.writers: dict[str, list[int]] = {}
        self.read_back: dict[str, int] = {}
        self.last_read: dict[str, int] = {}
        self.first_read: dict[str, int] = {}
        self.changed: dict[str, int] = {}
        ops: dict[str, int] = {}
        for index, pass_ in enumerate(graph.passes):
            if pass_.direction is Direction.FORWARD:
                for name in written(pass_):
                    self.writers.setdefault(name, []).append(index)
            elif pass_.direction is Direction.BACKWARD:
                number = ops.setdefault(pass_.op, len(ops))
                for name in read(pass_):
                    self.read_back.setdefault(name, number)
                    self.last_read[name] = number
                    self.first_read.setdefault(name, index)
            for name in pass_.updates:
                self.changed.setdefault(name, index)


def _groups(graph: Graph, uses: _Uses) -> Iterator[tuple[frozenset[str], tuple[int, ...]]]:
    """Maps that backward reads with all passes that write them, joined where one writes several.

    Workspace that a pass leaves besides, which nothing reads in backward, is none of them. What a
    pass takes that backward does not read, as pooling does that noted its maxima, is made as well.
    """
    seen: set[str] = set()
    for name in uses.writers:
        if name not in seen and graph.buffers[name].kind in MAPS:
            buffers, makers = _closed(graph, uses, {name}, set())
            seen |= buffers
            while lost := {n for n in _taken(graph, makers) - buffers if _is_lost(graph, uses, n)}:
                buffers, makers = _closed(graph, uses, buffers | lost, makers)
            if buffers & uses.read_back.keys():
                yield frozenset(buffers), tuple(sorted(makers))


def _closed(
    graph: Graph, uses: _Uses, buffers: set[str], makers: set[int]
) -> tuple[set[str], set[int]]:
    """The buffers and their writers, with all that lasts of what these write besides."""
    more = buffers
    while more:
        makers = makers | {index for name in more for index in uses.writers[name]}
        names = {name for index in makers for name in written(graph.passes[index])}
        lasting = {n for n in names if graph.buffers[n].kind in MAPS or n in uses.read_back}
        buffers, more = buffers | lasting, lasting - buffers
    return buffers, makers


def _taken(graph: Graph, makers: Iterable[int]) -> set[str]:
    return {name for index in makers for name in read(graph.passes[index])}


def _is_lost(graph: Graph, uses: _Uses, name: str) -> bool:
    """Whether a map is one that forward makes and backward never reads."""
    known = name in uses.writers and name not in uses.read_back
    return known and graph.buffers[name].kind is Kind.MAP


def _can_make(
    graph: Graph,
    uses: _Uses,
    buffers: frozenset[str],
    makers: Sequence[int],
    inner: frozenset[str],
) -> bool:
    """Whether the makers, run again one after the other, find all that they read and leave no more.

    So none may change what a maker reads before it runs again; copies of weights are made for it
    anew. A map that one maker gave its first channels may long have been read by others as the next
    adds to it: in backward they have all run.
    """
    passes = [graph.passes[index] for index in makers]
    taken = _taken(graph, makers) - buffers
    if any(pass_.effects or pass_.updates for pass_ in passes):
        return False
    if buffers & (inner | set(graph.outputs)) or taken & inner:
        return False
    if any(graph.buffers[name].kind not in MAPS for name in buffers):
        return False
    if any(graph.buffers[name].kind not in INGREDIENTS for name in taken):
        return False
    weights = {name for name in taken if graph.buffers[name].kind is Kind.WEIGHT}
    packs = [graph.passes[index] for name in weights for index in uses.writers[name]]
    first = min(uses.first_read[name] for name in buffers if name in uses.first_read)
    params = (name for pass_ in (*passes, *packs) for name in pass_.params)
    if any(uses.changed.get(name, first) < first for name in params):
        return False
    return not any(
        _changes(graph, uses, use, index)
        for index in makers
        for use in graph.passes[index].reads
        if use.buffer not in buffers | weights
    )


def _changes(graph: Graph, uses: _Uses, use: Use, index: int) -> bool:
    """Whether a forward pass behind pass `index` writes what that reads by `use`."""
    behind = (graph.passes[i] for i in uses.writers.get(use.buffer, ()) if i > index)
    writes = (write for pass_ in behind for write in pass_.writes if write.buffer == use.buffer)
    return any(
        use.channels is None or write.channels is None or overlap(use.channels, write.channels)
        for write in writes
    )


def _is_backward(pass_: Pass) -> bool:
    return pass_.direction is not Direction.FORWARD


def _price(whole: Whole) -> float:
    return whole.remake.seconds / whole.remake.nbytes
