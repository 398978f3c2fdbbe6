"""Concat views: branches that lie in the concatenation's output from the start, without a copy.

A branch lies there if its maker writes at a pitch, all its readers read at a pitch, and its range
begins where they accept it. An earlier concatenation of the same neighbours is a range itself: the
features of a dense block share one map. The parts of a split map lie in that map unless backward
would keep more bytes for it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ..graph import Network, Op, overlap

Channels = tuple[int, int]

WORD = 8  # channels in one load of 16 bytes of bfloat16


@dataclass(frozen=True, slots=True)
class StridedSupport:
    """The ranges of wider maps' channels that an op's passes accept."""

    # The values that may be ranges: the inputs, the output, the output's gradient.
    uses: frozenset[str] = frozenset()
    # Channels. A range starts and ends, and a map is wide, at whole multiples of it.
    word: int = 1

    def accepts(self, use: str, channels: Channels, pitch: int) -> bool:
        return use in self.uses and all(size % self.word == 0 for size in (*channels, pitch))


@dataclass(frozen=True, slots=True)
class Alias:
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
    inside = sorted(each for each in ranges if overlap(each, within))
    bounds = zip(
        (start, *(last for _, last in inside)), (*(first for first, _ in inside), stop), strict=True
    )
    return [gap for gap in bounds if gap[0] < gap[1]]


def aliases(network: Network, strided: Mapping[str, StridedSupport]) -> dict[str, Alias]:
    """By value, the range of a concatenation's output, or of a split map, that holds it.

    `strided` says by kind of op which ranges its passes accept.
    """
    found: dict[str, Alias] = {}
    concats = [op for op in network.ops if op.kind == "concat"]
    values = ValueUses(network, strided)
    while concats:
        container = concats.pop()
        ranges = ranges_of(network, container)
        before, pitch = values.extent(found, container.output)
        for name, (start, stop) in zip(container.inputs, ranges, strict=True):
            if name not in found and values.may_lie_at(name, before + start, pitch):
                found[name] = Alias(container.output, (start, stop))
        for earlier in concats:
            first = _position(earlier.inputs, container.inputs)
            if first is None or earlier.output in found:
                continue
            start, stop = ranges[first][0], ranges[first + len(earlier.inputs) - 1][1]
            if values.is_read_at(earlier.output, before + start, pitch):
                found[earlier.output] = Alias(container.output, (start, stop))
    _add_parts(network, found, values)
    return found


def _add_parts(network: Network, found: dict[str, Alias], values: "ValueUses") -> None:
    """Find the parts of maps that may be read where they lie.

    A single part would keep the whole map alive. The parts must cover the map, or the map must be
    read whole as well.
    """
    narrows = [op for op in network.ops if op.kind == "narrow" and op.output not in found]
    for value in dict.fromkeys(op.inputs[0] for op in narrows):
        before, pitch = values.extent(found, value)
        width = network.values[value].shape[-1]
        parts = {
            op.output: Alias(value, op.attrs["channels"])
            for op in narrows
            if op.inputs[0] == value
            and len(network.values[op.output].shape) == len(network.values[value].shape)
            and values.is_read_at(op.output, before + op.attrs["channels"][0], pitch)
            and values.is_read_at(op.output, op.attrs["channels"][0], width)
        }
        covered = {c for place in parts.values() for c in range(*place.channels)}
        if values.keeps_channels(value) and (len(covered) == width or values.is_read_whole(value)):
            found |= parts


def _position(part: tuple[str, ...], whole: tuple[str, ...]) -> int | None:
    """Where `part` begins in `whole`; None where it is none of its neighbours."""
    if part[0] not in whole:
        return None
    first = whole.index(part[0])
    return first if whole[first : first + len(part)] == part else None


class ValueUses:
    """The maker and the readers of each value, and whether they accept ranges."""

    def __init__(self, network: Network, strided: Mapping[str, StridedSupport]) -> None:
        self._network, self._strided = network, strided
        self._makers = {op.output: op for op in network.ops}
        self._readers: dict[str, list[Op]] = {}
        for op in network.ops:
            for name in dict.fromkeys(op.inputs):
                self._readers.setdefault(name, []).append(op)

    def keeps_channels(self, name: str) -> bool:
        """Whether no view has given the value another number of channels."""
        maker = self._makers.get(name)
        if maker is None or maker.kind != "view":
            return True
        (source,) = maker.inputs
        return self._width(name) == self._width(source) and self.keeps_channels(source)

    def extent(self, found: Mapping[str, Alias], value: str) -> tuple[int, int]:
        """First channel of a value in the widest map that holds it, and the channels of that."""
        start = 0
        while True:
            maker = self._makers.get(value)
            if value in found:
                start += found[value].channels[0]
                value = found[value].container
            elif maker is not None and maker.kind == "view":
                value = maker.inputs[0]
            else:
                return start, self._network.values[value].shape[-1]

    def is_read_whole(self, name: str) -> bool:
        return any(reader.kind != "narrow" for reader in self._readers.get(name, ()))

    def may_lie_at(self, name: str, start: int, pitch: int) -> bool:
        """Whether a map of `pitch` channels may hold the value from channel `start` on."""
        maker, channels = self._makers.get(name), (start, start + self._width(name))
        makes = maker is not None and self._strided[maker.kind].accepts("output", channels, pitch)
        return makes and self.is_read_at(name, start, pitch)

    def wants_words(self, name: str) -> bool:
        """Whether the maker or a reader of the value takes only ranges of whole words."""
        beside = (self._makers[name], *self._readers.get(name, ()))
        return any(self._strided[op.kind].word == WORD for op in beside)

    def may_be_padded(self, name: str) -> bool:
        """Whether the step alone reads the value, and maker and readers accept ranges of any width.

        The channels behind it belong to no other value.
        """
        makes = {"output", "gradient"} <= self._strided[self._makers[name].kind].uses
        return makes and self._reads_padded(name)

    def _reads_padded(self, name: str) -> bool:
        def reads(reader: Op) -> bool:
            if reader.kind != "view":
                return "input" in self._strided[reader.kind].uses
            return self._width(name) == self._width(reader.output) and self._reads_padded(
                reader.output
            )

        return not self._is_output(name) and all(map(reads, self._readers.get(name, ())))

    def is_alone(self, op: Op) -> bool:
        """Whether the op is the only reader of its first input."""
        return self._readers.get(op.inputs[0]) == [op] and not self._is_output(op.inputs[0])

    def _is_output(self, name: str) -> bool:
        return name in self._network.outputs

    def is_read_at(self, name: str, start: int, pitch: int) -> bool:
        """Whether the step alone reads the value, and all of it may lie there."""
        if self._is_output(name):
            return False
        readers = self._readers.get(name, ())
        return all(self._reads_at(reader, name, start, pitch) for reader in readers)

    def _reads_at(self, reader: Op, name: str, start: int, pitch: int) -> bool:
        if reader.kind != "view":
            channels = start, start + self._width(name)
            return self._strided[reader.kind].accepts("input", channels, pitch)
        keeps = self._width(name) == self._width(reader.output)
        return keeps and self.is_read_at(reader.output, start, pitch)

    def _width(self, name: str) -> int:
        return self._network.values[name].shape[-1]
