"""The order in which the terms of a gradient add up: that of the traced network's ops, backwards.

A fused op may stand at another place among the ops than the ops that it stands for. The order of
the terms is the same with and without fusion.
"""

from collections.abc import Sequence
from itertools import islice

from ..graph import Network, Op

FUSED_OPS = 4  # ops of the traced network that a fused op stands for, at most


class ReadOrder:
    """Where in the traced network each op reads its inputs and parameters."""

    def __init__(self, traced: Network, ops: Sequence[Op]) -> None:
        self._places = {op.name: place for place, op in enumerate(traced.ops)}
        self._makers = {op.output: op for op in traced.ops}
        self._turns = {op.name: turn for turn, op in enumerate(ops)}
        self._narrowed: dict[str, int] = {}
        for place, op in enumerate(traced.ops):
            if op.kind == "narrow":
                self._narrowed[op.inputs[0]] = place

    @property
    def end(self) -> int:
        """A place behind all reads, that of what the caller reads of the network's outputs."""
        return len(self._places) + 1

    def of_op(self, op: Op) -> int:
        """The place of the first traced op that the op stands for; behind all of an added op."""
        return self._places.get(op.name, len(self._places))

    def reads(self, op: Op, value: str) -> list[int]:
        """The places of the traced ops by which the op reads the value, the last first.

        Ranges of a value share a gradient. Its place is the last range's.
        """
        if op.kind == "narrow" or value not in op.inputs:
            return [self._narrowed.get(value, -1)]
        covered = self._covered(op)
        return [self.of_op(each) for each in covered for name in each.inputs if name == value]

    def awaits(self, op: Op, value: str, readers: Sequence[Op], place: int) -> bool:
        """Whether, as `op` goes backward, a term of an op behind `place` is still to come."""
        turn = self._turns[op.name]
        left = (each for each in readers if self._turns[each.name] < turn)
        return any(max(self.reads(each, value)) > place for each in left)

    def _covered(self, op: Op) -> list[Op]:
        """The traced ops that the op stands for, the last first."""
        if op.name not in self._places or self._makers[op.output].name == op.name:
            return [op]
        return self._path(self._makers[op.output], op.name, FUSED_OPS) or [op]

    def _path(self, last: Op, first: str, most: int) -> list[Op]:
        """The ops from `last` back to the one of the name `first`; none if there is no such way."""
        if last.name == first:
            return [last]
        makers = (self._makers[name] for name in last.inputs if name in self._makers and most > 1)
        paths = (self._path(maker, first, most - 1) for maker in makers)
        found = list(islice((path for path in paths if path), 1))
        return [last, *found[0]] if found else []
