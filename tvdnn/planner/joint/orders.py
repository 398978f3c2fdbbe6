"""Orders: a skeleton without recompute, and the skeletons that make some of its maps again."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...graph import RAW, Form, Graph
from ...units import format_bytes
from ..ir.costs import Costs
from ..lowering.segments import Variant
from ..offload.belady import skeletons
from ..recompute.candidates import find_candidates
from ..recompute.regions import MAPS
from ..recompute.skeleton import MapMaking, RecomputeChoice, Skeleton, skeleton_of
from ..recompute.weave import Making
from .columns import Columns
from .lp import Solution

TAKEN = 0.5  # share from which on a column is taken


@dataclass(frozen=True, slots=True)
class JointChoice:
    """Absent columns and recomputes by block that are taken, by number."""

    absent: frozenset[int]
    blocks: frozenset[int]
    # Coded columns that are taken, each with its first section.
    coded: frozenset[tuple[int, int]] = frozenset()
    once: bool = False  # a map made ahead of its reader for other makers stays until it is read

    @classmethod
    def of(cls, solution: Solution, columns: Columns) -> "JointChoice":
        absent, blocks = (
            frozenset(np.flatnonzero(shares >= TAKEN).tolist())
            for shares in (solution.absent, solution.blocks)
        )
        coded = (
            (number, columns.first_coded(number, share))
            for number, share in enumerate(solution.coded.tolist())
        )
        return cls(absent, blocks, frozenset(each for each in coded if each[1] >= 0))


@dataclass(frozen=True, eq=False)
class Order:
    """A skeleton without recompute, and what may be made again in it.

    `lossy` are the codecs that may round maps, by map.
    """

    skeleton: Skeleton
    costs: Costs
    lossy: Mapping[str, Form] = field(default_factory=dict)

    @cached_property
    def columns(self) -> Columns:
        return Columns(self.skeleton, self.costs, self.lossy)

    @property
    def kind(self) -> tuple[bool, bool, bool, int]:
        """Whether regions go section-major, in backward or in both directions; and with codes.

        And how many groups of ops go in barrier stages.
        """
        choice = self.skeleton.choice
        return any(choice.blocks), choice.through, choice.coded, len(choice.stages)

    def like(self, other: "Order") -> bool:
        """Whether both differ in nothing but the directions in which regions go section-major."""
        choices = self.skeleton.choice, other.skeleton.choice
        mine, others = ((each.rest, any(each.blocks), each.coded, each.stages) for each in choices)
        return mine == others

    def woven(self, choice: JointChoice) -> Skeleton:
        """The skeleton in which this is made again."""
        base = self.skeleton
        woven = skeleton_of(base.program.graph, base.candidates, self._recomputed(choice))
        return replace(woven, made=dict(self._reasons(choice)))

    def _recomputed(self, choice: JointChoice) -> RecomputeChoice:
        regions = self.skeleton.candidates.regions
        recomputed = [set[str]() for _ in regions]
        for number in choice.blocks:
            column = self.columns.blocks[number]
            recomputed[column.region] |= regions[column.region].recomputes[column.number].buffers
        made = self._coded.union(self._making(number, once=choice.once) for number in choice.absent)
        return replace(
            self.skeleton.choice,
            recomputed=tuple(map(frozenset, recomputed)),
            made=made,
            encoded=frozenset(self.columns.encoded(*each) for each in choice.coded),
        )

    def _making(self, number: int, *, once: bool) -> MapMaking:
        found = self.columns.absent[number].making
        return (
            found._replace(making=Making.ONCE) if once and found.making is Making.AFRESH else found
        )

    @cached_property
    def _coded(self) -> frozenset[MapMaking]:
        """The reads that find codes."""
        program = self.skeleton.program
        found = (
            (program.intervals[number], launch.pass_index)
            for launch, reads in zip(program.launches, program.reads, strict=True)
            for run in reads
            for number in run
        )
        return frozenset(
            MapMaking(live.buffer, reader, Making.CODED)
            for live, reader in found
            if live.form != RAW
        )

    def _reasons(self, choice: JointChoice) -> Iterator[tuple[str, str]]:
        buffers = self.skeleton.program.graph.buffers
        for number in sorted(choice.absent):
            column = self.columns.absent[number]
            run = self.columns.runs[column.run]
            maps = (
                each for each in map(buffers.__getitem__, run.supply.buffers) if each.kind in MAPS
            )
            nbytes = sum(each.nbytes for each in maps)
            price = f"{1e3 * run.seconds:.2f} ms for {format_bytes(nbytes)}"
            yield column.buffer, price


def orders(graph: Graph, costs: Costs) -> list[Order]:
    """All orders of a graph."""
    return [Order(skeleton, costs) for skeleton in skeletons(graph, costs)]


def first_order(graph: Graph, costs: Costs) -> Order:
    """The order whose blocks take least, layer by layer."""
    return Order(next(skeletons(graph, costs)), costs)


def staged_orders(graph: Graph, costs: Costs) -> list[Order]:
    """Orders with groups of ops in barrier stages, those of the largest maps first.

    Each has twice as many in stages as the one before.
    """
    known = find_candidates(graph, costs)
    sizes = [max(graph.buffers[n].nbytes for n in each.recompute.buffers) for each in known.stages]
    largest = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    doubled = (1 << number for number in range(len(largest).bit_length()))
    blocks, none = (None,) * len(known.regions), (frozenset[str](),) * len(known.regions)
    found = list[Order]()
    for most in sorted({*doubled, len(largest)} - {0}):
        stages = frozenset(largest[:most])
        choice = RecomputeChoice(Variant.PERFORMANCE, blocks, none, stages=stages)
        skeleton = skeleton_of(graph, known, choice)
        passes = [slot.pass_index for slot in skeleton.program.plan.slots if not slot.recompute]
        in_order = replace(known, supplies=known.supplies.in_order(passes))
        found.append(Order(replace(skeleton, candidates=in_order), costs))
    return found
