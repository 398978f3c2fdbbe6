"""Which maps are rounded to TF32 as they are written: the operands of products, and no others.

Tensor cores use the TF32 part of their operands. Other passes read exact float32, as torch does:
rounding their maps as well made gradients of networks with normalizations up to ten times less
accurate than torch's (ConvNeXt-T, H200, 2026-11-21). A map that both read is rounded. The rule sees
only a step's passes, and no plan changes a bit.

A gradient that would be lost if it read a rounded output reads the op's input, because that keeps
no more maps than a rounded copy would, takes no more launches, and leaves products as fast.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from ..graph import Buffer, Direction, Need, Network, Op, Pass, Use, overlap
from .concat_views import Channels, gaps_between
from .registry import OPERATORS, copies_values, multiplies


def with_gradients_by_input(network: Network, wanted: Set[str]) -> Network:
    """The network with ops by input for those whose output a product reads, as it is or moved.

    Only the gradients of the values `wanted` count.
    """
    read: set[str] = set()
    ops: list[Op] = []
    for op in reversed(network.ops):
        operator = OPERATORS[op.kind]
        moves = op.kind == "view" or copies_values(op.kind, "forward")
        if operator.products or (moves and op.output in read):
            read.update(op.inputs)
        replaced = operator.if_rounded and op.output in read & wanted
        ops.append(replace(op, kind=operator.if_rounded) if replaced else op)
    return replace(network, ops=tuple(reversed(ops)))


class Rounding(NamedTuple):
    """The passes with their rounded channels, and the inputs and ops whose outputs are rounded."""

    passes: tuple[Pass, ...]
    inputs: frozenset[str]
    ops: frozenset[str]


def with_rounding(
    passes: Sequence[Pass], ops: Mapping[str, Op], buffers: Mapping[str, Buffer]
) -> Rounding:
    """Found from the last pass to the first, with the channels that later products read."""
    read = _Operands(buffers)
    found: list[Pass] = []
    for each in reversed(passes):
        rounded = tuple(read.pop(use) for use in each.writes)
        kind = ops[each.op].kind
        if multiplies(kind, each.role):
            read.add(use for use in each.reads if use.need is Need.VALUES and not use.exact)
        elif copies_values(kind, each.role):
            pairs = zip(each.reads, rounded, strict=False)  # the write of codes has no read
            read.add(use for use, channels in pairs if channels is not None)
        found.append(replace(each, rounded=rounded))
    makers = (each for each in found if each.direction is Direction.FORWARD and any(each.rounded))
    return Rounding(tuple(reversed(found)), read.buffers(), frozenset(each.op for each in makers))


class _Operands:
    """The channels of buffers that products read before other values are written there."""

    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        self._buffers = buffers
        self._read: dict[str, list[Channels]] = {}

    def add(self, uses: Iterable[Use]) -> None:
        for use in uses:
            known = self._read.setdefault(use.buffer, [])
            known += gaps_between(known, self._channels(use))

    def pop(self, use: Use) -> Channels | None:
        """The least range of operands that the use writes; it is removed."""
        known, written = self._read.get(use.buffer, []), self._channels(use)
        inside = [each for each in known if overlap(each, written)]
        if not inside:
            return None
        self._read[use.buffer] = [gap for each in known for gap in gaps_between([written], each)]
        first, last = (min(start for start, _ in inside), max(stop for _, stop in inside))
        return max(first, written[0]) - written[0], min(last, written[1]) - written[0]

    def buffers(self) -> frozenset[str]:
        """The buffers with any channels left."""
        return frozenset(name for name, known in self._read.items() if known)

    def _channels(self, use: Use) -> Channels:
        return use.channels or (0, self._buffers[use.buffer].shape[-1])
