"""Orders: a skeleton without recompute, and the skeletons that make some of its maps again."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...graph import RAW, Graph
from ...units import format_bytes
from ..ir.costs import Costs
from ..offload.belady import skeletons
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

    @classmethod
    def of(cls, solution: Solution) -> "JointChoice":
        absent, blocks = (
            frozenset(np.flatnonzero(shares >= TAKEN).tolist())
            for shares in (solution.absent, solution.blocks)
        )
        return cls(absent, blocks)


@dataclass(frozen=True, eq=False)
class Order:
    """A skeleton without recompute, and what may be made again in it."""

    skeleton: Skeleton
    costs: Costs

    @cached_property
    def columns(self) -> Columns:
        return Columns(self.skeleton, self.costs)

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """Whether regions go section-major, in backward or in both directions; and with codes."""
        choice = self.skeleton.choice
        return any(choice.blocks), choice.through, choice.coded

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
        made = self._coded.union(self.columns.absent[number].making for number in choice.absent)
        return replace(
            self.skeleton.choice, recomputed=tuple(map(frozenset, recomputed)), made=made
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
