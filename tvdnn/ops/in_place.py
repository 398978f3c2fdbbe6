"""Outputs of elementwise ops that take the bytes of an input."""

from ..graph import Op, Use
from .builder import Builder
from .registry import OPERATORS


def place_in_input(b: Builder, op: Op) -> None:
    """Give the op's output the bytes of an input that nothing else reads, or else its own.

    Backward reads the first input of an op that saves its "input".
    """
    saved = op.inputs[:1] if "input" in OPERATORS[op.kind].saves else ()
    kept = {b.resolved(Use(b.buffer_of[name])).buffer for name in saved}
    for name in op.inputs if op.output not in b.aliases else ():
        buffer = b.resolved(Use(b.buffer_of[name])).buffer
        if buffer not in kept and _may_overwrite(b, op, name):
            b.values_in[buffer].clear()
            b.put(op.output, b.buffer_of[name])
            return
    b.new_output(op)


def _may_overwrite(b: Builder, op: Op, name: str) -> bool:
    """Whether the op may write over the bytes of the value `name`.

    It may where these bytes are a whole buffer, padded as the output is, and the op reads all
    values that lie there last, forward and backward. A view with other channels than its buffer has
    no ranges.
    """
    target = b.resolved(Use(b.buffer_of[name]))
    if not b.keeps_channels(b.buffer_of[name]) and _is_read_in_ranges(b, op.output):
        return False
    values = b.values_in[target.buffer]
    pitch = b.padded.get(op.output, b.shape(op.output)[-1])
    whole = not b.is_beside(target) and b.pitch(b.buffer_of[name]) == pitch
    return whole and all(_reads_last(b, op, value) for value in values)


def _is_read_in_ranges(b: Builder, value: str) -> bool:
    """Whether a range of the value is read, or one of a value that may take its bytes."""
    names = [value]
    for name in names:  # which grows meanwhile
        for reader in b.readers_of[name]:
            if reader.kind == "narrow":
                return True
            takes = reader.kind == "view" or OPERATORS[reader.kind].in_place
            if takes and reader.output not in names:
                names.append(reader.output)
    return False


def _reads_last(b: Builder, op: Op, value: str) -> bool:
    """Whether nothing but the op reads a value that lies in a buffer that the op reads.

    The value may have been seen under other names by then: each of these lies in the buffer too. A
    view that comes later still reads the value.
    """
    if value not in b.makers or value in b.network.outputs:
        return False
    if b.is_beside(b.resolved(Use(b.buffer_of[value]))):
        return False
    if "output" in OPERATORS[b.makers[value].kind].saves:
        return False
    others = [reader for reader in b.readers_of[value] if reader.name != op.name]
    return all(reader.kind == "view" and reader.output in b.buffer_of for reader in others)
