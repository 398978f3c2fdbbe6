"""Masks: which gradients come masked to the ops that have a ReLU inside, and what masks them.

A mask needs no more of a map than the signs of its values, which some kernels read as bits.
"""

from dataclasses import dataclass, field, replace

from ..graph import BITS, SIGNS_PER_BYTE, Form, Kind, Need, Op, Use, may_rest_in
from .gradient_terms import Gradients


@dataclass(slots=True, kw_only=True)
class Masks(Gradients):
    """The masks of gradients, and the gradients that come masked."""

    # By value whose gradient counts only where the value is above zero, the factor it has there.
    relu_outputs: dict[str, float] = field(default_factory=dict)
    # Those of them whose reader writes the gradient so.
    masked_gradients: set[str] = field(default_factory=set)
    # By such value, the side of the tiles over which its maker wants sums of the gradient.
    bias_tiles: dict[str, int] = field(default_factory=dict)
    # By such value, the buffer where the reader that masks the gradient left these sums.
    bias_tile_sums: dict[str, str] = field(default_factory=dict)
    # The values that the ReLU of a normalization leaves, whose signs mask their gradients.
    relus_by_signs: set[str] = field(default_factory=set)

    def passes_masks(self, op: Op) -> None:
        """Declare that a mask of the op's output is one of its input.

        Every element of the output must be an element of the input, and give its gradient to that
        alone.
        """
        value = op.inputs[0]
        if value in self.relu_outputs and self.has_one_reader(value):
            self.relu_outputs[op.output] = self.relu_outputs[value]

    def hand_mask_on(self, op: Op) -> None:
        """Tell the maker of the op's input whether its gradient comes masked."""
        if op.output in self.masked_gradients and op.inputs[0] in self.relu_outputs:
            self.masked_gradients.add(op.inputs[0])

    def mask_of(self, value: str, *, by_bits: bool) -> tuple[Use, ...]:
        """The mask of the value's gradient by its only reader: the value itself, or none.

        `by_bits`: the reader's kernel reads sign bits too.
        """
        if value not in self.relu_outputs or not self.has_one_reader(value):
            return ()
        if value in self.relus_by_signs and not by_bits:
            return ()  # the normalization masks it by bits
        self.masked_gradients.add(value)
        return (self.signs_of(value) if by_bits else Use(self.buffer_of[value], need=Need.SIGN),)

    def add_bias_tile_sums(self, grad: str, cell: int) -> str:
        """A buffer for the sums over the cells of a gradient map, in sections as long as its."""
        samples, height, width, channels = self.buffers[grad].shape
        shape, rows = (samples, height // cell, width // cell, channels), self.buffers[grad].section
        return self.add_map(self.unique(f"sums of {grad}"), shape, Kind.GRAD, "float32", rows)

    def bits_of(self, value: str) -> tuple[Form, ...]:
        """The form of sign bits, for kernels that leave or read them; () where a map has none.

        A range has none, nor a view.
        """
        home = self.buffer_of[value]
        fits = self.is_buffer(home) and may_rest_in(self.buffers[home], BITS)
        return (BITS,) if fits else ()

    def signs_of(self, value: str) -> Use:
        """The use of the value's map for its signs, by a kernel that reads sign bits too."""
        return Use(self.buffer_of[value], need=Need.SIGN, forms=self.bits_of(value))

    def signs_of_range(self, value: str) -> Use:
        """The same use by a kernel that reads the bits of a range of whole bytes, too."""
        use = self.resolved(Use(self.buffer_of[value], need=Need.SIGN))
        buffer = self.buffers[use.buffer]
        starts = all(bound % SIGNS_PER_BYTE == 0 for bound in use.channels or ())
        fits = starts and not use.shape and may_rest_in(buffer, BITS)
        return replace(use, forms=(BITS,)) if fits else use

    def other_term(self, value: str) -> tuple[Use, Use] | None:
        """The gradient of a sum that lacks but one more term, and the ReLU's mask of the total.

        None where no ReLU follows the sum, or the gradient does not lie as the value does.
        """
        grads = self.gradient_terms.get(value, [])
        if value not in self.relus_by_signs or len(grads) != 1 or value in self.network.outputs:
            return None
        if len(self.readers_of[value]) != 2:
            return None
        (grad,) = grads
        whole = not (self.is_range(grad) or self.is_range(self.buffer_of[value]))
        if not whole or grad in self.filled:
            return None
        return Use(grad, exact=True), self.signs_of(value)

    def new_total(self, value: str) -> str:
        """A buffer for the whole gradient of the value, masked, in the place of its other term."""
        (grad,) = self.gradient_terms[value]
        total = self.new_grad(value)
        self.drop_grad(grad)
        self.gradient_terms[value] = [total]
        self.term_places[value] = self.term_places[value][-1:]
        self.masked_gradients.add(value)
        return total
