"""Gradients: the terms of each value's gradient, the buffers that hold them, and their order."""

from collections import Counter
from dataclasses import dataclass, field

from ..graph import Kind, Op, Use, overlap
from .buffers import Buffers
from .concat_views import Channels, gaps_between
from .read_order import ReadOrder


@dataclass(slots=True, kw_only=True)
class Gradients(Buffers):
    """The gradients of values, as the ops' backward passes add terms to them."""

    # The values whose gradient a parameter or a wanted input needs.
    wanted: frozenset[str]
    # The order in which the terms of a gradient add up.
    order: ReadOrder
    # By value, the buffers with the terms of its gradient so far.
    gradient_terms: dict[str, list[str]] = field(default_factory=dict)
    # By value, the place in the traced network of the op that each term comes from.
    term_places: dict[str, list[int]] = field(default_factory=dict)
    # The op whose backward passes are being made, and by value the terms that it has given.
    turn: Op | None = None
    turns_terms: Counter[str] = field(default_factory=Counter)
    # By bytes of a buffer, the values of whose gradient they hold a term.
    gradient_refcount: Counter[tuple[str, Channels | None]] = field(default_factory=Counter)
    # By gradient that is written range by range, the channels that are written.
    filled: dict[str, list[Channels]] = field(default_factory=dict)

    def needs_grad(self, value: str) -> bool:
        """Whether any parameter, or a wanted input, lies upstream of `value`."""
        return value in self.wanted

    def grad_of(self, op: Op) -> str:
        """The buffer that holds the complete gradient of the op's output."""
        return self.gradient_terms[op.output][0]

    def new_grad(self, value: str) -> str:
        """A fresh buffer, in the value's shape, for one more term of the gradient of `value`.

        The first term of a part that lies in a split map lies in that map's gradient.
        """
        earlier = self.gradient_terms.setdefault(value, [])
        if self._is_part(value) and not earlier:
            part = self.aliases[value]
            grad = self.grad_with_room(part.container, part.channels)
            return self.adopt_grad(value, self.add_range(grad, part.channels))
        suffix = f" part {len(earlier) + 1}" if earlier else ""  # `#2` ends names of values
        home = self.buffers[self.buffer_of[value]]
        rows = None if self.row_tiles == 1 else home.section
        name = self.add_padded(
            self.unique(f"grad {value}{suffix}"), value, home.shape, Kind.GRAD, most_rows=rows
        )
        return self.adopt_grad(value, name)

    def _is_part(self, value: str) -> bool:
        return value in self.aliases and self.aliases[value].container in self.makers[value].inputs

    def adopt_grad(self, value: str, buffer: str) -> str:
        """Make `buffer` a term of the gradient of `value`."""
        self.gradient_terms.setdefault(value, []).append(buffer)
        self.term_places.setdefault(value, []).append(self._place(value))
        self.gradient_refcount[self._bytes_of(buffer)] += 1
        return buffer

    def take_turn(self, op: Op) -> None:
        """Note that passes of the op's backward follow."""
        self.turn = op
        self.turns_terms.clear()

    def _place(self, value: str) -> int:
        """The place of the read whose term is contributed next; an output's own is the last."""
        if self.turn is None:
            return self.order.end
        reads = self.order.reads(self.turn, value)
        number = min(self.turns_terms[value], len(reads) - 1)
        self.turns_terms[value] += 1
        return reads[number]

    def in_order(self, value: str) -> list[str]:
        """The contributions to a value's gradient in the order in which they add up."""
        pairs = zip(self.term_places.pop(value), self.gradient_terms.pop(value), strict=True)
        return [grad for _, grad in sorted(pairs, key=lambda pair: -pair[0])]

    def adds_next(self, value: str, reader: Op) -> bool:
        """Whether the term that comes through `reader` adds up with the value's only other one.

        It does unless a term between or before these is still to come.
        """
        assert self.turn is not None
        place = self._place_with(value, reader)
        others = [each for each in self.readers_of[value] if each.name != reader.name]
        return not self.order.awaits(self.turn, value, others, place)

    def note_added(self, value: str, reader: Op) -> None:
        """Note that the value's only contribution holds the term that comes through `reader`."""
        self.term_places[value] = [self._place_with(value, reader)]

    def _place_with(self, value: str, reader: Op) -> int:
        (rank,) = self.term_places[value]
        return min(rank, *self.order.reads(reader, value))

    def _bytes_of(self, buffer: str) -> tuple[str, Channels | None]:
        use = self.resolved(Use(buffer))
        return use.buffer, use.channels

    def grad_with_room(self, value: str, channels: Channels) -> str:
        """A contribution to the gradient of `value` of which nobody else writes `channels`."""
        for name in self.gradient_terms.get(value, ()):
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
        """A buffer for the input's gradient: the output's if it may be handed on, or a new one."""
        dy, value = self.grad_of(op), op.inputs[0]
        return self.adopt_grad(value, dy) if self.may_hand_on(dy, value) else self.new_grad(value)

    def may_hand_on(self, grad: str, value: str) -> bool:
        """Whether the gradient of `value` may be written over the gradient `grad`.

        It may not if another value's gradient lies there too, nor if the value's maker does not
        accept it there.
        """
        maker = self.makers.get(value)
        taken = not self.is_range(grad) if maker is None else self.takes_grad(maker, grad)
        return taken and not self.is_shared(grad)

    def takes_grad(self, op: Op, grad: str) -> bool:
        """Whether the op accepts the gradient of its output where it lies.

        An op accepts the ranges that its passes support. A view accepts one whose channels it
        keeps. A concatenation hands on ranges of the gradient, which must have its channels.
        """
        if op.kind == "concat" and not self.keeps_channels(grad):
            return False
        use, value, word = self.resolved(Use(grad)), op.output, self.strided[op.kind].word
        if word > 1 and self.shape(value)[-1] % word != 0:
            return self.pitch(grad) == self.padded.get(value, self.shape(value)[-1])
        if use.channels is None:
            return True
        if op.kind == "view" and self.shape(op.output)[-1] != self.shape(op.inputs[0])[-1]:
            return False
        pitch = self.buffers[use.buffer].shape[-1]
        return self.strided[op.kind].accepts("gradient", use.channels, pitch)

    def is_shared(self, grad: str) -> bool:
        """Whether more than one value has a contribution to its gradient in this buffer."""
        return self.gradient_refcount[self._bytes_of(grad)] > 1

    def drop_grads(self, value: str) -> None:
        """Note that nothing more reads the gradient of `value`."""
        for grad in self.gradient_terms[value]:
            self.drop_grad(grad)

    def drop_grad(self, grad: str) -> None:
        """Note that one value has no contribution to its gradient in this buffer any more."""
        self.gradient_refcount[self._bytes_of(grad)] -= 1
