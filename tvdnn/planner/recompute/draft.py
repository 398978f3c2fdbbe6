"""auto: what a choice of recompute, blocks and offloads looks like as a plan.

Chains of ops whose maps are made again go section-major in both directions: these maps exist for
the samples of one block at a time; so go those that normalize over the batch, in rounds. Maps
outside these are made again whole. What must leave the device besides is offloaded, outermost maps
first: they are away for longest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

import numpy as np

from ...graph import RUN_CHUNKS, Graph, section_rows
from ...units import format_bytes
from ..ir.costs import Costs
from ..ir.plan import Plan, Segment, Slot
from ..lowering.idle import IdleInterval, forward_backward_idle, intra_pass_idle, transfers_of
from ..lowering.limits import MemoryLimit
from ..lowering.list_scheduler import required_nbytes
from ..lowering.program import Program, build_program
from ..lowering.segments import Variant, segments
from .barriers import Half
from .candidates import Recipes, Whole, with_remade
from .regions import Again, Region, again

LONG_RUN_CHUNKS = 16  # where little moves, longer blocks save launches
CHUNKS = {Variant.PERFORMANCE: RUN_CHUNKS, Variant.KEEP: LONG_RUN_CHUNKS}
NOTHING = Again((), ())


@dataclass(frozen=True, slots=True)
class Choice:
    """What is decided by search; the rest follows.

    `rest` sets the blocks of layers in no chain. By chain, `blocks` sets those of its segments
    (None: its ops go layer by layer), and `remade` names the maps that backward makes again. Where
    there are none its forward goes layer by layer all the same, unless chains go `through`.
    `wholes` are the numbers of the recipes by which it makes whole maps again, what these take too
    if that is to be made `afresh`. `rounds` are the numbers of those layers that go in rounds, in
    blocks as set by `rest`; chains and wholes that have passes of theirs are none then.
    """

    rest: Variant
    blocks: tuple[Variant | None, ...]
    remade: tuple[frozenset[str], ...]
    wholes: frozenset[int] = frozenset()
    afresh: bool = False
    rounds: frozenset[int] = frozenset()
    through: bool = True


class _Gaps:
    """The gaps that are not taken yet, those of the outermost maps first."""

    def __init__(self, gaps: Iterable[IdleInterval]) -> None:
        self._gaps = tuple(gaps)
        maps: dict[str, int] = {}
        rows = [(g.last, g.next, maps.setdefault(g.buffer, len(maps))) for g in self._gaps]
        self._last, self._back, self._map = np.array(rows, np.int64).reshape(-1, 3).T.copy()

    def take(self, launch: int, excess: int) -> list[IdleInterval]:
        """Sections of the outermost map that is idle at `launch`, the last first, up to `excess`.

        A gap that is taken ends before it began, so that it is idle at no launch.
        """
        idle = np.flatnonzero((self._last < launch) & (launch < self._back))
        chosen, nbytes = list[IdleInterval](), 0
        for index in reversed(idle[self._map[idle] == self._map[idle[:1]]].tolist()):
            if nbytes < excess:
                chosen.append(self._gaps[index])
                nbytes += chosen[-1].nbytes
                self._back[index] = -1
        return chosen


@dataclass(frozen=True, slots=True)
class Draft:
    """A choice as segments and the program of these, in which nothing moves yet."""

    graph: Graph
    recipes: Recipes
    choice: Choice
    parts: tuple[Segment, ...]
    program: Program

    def plan(self, room: MemoryLimit) -> Plan | None:
        """The plan whose launches find their bytes in `room`; None where they cannot."""
        moved = _moved(self.graph, self.program, room)
        return None if moved is None else self.moving(moved)

    def compute_s(self, costs: Costs) -> float:
        """What the launches take."""
        passes = self.graph.passes
        launches = self.program.launches
        return sum(costs.launch_s(passes[at.pass_index], at.stop - at.start) for at in launches)

    def leanest(self) -> Plan:
        """The plan in which all moves that is idle."""
        trips, others = (
            forward_backward_idle(self.graph, self.program),
            intra_pass_idle(self.graph, self.program),
        )
        return self.moving([*trips, *others])

    def moving(self, moved: Sequence[IdleInterval], policy: str = "auto") -> Plan:
        """The plan of `policy` in which these gaps are spent on the host."""
        return Plan(
            policy,
            self.parts,
            tuple(transfers_of(moved)),
            reasons=_reasons(self.graph, self.recipes, self.choice, self.parts, moved),
        )


def auto(graph: Graph, recipes: Recipes, choice: Choice) -> Draft:
    """The draft of `choice`."""
    parts = _parts(graph, recipes, choice)
    return Draft(graph, recipes, choice, parts, build_program(graph, Plan("auto", parts)))


def leanest(graph: Graph, recipes: Recipes) -> Iterator[Plan]:
    """Plans with the least blocks that move all that is idle, besides making all again or none."""
    chains = recipes.chains
    blocks = (Variant.MEMORY,) * len(chains)
    for remakes in (True, False):
        names = ((name for r in chain.remakes if remakes for name in r.buffers) for chain in chains)
        wholes = frozenset(range(len(recipes.wholes))) if remakes else frozenset[int]()
        choice = Choice(Variant.MEMORY, blocks, tuple(map(frozenset, names)), wholes)
        yield auto(graph, recipes, choice).leanest()


def _parts(graph: Graph, recipes: Recipes, choice: Choice) -> tuple[Segment, ...]:
    """The segments of a choice."""
    parts = _segments(graph, recipes, choice)
    wholes = _wholes(recipes, choice)
    return tuple(with_remade(graph, parts, wholes, choice.rest, afresh=choice.afresh))


def _wholes(recipes: Recipes, choice: Choice) -> list[Whole]:
    """What is made again as whole maps: of what is chosen all that no rounds make."""
    gone = recipes.gone(choice.rounds)
    wholes = [recipes.wholes[number] for number in sorted(choice.wholes)]
    return [whole for whole in wholes if gone.isdisjoint(whole.makers)]


def _segments(graph: Graph, recipes: Recipes, choice: Choice) -> Iterator[Segment]:
    """The passes in program order, those of chains and rounds as section-major segments."""
    starts: dict[int, list[Segment]] = {}
    taken = gone = recipes.gone(choice.rounds)
    for each in (recipes.rounds[number] for number in choice.rounds):
        for half in (each.forward, each.backward):
            starts[half.passes[0]] = list(_in_rounds(graph, half, choice.rest))
    for chain, block, remade in zip(recipes.chains, choice.blocks, choice.remade, strict=True):
        if block is None or not gone.isdisjoint(chain.passes):
            continue
        made = again(graph, chain, remade) if remade else NOTHING
        regions = ((chain.forward, NOTHING), (chain.backward, made))
        for region, first in regions if remade or choice.through else regions[1:]:
            starts[region.passes[0]] = _region_segments(graph, region, first, block)
            taken = taken.union(region.passes)
    for segment in segments(graph, {}, choice.rest):
        left: list[Slot] = []
        for slot in segment.slots:
            if slot.pass_index in starts:
                yield from _others(segment, left)
                yield from starts[slot.pass_index]
                left = []
            elif slot.pass_index not in taken:
                left.append(slot)
        yield from _others(segment, left)


def _in_rounds(graph: Graph, half: Half, block: Variant) -> Iterator[Segment]:
    """Round after round, and what comes before and behind each."""
    yield from (Segment((slot,)) for slot in half.ahead)
    for each in half.rounds:
        if each.slots:
            yield Segment(each.slots, _block_rows(graph, each.slots, block))
        yield from (Segment((Slot(index),)) for index in each.behind)
    yield from (Segment((Slot(index),)) for index in half.after)


def _others(segment: Segment, slots: Sequence[Slot]) -> Iterator[Segment]:
    """The segment with those of its slots alone that no chain took, if there are any."""
    if slots:
        yield replace(segment, slots=tuple(slots))


def _region_segments(graph: Graph, region: Region, first: Again, block: Variant) -> list[Segment]:
    """A region behind what is made again for it, and around it what goes with neither by block."""
    ahead = [Segment((Slot(index, recompute=True),)) for index in first.packs]
    ahead += [Segment((Slot(index),)) for index in region.before]
    again_slots = tuple(Slot(index, recompute=True) for index in first.members)
    slots = (*again_slots, *(Slot(index) for index in region.members))
    behind = [Segment((Slot(index),)) for index in region.after]
    return [*ahead, Segment(slots, _block_rows(graph, slots, block)), *behind]


def _block_rows(graph: Graph, slots: Iterable[Slot], block: Variant) -> int:
    """Samples of a block: the slots' common unit, or as many of it as fit a run."""
    passes = [graph.passes[slot.pass_index] for slot in slots]
    unit = lcm(*(pass_.unit for pass_ in passes))
    if block is Variant.MEMORY:
        return min(unit, graph.batch)
    uses = (use for pass_ in passes for use in (*pass_.reads, *pass_.writes) if not use.whole)
    row = max(graph.buffers[use.buffer].row_nbytes for use in uses)
    rows = section_rows(graph.batch, row, CHUNKS[block] * graph.chunk_size)
    return min(-(-rows // unit) * unit, graph.batch)


def _moved(graph: Graph, prog: Program, room: MemoryLimit) -> list[IdleInterval] | None:
    """The sections to move so that every launch finds its bytes in `room`; None if none suffice."""
    excess, moved = required_nbytes(prog) - room, list[IdleInterval]()
    if int(excess.max(initial=0)) <= 0:
        return moved
    gaps, others = _Gaps(forward_backward_idle(graph, prog)), None
    fullest = int(excess.argmax())
    while excess[fullest] > 0:
        chosen = gaps.take(fullest, int(excess[fullest]))
        if not chosen:
            others = others or _Gaps(intra_pass_idle(graph, prog))
            chosen = others.take(fullest, int(excess[fullest]))
        if not chosen:
            return None
        for gap in chosen:
            excess[gap.last + 1 : gap.next] -= gap.nbytes
        moved += chosen
        fullest = int(excess.argmax())
    return moved


def _reasons(
    graph: Graph,
    recipes: Recipes,
    choice: Choice,
    parts: tuple[Segment, ...],
    moved: Sequence[IdleInterval],
) -> Mapping[str, str]:
    """Why maps move or are made again, in words."""
    gone = recipes.gone(choice.rounds)
    slots = [slot for part in parts for slot in part.slots]
    names = [graph.passes[s.pass_index].name + " again" * s.recompute for s in slots]
    reasons = {
        gap.buffer: f"idle from {names[gap.offload_after]} to {names[gap.needed_by]}"
        for gap in moved
    }
    remakes = [
        remake
        for chain, remade in zip(recipes.chains, choice.remade, strict=True)
        if gone.isdisjoint(chain.passes)
        for remake in chain.remakes
        if remake.buffers <= remade
    ]
    remakes += [whole.remake for whole in _wholes(recipes, choice)]
    remakes += [recipes.rounds[number].remake for number in sorted(choice.rounds)]
    for remake in remakes:
        price = f"{1e3 * remake.seconds:.2f} ms for {format_bytes(remake.nbytes)}"
        reasons |= dict.fromkeys(sorted(remake.buffers), price)
    return reasons
