"""Space contents: what every byte of a space holds, as ranges of neighbours with one history."""

from bisect import bisect_left
from dataclasses import dataclass, field, replace

from ...graph import RAW, Form
from ..ir.schedule import Lane
from .expected_sources import CALLER, ChannelRanges


@dataclass(slots=True)
class ByteRange:
    """Neighbouring bytes with one history."""

    buffer: str
    form: Form
    origin: int  # the address at which row 0 of the buffer would lie
    ranges: ChannelRanges  # what the bytes hold; (): nothing
    lane: Lane  # of the writer
    writer: int  # the last step that wrote the bytes
    # The recode that made the code of which the bytes are. Another lays out its parts otherwise.
    encoder: int = CALLER
    exact: bool = True  # no lossy code has rounded the values
    # By lane, the last step that read the bytes since.
    readers: list[int] = field(default_factory=lambda: [CALLER] * len(Lane))


class SpaceContents:
    """The bytes [0, nbytes) of one space, as byte ranges in the order of their addresses."""

    __slots__ = ("_starts", "byte_ranges")

    def __init__(self, nbytes: int) -> None:
        self._starts = [0, nbytes]
        self.byte_ranges = [ByteRange("", RAW, 0, (), Lane.COMPUTE, CALLER) for _ in self._starts]

    def split_at(self, start: int, stop: int) -> slice:
        """The indices of the byte ranges of [start, stop), after a split at both ends."""
        first = bisect_left(self._starts, start)
        if self._starts[first] != start:
            self._split(first, start)
        last = first + 1
        if self._starts[last] != stop:
            last = bisect_left(self._starts, stop, last)
            if self._starts[last] != stop:
                self._split(last, stop)
        return slice(first, last)

    def replace(self, indices: slice, byte_range: ByteRange) -> None:
        """Replace the byte ranges at `indices` by one."""
        self._starts[indices] = [self._starts[indices.start]]
        self.byte_ranges[indices] = [byte_range]

    def _split(self, index: int, address: int) -> None:
        """Begin a byte range at `address`, which lies in the one before `index`."""
        old = self.byte_ranges[index - 1]
        new = replace(old, readers=old.readers.copy())
        self._starts.insert(index, address)
        self.byte_ranges.insert(index, new)
