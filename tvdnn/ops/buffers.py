"""Buffers: their sections, the values that lie in them, and their ranges and views."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..graph import RUN_CHUNKS, Buffer, ChunkSizes, Kind, Network, Op, Use, section_rows
from .concat_views import WORD, Alias, Channels, StridedSupport, aliases


@dataclass(slots=True, kw_only=True)
class Buffers:
    """The buffers of a step, and where in them each value of the network lies."""

    network: Network
    # The type of maps.
    dtype: str
    # The bytes of sections, or their number per map.
    chunks: ChunkSizes
    sections: int | None
    # The row tiles that a sample of the traced network is cut into: samples of `network`.
    row_tiles: int
    # By kind of op, what its passes take as ranges.
    strided: Mapping[str, StridedSupport]
    # By value that lies in a padded map, the channels of that map.
    padded: Mapping[str, int]
    # The buffers, and the ranges and views that have names.
    buffers: dict[str, Buffer] = field(default_factory=dict)
    # By name of a range, the buffer, range or view that it is of, and the channels.
    ranges: dict[str, tuple[str, Channels]] = field(default_factory=dict)
    # By name of a view, the buffer or range that it is of.
    views: dict[str, str] = field(default_factory=dict)
    # By buffer that is a padded map, the channels in front of the padding.
    padded_maps: dict[str, int] = field(default_factory=dict)
    # By value, the buffer, range or view that holds it.
    buffer_of: dict[str, str] = field(default_factory=dict)
    # By buffer, the values that lie in it, wholly or in a range.
    values_in: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    # The ranges that values were copied to.
    copied: set[Use] = field(default_factory=set)
    # By value, the range of another value that holds it.
    aliases: Mapping[str, Alias] = field(init=False)
    # By value, the op that makes it.
    makers: dict[str, Op] = field(init=False)
    # By value, the ops that read it, one entry for each input.
    readers_of: dict[str, list[Op]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.aliases = aliases(self.network, self.strided)
        self.makers = {op.output: op for op in self.network.ops}
        for op in self.network.ops:
            for name in op.inputs:
                self.readers_of[name].append(op)

    @property
    def batch(self) -> int:
        return self.network.batch

    def shape(self, value: str) -> tuple[int, ...]:
        return self.network.values[value].shape

    def rows_for(self, row_nbytes: int) -> int:
        """Samples, or row tiles, in a section of a buffer with `row_nbytes` bytes each."""
        if self.sections is not None:
            rows = 1 << max(0, -(-self.batch // self.sections) - 1).bit_length()
        else:
            rows = section_rows(self.batch, row_nbytes, self.chunks.of(row_nbytes))
        return rows if self.row_tiles == 1 else min(rows, self.row_tiles)

    def add_map(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: Kind = Kind.MAP,
        dtype: str | None = None,
        most_rows: int | None = None,
    ) -> str:
        """A buffer with one row a sample, in sections of the chunk size.

        They hold at most `most_rows`: a pass goes by whole sections of all that it uses.
        """
        dtype = dtype or self.dtype
        row = Buffer(name, kind, (1, *shape[1:]), dtype, 1)
        rows = self.rows_for(row.row_nbytes)
        section = rows if most_rows is None else min(rows, most_rows)
        return self._add_buffer(Buffer(name, kind, shape, dtype, section))

    def add_padded(
        self,
        name: str,
        value: str,
        shape: tuple[int, ...],
        kind: Kind = Kind.MAP,
        most_rows: int | None = None,
    ) -> str:
        """A map for the value or its gradient, or the range that it fills of a padded map."""
        width = self.padded.get(value, shape[-1])
        home = self.add_map(name, (*shape[:-1], width), kind, most_rows=most_rows)
        if width == shape[-1]:
            return home
        self.padded_maps[home] = shape[-1]
        return self.add_range(home, (0, shape[-1]))

    def is_beside(self, use: Use) -> bool:
        """Whether other values may lie beside the channels of a resolved use."""
        own = (0, self.padded_maps.get(use.buffer, 0))
        return use.channels is not None and use.channels != own

    def padding(self, name: str) -> dict[str, bool]:
        """`padded`: whether what follows a name's channels up to a whole word holds no values."""
        return {"padded": not self.is_beside(self.resolved(Use(name)))}

    def pitch(self, name: str) -> int:
        """Channels from one pixel to the next of a buffer, range or view."""
        use = self.resolved(Use(name))
        return self.buffers[name if use.channels is None else use.buffer].shape[-1]

    def width_of(self, value: str) -> int:
        """Channels from one pixel to the next of a value in a buffer of its own or a container."""
        while (place := self.aliases.get(value)) is not None:
            value = place.container
        return self.padded.get(value, self.shape(value)[-1])

    def starts_words(self, name: str) -> bool:
        """Whether each pixel of a buffer, range or view starts at a multiple of WORD channels."""
        use = self.resolved(Use(name))
        start = 0 if use.channels is None else use.channels[0]
        return start % WORD == 0 == self.buffers[use.buffer].shape[-1] % WORD

    def add_whole(
        self, name: str, kind: Kind, shape: tuple[int, ...], dtype: str = "float32"
    ) -> str:
        """A buffer that is one section."""
        return self._add_buffer(Buffer(name, kind, shape, dtype, shape[0]))

    def add_groups(
        self, name: str, shape: tuple[int, ...], group: int, like: str, kind: Kind = Kind.PARTIAL
    ) -> str:
        """A float32 buffer with one row for every `group` samples.

        Its sections match the map `like`, or hold one row where the map's have fewer samples.
        """
        section = max(1, self.buffers[like].section // group)
        return self._add_buffer(Buffer(name, kind, shape, "float32", section))

    def unique(self, name: str) -> str:
        """The name, numbered where a buffer has it."""
        found, number = name, 1
        while found in self.buffers:
            number += 1
            found = f"{name} ({number})"
        return found

    def _add_buffer(self, buffer: Buffer) -> str:
        assert buffer.name not in self.buffers, f"two buffers are called {buffer.name}"
        self.buffers[buffer.name] = buffer
        return buffer.name

    def input_of(self, op: Op) -> str:
        """The buffer that holds the op's first input."""
        return self.buffer_of[op.inputs[0]]

    def new_output(self, op: Op) -> str:
        """A map of its own for the op's output, or its range of another."""
        return self.buffer_for(op.output)

    def buffer_for(self, value: str) -> str:
        """The buffer, range or view of the value, made if there is none yet."""
        if value not in self.buffer_of:
            place = self.aliases.get(value)
            home = (
                self.add_padded(
                    value, value, self.shape(value), most_rows=self._run_of_inputs(value)
                )
                if place is None
                else self.add_range(self.buffer_for(place.container), place.channels)
            )
            self.put(value, home)
        return self.buffer_of[value]

    def put(self, value: str, buffer: str) -> None:
        """Note that the value lies in the buffer or range of this name."""
        self.buffer_of[value] = buffer
        self.values_in[self.resolved(Use(buffer)).buffer].append(value)

    def _run_of_inputs(self, value: str) -> int | None:
        """Row tiles in a run of a value's largest input. The value's blocks can be as short."""
        if self.row_tiles == 1 or value not in self.makers:
            return None
        inputs = self.makers[value].inputs
        rows = (
            self.buffers[self.buffer_of[name]].section for name in inputs if name in self.buffer_of
        )
        return RUN_CHUNKS * min(rows, default=self.batch)

    def add_range(self, buffer: str, channels: Channels) -> str:
        """A name for some of the channels of a buffer, of a range, or of a view of either."""
        if buffer in self.views:
            assert self.keeps_channels(buffer), f"{buffer} has no ranges of channels"
            shape = (*self.buffers[buffer].shape[:-1], channels[1] - channels[0])
            return self.add_view(self.add_range(self.views[buffer], channels), shape)
        within, name = self.buffers[buffer], f"{buffer} {channels}"
        shape = (*within.shape[:-1], channels[1] - channels[0])
        self.buffers[name] = replace(within, name=name, shape=shape)
        self.ranges[name] = buffer, channels
        return name

    def add_view(self, buffer: str, shape: tuple[int, ...]) -> str:
        """A name for a buffer or range in another shape; a view's base stands for the view."""
        base = self.views.get(buffer, buffer)
        if self.buffers[base].shape == shape:
            return base
        name = f"{base} as {shape[1:]}"
        self.buffers[name] = replace(self.buffers[base], name=name, shape=shape)
        self.views[name] = base
        assert self.keeps_channels(name) or not self.is_range(base), f"{name} is no view"
        return name

    def is_buffer(self, name: str) -> bool:
        """Whether the name is a buffer's own, and no range or view of one."""
        return name not in self.ranges and name not in self.views

    def keeps_channels(self, buffer: str) -> bool:
        """Whether the name's last axis is its base's last axis."""
        base = self.views.get(buffer, buffer)
        return self.buffers[buffer].shape[-1] == self.buffers[base].shape[-1]

    def is_range(self, buffer: str) -> bool:
        """Whether the name stands for some channels of a wider buffer."""
        return self.resolved(Use(buffer)).channels is not None

    def resolved(self, use: Use) -> Use:
        """The use of a buffer, where it names a range or a view."""
        seen = use
        if use.buffer in self.views:
            assert use.channels is None or self.keeps_channels(use.buffer)
            use = replace(use, buffer=self.views[use.buffer])
        while use.buffer in self.ranges:
            buffer, (start, stop) = self.ranges[use.buffer]
            first, last = use.channels or (0, stop - start)
            use = replace(use, buffer=buffer, channels=(start + first, start + last))
        if seen.buffer not in self.views:
            return use
        sides, width = self.buffers[seen.buffer].shape[1:-1], seen.width(self.buffers[seen.buffer])
        return replace(use, shape=(*sides, width))

    def has_one_reader(self, value: str) -> bool:
        return len(self.readers_of[value]) == 1 and value not in self.network.outputs
