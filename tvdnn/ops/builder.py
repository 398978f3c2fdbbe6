"""Builder: collects the buffers and passes of a step while op definitions declare them."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph import (
    RUN_CHUNKS,
    Buffer,
    ChunkSizes,
    Direction,
    Kind,
    Need,
    Network,
    Op,
    Pass,
    Use,
    overlap,
    section_rows,
)
from ..kernels.conv.batch_stats import MomentCells
from ..optim import Optimizer
from .concat_views import Channels, Place, Ranges, gaps_between, places
from .gradient_order import ReadOrder


@dataclass(slots=True)
class Builder:
    """State of the expansion of a network into passes.

    Each sample of the network is one of so many `bands` of a map's rows. `home` maps each value to
    the buffer that holds it, `contributions` to the gradients that its consumers have written so
    far, `holders` each gradient's buffer to how many values it is still a contribution of,
    `param_grads` each parameter to those of its uses, `filled` each gradient that is written range
    by range to the channels that are. `ranges` maps the names of ranges, which stand for buffers
    until passes use them, to the buffer and the channels; `pitched` tells of each kind of op what
    its passes take as ranges, `places` which values lie in a range of which others; `copied` are
    the ranges that values were copied to. `makers` are the ops that make each value, `readers_of`
    lists the ops that read it, one entry for each input. `values_in` lists the values that lie in
    each buffer, wholly or in a range. `uses` counts the ops that use each parameter. `rectified`
    are the values whose gradient counts only where they are above zero, with the factor that it has
    there; `masked` are those of them whose reader writes the gradient so. `cells` are the rectified
    values of whose gradient sums over cells of so many rows and columns are wanted, and `cell_sums`
    the buffers where the reader that masks it left them. `signs` are the buffers with those of
    maps, unless the step is `lean`. `normalized` are the values that ops normalize by their own
    moments, `residuals` those that they add then; `added_normalized` are the normalizations of
    residuals that are made only where they are added, whose home is what they normalize, and `sums`
    are the gradients of weight and bias that were found for these before their turn. `moments` are
    by buffer of moments the channels that it has them of, `moment_cells` by map the cells whose
    moments its maker leaves. `partials` are the sums that ops have left of parameters' gradients.
    `optimizer` updates the parameters `at_once` from what makes their gradient; `takes` is the role
    of the passes that take other whole gradients, "" where they are handed out; those that are
    `completed_last` are summed for an update behind all passes. `waiting` are the parameters whose
    update waits for others to share a launch. `added` are ops beside the network's.
    """

    network: Network
    dtype: str
    precision: str
    chunks: ChunkSizes
    sections: int | None
    bands: int
    wanted: frozenset[str]
    optimizer: Optimizer
    takes: str
    order: ReadOrder
    lean: bool = False
    buffers: dict[str, Buffer] = field(default_factory=dict)
    passes: list[Pass] = field(default_factory=list)
    home: dict[str, str] = field(default_factory=dict)
    contributions: dict[str, list[str]] = field(default_factory=dict)
    # By value, the place in the traced network of the op that each contribution comes from.
    ranks: dict[str, list[int]] = field(default_factory=dict)
    # The op whose backward passes are being made, and how often it has contributed to each value.
    turn: Op | None = None
    turns_terms: Counter[str] = field(default_factory=Counter)
    holders: Counter[tuple[str, Channels | None]] = field(default_factory=Counter)
    param_grads: dict[str, list[str]] = field(default_factory=dict)
    param_ranks: dict[str, list[int]] = field(default_factory=dict)
    filled: dict[str, list[Channels]] = field(default_factory=dict)
    ranges: dict[str, tuple[str, Channels]] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)
    pitched: Mapping[str, Ranges] = field(default_factory=dict)
    places: Mapping[str, Place] = field(init=False)
    copied: set[Use] = field(default_factory=set)
    partials: dict[str, list[str]] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    added: dict[str, Op] = field(default_factory=dict)
    taken: set[str] | None = None
    rectified: dict[str, float] = field(default_factory=dict)
    masked: set[str] = field(default_factory=set)
    cells: dict[str, int] = field(default_factory=dict)
    cell_sums: dict[str, str] = field(default_factory=dict)
    signs: set[str] = field(default_factory=set)
    moments: dict[str, list[Channels]] = field(default_factory=dict)
    moment_cells: dict[str, MomentCells] = field(default_factory=dict)
    added_normalized: dict[str, Op] = field(default_factory=dict)
    sums: dict[str, tuple[Use, Use]] = field(default_factory=dict)
    normalized: frozenset[str] = field(init=False)
    residuals: frozenset[str] = field(init=False)
    makers: dict[str, Op] = field(init=False)
    readers_of: dict[str, list[Op]] = field(default_factory=lambda: defaultdict(list))
    values_in: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    uses: Counter[str] = field(init=False)
    at_once: frozenset[str] = field(init=False)
    completed_last: frozenset[str] = field(init=False)
    direction: Direction = Direction.FORWARD

    def __post_init__(self) -> None:
        ops = self.network.ops
        self.places = places(self.network, self.pitched)
        self.makers = {op.output: op for op in ops}
        for op in ops:
            for name in op.inputs:
                self.readers_of[name].append(op)
        self.normalized = frozenset(op.inputs[0] for op in ops if op.attrs.get("training"))
        self.residuals = frozenset(n for op in ops if "momentum" in op.attrs for n in op.inputs[1:])
        self.uses = Counter(name for op in ops for name in op.params)
        once = {name for name, count in self.uses.items() if count == 1}
        self.completed_last = self.network.completed_last
        self.at_once = frozenset(once - self.completed_last if self.takes == "update" else ())

    @property
    def batch(self) -> int:
        return self.network.batch

    def shape(self, value: str) -> tuple[int, ...]:
        return self.network.values[value].shape

    def rows_for(self, row_nbytes: int) -> int:
        """Samples in a section of a buffer with `row_nbytes` bytes a sample, or bands of one."""
        if self.sections is not None:
            rows = 1 << max(0, -(-self.batch // self.sections) - 1).bit_length()
        else:
            rows = section_rows(self.batch, row_nbytes, self.chunks.of(row_nbytes))
        return rows if self.bands == 1 else min(rows, self.bands)

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

    def add_whole(
        self, name: str, kind: Kind, shape: tuple[int, ...], dtype: str = "float32"
    ) -> str:
        """A buffer that is one section."""
        return self._add_buffer(Buffer(name, kind, shape, dtype, shape[0]))

    def add_groups(
        self,
        name: str,
        shape: tuple[int, ...],
        group: int,
        like: str,
        kind: Kind = Kind.PARTIAL,
    ) -> str:
        """A float32 buffer with one row for every `group` samples.

        Its sections are those of the map `like`, or of one row where these have fewer samples.
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

    def add_partials(self, op: Op, param: str, shape: tuple[int, ...]) -> str:
        """A float32 buffer for the splits of an op's contribution to a parameter's gradient."""
        name = self.add_whole(f"partial {param} {op.name}", Kind.PARTIAL, shape)
        self.partials.setdefault(param, []).append(name)
        return name

    def add_pass(
        self,
        op: Op,
        role: str,
        reads: Sequence[Use],
        writes: Sequence[Use],
        *,
        params: tuple[str, ...] = (),
        updates: tuple[str, ...] = (),
        reduction: bool = False,
        flops: float = 0.0,
        unit: int = 0,
        extra_nbytes: int = 0,
        attrs: Mapping[str, Any] | None = None,
        effects: bool = False,
    ) -> None:
        """Append a pass over the batch.

        Its unit is the largest section that it touches by sample, but at least `unit`; the whole
        batch where it touches none. Its bytes are those of its buffers and `extra_nbytes`. Where a
        read has a halo, it reads the sections beside it and has scratch to join their rows.
        """
        reads, writes = ([self.resolved(use) for use in uses] for uses in (reads, writes))
        uses = (*reads, *writes)
        rows = [self.buffers[use.buffer].section * use.per for use in uses if not use.whole]
        unit = min(self.batch, max([unit, *rows])) if unit or rows else self.batch
        nbytes = extra_nbytes + sum(use.nbytes(self.buffers[use.buffer]) for use in uses)
        for use in [use for use in reads if any(use.halo)]:
            reads += [replace(use, halo=(0, 0), neighbour=side) for side in sides_of(use)]
            writes.append(whole(self._add_image(self.unique(f"image {op.name} {role}"), use, unit)))
        self.passes.append(
            Pass(
                name=f"{op.name} {role}",
                op=op.name,
                role=role,
                direction=self.direction,
                domain=self.batch,
                unit=unit,
                reads=tuple(reads),
                writes=tuple(writes),
                params=params,
                updates=updates,
                reduction=reduction,
                flops=flops,
                nbytes=nbytes,
                attrs=attrs or {},
                effects=effects,
            )
        )

    def _add_image(self, name: str, use: Use, unit: int) -> str:
        """A buffer for a unit of a map's bands with the rows beside them."""
        buffer = self.buffers[use.buffer]
        _, height, width, _ = buffer.shape
        shape = (unit * height + sum(use.halo), width, use.width(buffer))
        return self.add_whole(name, Kind.PARTIAL, shape, buffer.dtype)

    def param_shape(self, name: str) -> tuple[int, ...]:
        return self.network.params[name].shape

    def param_nbytes(self, name: str) -> int:
        return self.network.params[name].nbytes if name else 0

    def taken_by(self, param: str) -> str:
        """The role of the pass that takes the whole gradient of a parameter; "" for none."""
        last = param in self.completed_last
        return "accumulate" if last and self.takes == "update" else self.takes

    def needs_param_grad(self, name: str) -> bool:
        return bool(name) and self.network.params[name].requires_grad

    def needs_grad(self, value: str) -> bool:
        """Whether any parameter, or a wanted input, lies upstream of `value`."""
        return value in self.wanted

    def input_of(self, op: Op) -> str:
        """The buffer that holds the op's first input."""
        return self.home[op.inputs[0]]

    def new_output(self, op: Op) -> str:
        """A map of its own for the op's output, or its range of another."""
        return self.home_of(op.output)

    def home_of(self, value: str) -> str:
        """What holds the value, made where there is none yet."""
        if value not in self.home:
            place = self.places.get(value)
            home = (
                self.add_map(value, self.shape(value), most_rows=self._run_of_inputs(value))
                if place is None
                else self.add_range(self.home_of(place.container), place.channels)
            )
            self.put(value, home)
        return self.home[value]

    def put(self, value: str, buffer: str) -> None:
        """Note that the value lies in the buffer or range of this name."""
        self.home[value] = buffer
        self.values_in[self.resolved(Use(buffer)).buffer].append(value)

    def _run_of_inputs(self, value: str) -> int | None:
        """Bands in a run of the largest map that a value is made of: its blocks can be as short."""
        if self.bands == 1 or value not in self.makers:
            return None
        inputs = self.makers[value].inputs
        rows = (self.buffers[self.home[name]].section for name in inputs if name in self.home)
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
        """A name for a buffer or range, or for what a view is of, seen in another shape."""
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
        """Whether the last axis is that of the buffer or range that the name is a view of."""
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

    def grad_of(self, op: Op) -> str:
        """The buffer that holds the complete gradient of the op's output."""
        return self.contributions[op.output][0]

    def new_grad(self, value: str) -> str:
        """A fresh buffer for one more contribution to the gradient of `value`.

        It has the value's shape. The first to that of a part, which lies in the map split, lies in
        that map's gradient.
        """
        earlier = self.contributions.setdefault(value, [])
        if self._is_part(value) and not earlier:
            part = self.places[value]
            grad = self.grad_with_room(part.container, part.channels)
            return self.adopt_grad(value, self.add_range(grad, part.channels))
        suffix = f" part {len(earlier) + 1}" if earlier else ""  # `#2` ends names of values
        home = self.buffers[self.home[value]]
        rows = None if self.bands == 1 else home.section
        name = self.add_map(
            self.unique(f"grad {value}{suffix}"), home.shape, Kind.GRAD, most_rows=rows
        )
        return self.adopt_grad(value, name)

    def _is_part(self, value: str) -> bool:
        """Whether the value lies in the map that it is a range of."""
        return value in self.places and self.places[value].container in self.makers[value].inputs

    def adopt_grad(self, value: str, buffer: str) -> str:
        """Make `buffer`, the gradient of an op's output, a contribution to that of its input."""
        self.contributions.setdefault(value, []).append(buffer)
        self.ranks.setdefault(value, []).append(self._rank(value))
        self.holders[self._bytes_of(buffer)] += 1
        return buffer

    def take_turn(self, op: Op) -> None:
        """Note that passes of the op's backward follow."""
        self.turn = op
        self.turns_terms.clear()

    def _rank(self, value: str) -> int:
        """The place of the read whose term is contributed next; an output's own is the last."""
        if self.turn is None:
            return len(self.network.ops)
        reads = self.order.reads(self.turn, value)
        number = min(self.turns_terms[value], len(reads) - 1)
        self.turns_terms[value] += 1
        return reads[number]

    def in_order(self, value: str) -> list[str]:
        """The contributions to a value's gradient in the order in which they add up."""
        pairs = zip(self.ranks.pop(value), self.contributions.pop(value), strict=True)
        return [grad for _, grad in sorted(pairs, key=lambda pair: -pair[0])]

    def adds_next(self, value: str, reader: Op) -> bool:
        """Whether the term that comes through `reader` adds up with the value's only other one.

        It does unless a term between or before these is still to come.
        """
        assert self.turn is not None
        place = self._rank_with(value, reader)
        others = [each for each in self.readers_of[value] if each.name != reader.name]
        return not self.order.awaits(self.turn, value, others, place)

    def note_added(self, value: str, reader: Op) -> None:
        """Note that the value's only contribution holds the term that comes through `reader`."""
        self.ranks[value] = [self._rank_with(value, reader)]

    def _rank_with(self, value: str, reader: Op) -> int:
        (rank,) = self.ranks[value]
        return min(rank, *self.order.reads(reader, value))

    def _bytes_of(self, buffer: str) -> tuple[str, Channels | None]:
        """Where the bytes lie that a name stands for."""
        use = self.resolved(Use(buffer))
        return use.buffer, use.channels

    def grad_with_room(self, value: str, channels: Channels) -> str:
        """A contribution to the gradient of `value` of which nobody else writes `channels`."""
        for name in self.contributions.get(value, ()):
            ranges = self.filled.get(name)
            if ranges is not None and not any(overlap(channels, other) for other in ranges):
                ranges.append(channels)
                return name
        name = self.new_grad(value)
        self.filled[name] = [channels]
        return name

    def close_gaps(self, grad: str) -> list[Channels]:
        """The channels that nobody writes of a gradient written range by range, now complete."""
        width = self.buffers[grad].shape[-1]
        return gaps_between(self.filled.pop(grad, [(0, width)]), (0, width))

    def next_grad(self, op: Op) -> str:
        """Where the gradient of the op's input is made of that of its output, element by element.

        It is in place where that may be handed on.
        """
        dy, value = self.grad_of(op), op.inputs[0]
        return self.adopt_grad(value, dy) if self.may_hand_on(dy, value) else self.new_grad(value)

    def may_hand_on(self, grad: str, value: str) -> bool:
        """Whether what is made in place of a gradient may be that of `value`.

        Not where another value's gradient lies there too, nor where the value's maker does not take
        it and would have it copied.
        """
        maker = self.makers.get(value)
        taken = not self.is_range(grad) if maker is None else self.takes_grad(maker, grad)
        return taken and not self.is_shared(grad)

    def takes_grad(self, op: Op, grad: str) -> bool:
        """Whether the op takes the gradient of its output where it lies.

        Of ranges it takes those that its passes can; a view takes one whose channels it keeps. A
        concatenation hands ranges of the gradient on, which must have its channels.
        """
        if op.kind == "concat" and not self.keeps_channels(grad):
            return False
        use = self.resolved(Use(grad))
        if use.channels is None:
            return True
        if op.kind == "view" and self.shape(op.output)[-1] != self.shape(op.inputs[0])[-1]:
            return False
        pitch = self.buffers[use.buffer].shape[-1]
        return self.pitched[op.kind].take("gradient", use.channels[0], pitch)

    def is_shared(self, grad: str) -> bool:
        """Whether more than one value has a contribution to its gradient in this buffer."""
        return self.holders[self._bytes_of(grad)] > 1

    def drop_grads(self, value: str) -> None:
        """Note that nothing more reads the gradient of `value`."""
        for grad in self.contributions[value]:
            self.drop_grad(grad)

    def drop_grad(self, grad: str) -> None:
        """Note that one value has no contribution to its gradient in this buffer any more."""
        self.holders[self._bytes_of(grad)] -= 1

    def passes_masks(self, op: Op) -> None:
        """Declare that a mask of the op's output masks its input alike.

        So it is where every element of the output is one of the input's and gives its gradient to
        that alone.
        """
        value = op.inputs[0]
        if value in self.rectified and self.has_one_reader(value):
            self.rectified[op.output] = self.rectified[value]

    def hand_mask_on(self, op: Op) -> None:
        """Tell the maker of the op's input whether its gradient comes masked."""
        if op.output in self.masked and op.inputs[0] in self.rectified:
            self.masked.add(op.inputs[0])

    def mask_of(self, value: str) -> tuple[Use, ...]:
        """What the only reader of a rectified value masks the gradient by: the value; else ()."""
        if value not in self.rectified or not self.has_one_reader(value):
            return ()
        self.masked.add(value)
        return (Use(self.home[value], need=Need.SIGN),)

    def add_cell_sums(self, grad: str, cell: int) -> str:
        """A buffer for the sums over the cells of a gradient map, in sections as long as its."""
        samples, height, width, channels = self.buffers[grad].shape
        shape, rows = (samples, height // cell, width // cell, channels), self.buffers[grad].section
        return self.add_map(self.unique(f"sums of {grad}"), shape, Kind.GRAD, "float32", rows)

    def has_one_reader(self, value: str) -> bool:
        return len(self.readers_of[value]) == 1 and value not in self.network.outputs

    @property
    def update_attrs(self) -> Mapping[str, Any]:
        """What a pass that updates says of the optimizer.

        The name of its kernels, how many tensors it keeps for a parameter, and its switches.
        """
        optimizer = self.optimizer
        states = len(optimizer.states)
        return {"optimizer": optimizer.kind, "states": states, "switches": optimizer.switches}

    def add_op(self, op: Op) -> Op:
        """Note an op that is none of the network's, with a name that none of these has."""
        taken = {each.name for each in self.network.ops} if self.taken is None else self.taken
        self.taken = taken
        if op.name in taken:
            op = replace(op, name=f"{op.kind} {op.name}")
        self.added[op.name] = op
        return op

    def new_param_grad(self, param: str) -> str:
        """A float32 buffer in the parameter's shape for one op's contribution to its gradient."""
        earlier = self.param_grads.setdefault(param, [])
        place = -1 if self.turn is None else self.order.of_op(self.turn)
        self.param_ranks.setdefault(param, []).append(place)
        suffix = f"#{len(earlier) + 1}" if earlier else ""
        shape = self.param_shape(param) or (1,)
        name = self.add_whole(self.unique(f"grad {param}{suffix}"), Kind.PARAM_GRAD, shape)
        earlier.append(name)
        return name


def sides_of(use: Use) -> list[int]:
    """On which sides of its own a use reads rows of pixels."""
    return [side for side, rows in zip((-1, 1), use.halo, strict=True) if rows]


def whole(buffer: str) -> Use:
    """The use of every row of a buffer."""
    return Use(buffer, whole=True)
