"""Recipes: all that backward may make again, block by block in chains or as whole maps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..graph import Direction, Graph, Kind, Pass
from .chains import MAPS, Chain, Remake, chains, read, written
from .costs import Costs
from .plan import Segment, Slot
from .segments import Variant, in_blocks

INGREDIENTS = (*MAPS, Kind.INPUT, Kind.WEIGHT)
LEAST_SHARE = 0.01  # of the largest map's bytes: less is not worth a trial of the search
NEAR_OPS = 3  # backward, within which a map may well be made ahead of its own use


@dataclass(frozen=True, slots=True)
class Whole:
    """Maps that the passes `makers` make again, all samples of them, before backward reads them.

    `early` are maps that these read long before backward does: made again as well, they would fill
    the memory meanwhile, as would those that they take, and so on to the first layers. Networks of
    batch normalization are recomputed so, since no block of samples goes through their layers: Chen
    et al. 2016, SuperNeurons (Wang et al. 2018).
    """

    remake: Remake
    makers: tuple[int, ...]
    early: frozenset[str]


@dataclass(frozen=True, slots=True)
class Recipes:
    """The chains of a graph, and maps outside them, the best bargain first."""

    chains: tuple[Chain, ...]
    wholes: tuple[Whole, ...]


def recipes(graph: Graph, costs: Costs) -> Recipes:
    """What the graph's backward passes may make again."""
    found = chains(graph, costs)
    wholes = sorted(_wholes(graph, costs, found), key=_price)
    return Recipes(found, tuple(wholes))


def with_remade(
    graph: Graph, parts: Iterable[Segment], wholes: Iterable[Whole], block: Variant
) -> Iterator[Segment]:
    """The segments, and before each of backward those that make again the maps that it reads.

    `block` sets the blocks in which these are made.
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
            for index in _making(graph, wanted, makers, packs, made):
                yield in_blocks(graph, [Slot(index, recompute=True)], block)
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


def _wholes(graph: Graph, costs: Costs, found: Sequence[Chain]) -> Iterator[Whole]:
    """Each group of maps outside chains that some forward passes write together, if it is large."""
    maps = (buffer.nbytes for buffer in graph.buffers.values() if buffer.kind in MAPS)
    least = LEAST_SHARE * max(maps, default=0)
    uses = _Uses(graph)
    inner = frozenset(name for chain in found for name in chain.inner)
    for buffers, makers in _groups(graph, uses):
        wanted = frozenset(name for name in buffers if name in uses.read_back)
        nbytes = sum(graph.buffers[name].nbytes for name in wanted)
        if wanted and nbytes >= least and _can_make(graph, uses, buffers, makers, inner):
            passes = (graph.passes[index] for index in makers)
            seconds = sum(costs.launch_s(pass_, pass_.domain) for pass_ in passes)
            last = min(uses.read_back[name] for name in wanted) + NEAR_OPS
            taken = frozenset(name for index in makers for name in read(graph.passes[index]))
            early = frozenset(name for name in taken if uses.read_back.get(name, 0) > last)
            yield Whole(Remake(buffers, nbytes, seconds), makers, early)


class _Uses:
    """By buffer, the forward passes that write and read it, and the first op backward that does.

    Ops are numbered in the order of their backward passes. `first_read` are these passes, `changed`
    the first that change each parameter.
    """

    def __init__(self, graph: Graph) -> None:
        self.writers: dict[str, list[int]] = {}
        self.readers: dict[str, list[int]] = {}
        self.read_back: dict[str, int] = {}
        self.first_read: dict[str, int] = {}
        self.changed: dict[str, int] = {}
        ops: dict[str, int] = {}
        for index, pass_ in enumerate(graph.passes):
            if pass_.direction is Direction.FORWARD:
                for name in written(pass_):
                    self.writers.setdefault(name, []).append(index)
                for name in read(pass_):
                    self.readers.setdefault(name, []).append(index)
            elif pass_.direction is Direction.BACKWARD:
                number = ops.setdefault(pass_.op, len(ops))
                for name in read(pass_):
                    self.read_back.setdefault(name, number)
                    self.first_read.setdefault(name, index)
            for name in pass_.updates:
                self.changed.setdefault(name, index)


def _groups(graph: Graph, uses: _Uses) -> Iterator[tuple[frozenset[str], tuple[int, ...]]]:
    """Maps with all passes that write them, joined where one pass writes several."""
    seen: set[str] = set()
    for name in uses.writers:
        if name in seen or graph.buffers[name].kind not in MAPS:
            continue
        buffers, makers = {name}, set(uses.writers[name])
        while (
            more := {other for index in makers for other in written(graph.passes[index])} - buffers
        ):
            buffers |= more
            makers |= {index for other in more for index in uses.writers[other]}
        seen |= buffers
        yield frozenset(buffers), tuple(sorted(makers))


def _can_make(
    graph: Graph,
    uses: _Uses,
    buffers: frozenset[str],
    makers: Sequence[int],
    inner: frozenset[str],
) -> bool:
    """Whether the makers, run again one after the other, find all that they read and leave no more.

    So no forward pass may use a half-made map, and none may change what a maker reads before it
    runs again; copies of weights are made for it anew.
    """
    passes = [graph.passes[index] for index in makers]
    taken = frozenset(name for pass_ in passes for name in read(pass_)) - buffers
    if any(pass_.effects or pass_.updates for pass_ in passes):
        return False
    if buffers & (inner | set(graph.outputs)) or taken & inner:
        return False
    if any(graph.buffers[name].kind not in MAPS for name in buffers):
        return False
    if any(graph.buffers[name].kind not in INGREDIENTS for name in taken):
        return False
    early = (i for name in buffers for i in uses.readers.get(name, ()) if i not in makers)
    if any(index < makers[-1] for index in early):
        return False
    weights = {name for name in taken if graph.buffers[name].kind is Kind.WEIGHT}
    packs = [graph.passes[index] for name in weights for index in uses.writers[name]]
    first = min(uses.first_read[name] for name in buffers if name in uses.first_read)
    params = (name for pass_ in (*passes, *packs) for name in pass_.params)
    if any(uses.changed.get(name, first) < first for name in params):
        return False
    made = (index for name in taken - weights for index in uses.writers.get(name, ()))
    return all(index < makers[0] for index in made)


def _is_backward(pass_: Pass) -> bool:
    return pass_.direction is not Direction.FORWARD


def _price(whole: Whole) -> float:
    return whole.remake.seconds / whole.remake.nbytes
