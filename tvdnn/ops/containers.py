"""Containers: the output of a concatenation as the place of its branches, which is then no copy.

What a branch's maker writes at a pitch, and all who read it read so, lies in the container's range
from the start. An earlier concatenation of some of the same neighbours is a range itself: the
features of a dense block are one container, whatever its layers concatenate.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ..graph import Network, Op, meet

Channels = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """A range of the channels of the value `container`."""

    container: str
    channels: Channels


def ranges_of(network: Network, concat: Op) -> list[Channels]:
    """The channels of its output that each input of a concatenation fills."""
    widths = (network.values[name].shape[-1] for name in concat.inputs)
    return list(pairwise(accumulate(widths, initial=0)))


def gaps_between(ranges: Iterable[Channels], within: Channels) -> list[Channels]:
    """The channels of `within` that are in none of `ranges`, of which no two meet."""
    start, stop = within
    inside = sorted(each for each in ranges if meet(each, within))
    bounds = zip(
        (start, *(last for _, last in inside)), (*(first for first, _ in inside), stop), strict=True
    )
    return [gap for gap in bounds if gap[0] < gap[1]]


def places(network: Network, pitched: Mapping[str, frozenset[str]]) -> dict[str, Place]:
    """By value, the range of a concatenation's output that holds it from the start.

    `pitched` tells of each kind of op what its passes take at a pitch.
    """
    found: dict[str, Place] = {}
    concats = [op for op in network.ops if op.kind == "concat"]
    values = _Values(network, pitched)
    while concats:
        container = concats.pop()
        ranges = ranges_of(network, container)
        for name, channels in zip(container.inputs, ranges, strict=True):
            if name not in found and values.may_lie_in_a_range(name):
                found[name] = Place(container.output, channels)
        for earlier in concats:
            first = _position(earlier.inputs, container.inputs)
            if first is None or earlier.output in found or not values.is_read_so(earlier.output):
                continue
            last = first + len(earlier.inputs) - 1
            channels = ranges[first][0], ranges[last][1]
            found[earlier.output] = Place(container.output, channels)
    return found


def _position(part: tuple[str, ...], whole: tuple[str, ...]) -> int | None:
    """Where `part` begins in `whole`; None where it is none of its neighbours."""
    if part[0] not in whole:
        return None
    first = whole.index(part[0])
    return first if whole[first : first + len(part)] == part else None


class _Values:
    """Who makes and who reads each value, and whether they do so at a pitch."""

    def __init__(self, network: Network, pitched: Mapping[str, frozenset[str]]) -> None:
        self._network, self._pitched = network, pitched
        self._makers = {op.output: op for op in network.ops}
        self._readers: dict[str, list[Op]] = {}
        for op in network.ops:
            for name in dict.fromkeys(op.inputs):
                self._readers.setdefault(name, []).append(op)

    def may_lie_in_a_range(self, name: str) -> bool:
        maker = self._makers.get(name)
        return maker is not None and self._does(maker, "output") and self.is_read_so(name)

    def is_read_so(self, name: str) -> bool:
        """Whether the step alone reads the value, and all of it at a pitch."""
        if name in self._network.outputs:
            return False
        return all(self._reads_so(reader, name) for reader in self._readers.get(name, ()))

    def _reads_so(self, reader: Op, name: str) -> bool:
        if reader.kind != "view":
            return self._does(reader, "input")
        shapes = (self._network.values[each].shape for each in (name, reader.output))
        return len(set(shapes)) == 1 and self.is_read_so(reader.output)

    def _does(self, op: Op, what: str) -> bool:
        return what in self._pitched[op.kind]
