"""Orders: a skeleton without recompute, and the skeletons that make some of its maps again."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...graph import Graph
from ...units import format_bytes
from ..ir.costs import Costs
from ..ir.plan import Plan
from ..lowering.build_program import build_program
from ..lowering.codes import codes_left
from ..offload.belady import skeletons
from ..recompute.skeleton import RecomputeChoice, Skeleton, skeleton_of
from .columns import Columns
from .lp import Solution
from .remakes import Remakes
from .rounding import completed
from .with_makers import woven

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
    remakes: Remakes
    costs: Costs

    @cached_property
    def columns(self) -> Columns:
        return Columns(self.skeleton, self.remakes, self.costs)

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """Whether regions go section-major, in backward or in both directions; and with codes."""
        choice = self.skeleton.choice
        return any(choice.blocks), choice.through, choice.coded

    def woven(self, choice: JointChoice) -> Skeleton:
        """The skeleton in which this is made again."""
        base, graph = self.skeleton, self.skeleton.program.graph
        if choice.blocks:
            base = skeleton_of(graph, base.candidates, self._with_blocks(choice))
        made = completed(self.columns, choice.absent)
        parts = tuple(woven(graph, base.program.plan.segments, made, base.choice.rest))
        known = base.candidates.supplies.producers
        codes = tuple(codes_left(graph, parts, known)) if base.choice.coded else ()
        program = build_program(graph, Plan("auto", parts, codes))
        return Skeleton(base.candidates, base.choice, program, dict(self._reasons(choice)))

    def _with_blocks(self, choice: JointChoice) -> RecomputeChoice:
        regions = self.skeleton.candidates.regions
        recomputed = [set[str]() for _ in regions]
        for number in choice.blocks:
            column = self.columns.blocks[number]
            recomputed[column.region] |= regions[column.region].recomputes[column.number].buffers
        return replace(self.skeleton.choice, recomputed=tuple(map(frozenset, recomputed)))

    def _reasons(self, choice: JointChoice) -> Iterator[tuple[str, str]]:
        buffers = self.skeleton.program.graph.buffers
        for number in sorted(choice.absent):
            column = self.columns.absent[number]
            nbytes = sum(buffers[name].nbytes for name in column.remake.buffers)
            price = f"{1e3 * column.remake.seconds:.2f} ms for {format_bytes(nbytes)}"
            yield column.buffer, price


def orders(graph: Graph, costs: Costs) -> list[Order]:
    """All orders of a graph."""
    remakes = Remakes(graph, costs)
    return [Order(skeleton, remakes, costs) for skeleton in skeletons(graph, costs)]
