"""Gradients that are rounded for products after biases' gradients have been summed from them.

The sums are of exact values, as torch's are. Over a map exact values cancel and rounding errors do
not: without this, squeeze-and-excitation biases had three times the error of torch's.
"""

from ..graph import Kind, Op, Use
from .builder import Builder
from .operator import Launch


def rounded_copy(b: Builder, op: Op, dy: str) -> str:
    """The gradient of the op's output as products read it, in a buffer of its own."""
    name = b.add_padded(b.unique(f"rounded {dy}"), op.output, b.buffers[dy].shape, Kind.AUX)
    _add_pass(b, op, dy, name)
    return name


def round_in_place(b: Builder, op: Op, dy: str) -> str:
    """The same in the gradient's place, or in a copy where other values' gradients lie there."""
    if b.is_shared(dy):
        return rounded_copy(b, op, dy)
    _add_pass(b, op, dy, dy)
    return dy


def _add_pass(b: Builder, op: Op, source: str, target: str) -> None:
    b.add_pass(op, "round", (Use(source),), (Use(target),))


def run_round(a: Launch) -> None:
    a.kernels.cast(a.reads[0], a.writes[0], precision=a.stored)
