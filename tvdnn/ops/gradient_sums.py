"""Sums of gradients: the terms of a value's gradient add up in a fixed order."""

from itertools import pairwise

from ..graph import Kind, Op, Use
from .builder import Builder
from .operator import Operator


def add_grads(b: Builder, op: Op, reader: Operator | None = None) -> None:
    """Sum the contributions to the gradient of the op's output, in their order.

    They add up in the first, or in a map of their own where that is shared, or the op, of which
    `reader` is the definition, does not take it there. Channels that nobody wrote are cleared
    before. A reader that adds gradients is left the last two.
    """
    grads = b.in_order(op.output)
    for name in grads:
        gaps = tuple(Use(name, channels=gap) for gap in b.close_gaps(name))
        if gaps:
            b.add_pass(op, "zero_grad", (), gaps)
    first, *others = grads
    last = [others.pop()] if others and reader is not None and reader.adds_grads else []
    apart = b.is_range(first) or not _is_written(b, first)
    leaves = apart if reader is None else not b.takes_grad(op, first)
    total = first
    if leaves or (others and b.is_shared(first)):
        shape = b.buffers[b.buffer_of[op.output]].shape
        total = b.add_padded(b.unique(f"grad {op.output} total"), op.output, shape, Kind.GRAD)
    if leaves and not others:
        b.add_pass(op, "copy_grad", (Use(first),), (Use(total),))
    for other in others:
        b.add_pass(op, "add_grad", (Use(first), Use(other)), (Use(total),))
        first = total
    for grad in grads:
        b.drop_grad(grad)
    for grad in (total, *last):
        b.adopt_grad(op.output, grad)


def _is_written(b: Builder, name: str) -> bool:
    """Whether a pass writes the buffer, and not the caller."""
    return b.resolved(Use(name)).buffer in b.written


def range_of_all(b: Builder, op: Op) -> Use | None:
    """The range in which all branches have their only gradient so far, side by side.

    A later concatenation of the same neighbours left it. None if there is no such range, or if an
    earlier term of a branch's gradient is still to come.
    """
    grads = [b.gradient_terms.get(name, []) for name in op.inputs]
    if any(len(each) != 1 or b.is_shared(each[0]) or each[0] in b.filled for each in grads):
        return None
    uses = [b.resolved(Use(name)) for (name,) in grads]
    spans = [use.channels for use in uses if use.channels is not None]
    apart = any(first[1] != second[0] for first, second in pairwise(spans))
    if apart or len(spans) < len(uses) or len({use.buffer for use in uses}) > 1:
        return None
    if not all(b.adds_next(name, op) for name in op.inputs):
        return None
    for name in op.inputs:
        b.note_added(name, op)
    return Use(uses[0].buffer, channels=(spans[0][0], spans[-1][1]))


def sum_so_far(b: Builder, value: str, reader: Op) -> Use | None:
    """A gradient to which the term that comes through `reader` may be added in place.

    It is the value's only term so far. If `reader` is the only reader of a concatenation or a view,
    it is the gradient of the sources, and the value needs no gradient of its own. Else None.
    """
    grads = b.gradient_terms.get(value, [])
    if grads:
        alone = len(grads) == 1 and not b.is_shared(grads[0]) and grads[0] not in b.filled
        if not alone or not b.adds_next(value, reader):
            return None
        b.note_added(value, reader)
        return b.resolved(Use(grads[0]))
    maker = b.makers.get(value)
    if maker is None or not b.has_one_reader(value):
        return None
    if maker.kind == "view" and b.shape(value) == b.shape(maker.inputs[0]):
        return sum_so_far(b, maker.inputs[0], maker)
    return range_of_all(b, maker) if maker.kind == "concat" else None
