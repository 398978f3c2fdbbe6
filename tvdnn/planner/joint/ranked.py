"""Ranked columns: maps that backward makes again once, those of the fewest seconds a byte first.

Choices of the first columns of the ranking need no linear program. Deep networks are planned by
these alone.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ...graph import Direction
from ..ir.plan import HOST
from ..recompute.regions import MAPS
from ..recompute.weave import Making
from .columns import AbsentColumn
from .orders import JointChoice, Order

NEAR_SEGMENTS = 16  # a map that is made so far ahead of its own use is just in time


@dataclass(frozen=True, slots=True)
class RankedColumn:
    """An absent column or a recompute by block, by its number."""

    number: int
    by_block: bool
    seconds: float
    nbytes: int


class RankedColumns:
    """The columns of an order that go together, the fewest seconds a byte first."""

    def __init__(self, order: Order) -> None:
        self._order, self._columns = order, order.columns
        self._taken: dict[str, AbsentColumn] = {}
        self._takers: dict[str, list[int]] = defaultdict(list)  # points at which a map is taken

    @cached_property
    def columns(self) -> tuple[RankedColumn, ...]:
        """All of them."""
        ranked = sorted(self._all(), key=lambda each: each.seconds / each.nbytes)
        return tuple(each for each in ranked if each.by_block or self._joins(each.number))

    def choice(self, count: int) -> JointChoice:
        """The choice of the first columns."""
        first = self.columns[:count]
        absent, blocks = (
            frozenset(each.number for each in first if each.by_block is by_block)
            for by_block in (False, True)
        )
        return JointChoice(absent, blocks, once=True)

    def most_overlapped(self, capacity: int) -> int:
        """How many columns leave no more bytes to copy than forward has time for."""
        program, costs = self._order.skeleton.program, self._order.costs
        forward = (p for p in program.graph.passes if p.direction is Direction.FORWARD)
        hidden = costs.links[HOST].out * sum(
            costs.launch_s(pass_, pass_.domain) for pass_ in forward
        )
        maps = sum(each.nbytes for each in program.graph.buffers.values() if each.kind in MAPS)
        left = accumulate((-each.nbytes for each in self.columns), initial=maps)
        return sum(nbytes > capacity + hidden for nbytes in left)

    def _all(self) -> Iterator[RankedColumn]:
        """Absent columns from forward to the first use in backward, and all by block."""
        columns, first = self._columns, dict[str, AbsentColumn]()
        numbers: dict[str, int] = {}
        for number, each in enumerate(columns.absent):
            if each.making.making is Making.AFRESH and (
                each.buffer not in first or each.low < first[each.buffer].low
            ):
                first[each.buffer], numbers[each.buffer] = each, number
        for name, each in first.items():
            nbytes = sum(columns.classes[which].nbytes for which, _, _ in each.frees)
            yield RankedColumn(numbers[name], False, columns.runs[each.run].seconds, nbytes)
        for number, block in enumerate(columns.blocks):
            nbytes = sum(columns.classes[which].nbytes for which in block.classes)
            yield RankedColumn(number, True, block.seconds, nbytes)

    def _joins(self, number: int) -> bool:
        """Whether the column goes with those before: no map is made long before its own use."""
        each = self._columns.absent[number]
        takes = [name for name, _ in self._columns.runs[each.run].takes]
        known = (self._taken[name] for name in takes if name in self._taken)
        late = any(other.point > each.point + NEAR_SEGMENTS for other in known)
        if late or any(each.point > at + NEAR_SEGMENTS for at in self._takers[each.buffer]):
            return False
        self._taken[each.buffer] = each
        for name in takes:
            self._takers[name].append(each.point)
        return True
