"""Operands, as the byte-state proof takes them: of residencies and of launches, and in words."""

from collections.abc import Iterator

from ...graph import Buffer, Pass, Use
from ..ir.schedule import Operand, Residency, Space, Step
from .space_contents import ByteRange


def operand_of(residency: Residency, buffer: Buffer) -> Operand:
    """The section of a residency, where that lies."""
    rows, form = buffer.bounds(residency.section), residency.form
    place = residency.offset, residency.nbytes
    return Operand(buffer.name, *rows, Space.ARENA, *place, form)


def written_operands(step: Step, pass_: Pass) -> Iterator[tuple[Operand, Use]]:
    """The operands that a launch writes, codes as well, each with its use."""
    yield from zip(step.writes, pass_.writes, strict=False)
    for code in step.writes[len(pass_.writes) :]:
        yield code, next(use for use in pass_.writes if use.buffer == code.buffer)


def is_of(byte_range: ByteRange, operand: Operand, origin: int) -> bool:
    """True if the bytes belong to the rows and the form of an operand."""
    found = byte_range.buffer, byte_range.form, byte_range.origin
    return found == (operand.buffer, operand.form, origin)


def described(operand: Operand) -> str:
    """The rows of an operand, and where they lie."""
    rows = f"{operand.buffer} [{operand.start}, {operand.stop})"
    return f"{rows} at {operand.space.name.lower()} byte {operand.offset}"
