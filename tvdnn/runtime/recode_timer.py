"""Recodes on scratch memory, to be timed."""

from typing import Final

from ..graph import DTYPE_NBYTES, Buffer, Graph, Kind, in_form
from ..placement import aligned
from ..planner.ir.costs import RecodeKind
from ..planner.ir.schedule import Action, Lane, Operand, Space, Step
from ..units import KIB
from .binding import RECODES, Call, bind_recode
from .launch_timer import REPEATS, Scratch

# Bytes of the raw values of a recode. The least take no longer than fewer, the most fill the GPU.
SIZES: Final = tuple(16 * KIB << 2 * number for number in range(8))
WIDTH: Final = 256  # values in a row


def recodes_of(graph: Graph) -> tuple[RecodeKind, ...]:
    """The recodes that plans of a graph may ask for: to and from forms that a pass can read."""
    read = {
        (form, graph.buffers[use.buffer].dtype)
        for pass_ in graph.passes
        for use in pass_.reads
        for form in use.forms
    }
    return tuple((*ends, dtype) for ends in RECODES for form, dtype in sorted(read) if form in ends)


def recoded_sizes(recode: RecodeKind, limit: int) -> tuple[int, ...]:
    """Bytes of raw values at which a recode is measured, on at most `limit` bytes."""
    steps = {nbytes: _step(_buffer(recode, nbytes), recode, 0) for nbytes in SIZES}
    fits = [nbytes for nbytes, step in steps.items() if _nbytes(step) <= limit]
    return tuple(fits or SIZES[:1])


def recode_calls(scratch: Scratch, recode: RecodeKind, nbytes: int) -> tuple[Call, ...]:
    """Recodes of `nbytes` bytes of raw values each, at successive places.

    They touch more bytes than the cache holds, as far as scratch has room.
    """
    buffer = _buffer(recode, nbytes)
    stride = _nbytes(_step(buffer, recode, 0))
    most = min(REPEATS, scratch.limit // stride, -(-scratch.cold_nbytes // stride))
    steps = [_step(buffer, recode, number * stride) for number in range(max(1, most))]
    operands = [operand for step in steps for operand in (*step.reads, *step.writes)]
    memory = scratch.filled(operands, {buffer.name: buffer})
    return tuple(bind_recode(buffer, step, memory, scratch.kernels) for step in steps)


def _buffer(recode: RecodeKind, nbytes: int) -> Buffer:
    *_, dtype = recode
    rows = nbytes // (WIDTH * DTYPE_NBYTES[dtype])
    return Buffer("recoded", Kind.MAP, (rows, WIDTH), dtype, rows)


def _step(buffer: Buffer, recode: RecodeKind, offset: int) -> Step:
    """A recode of all rows of the buffer. Source and target lie end to end."""
    source, target, _ = recode
    rows = (0, buffer.rows)
    nbytes = in_form(buffer, source).nbytes
    read = Operand(buffer.name, *rows, Space.ARENA, offset, nbytes, source)
    behind = offset + aligned(nbytes)
    nbytes = in_form(buffer, target).nbytes
    written = Operand(buffer.name, *rows, Space.ARENA, behind, nbytes, target)
    return Step(Lane.COMPUTE, Action.RECODE, 0, -1, *rows, (read,), (written,))


def _nbytes(step: Step) -> int:
    return sum(aligned(operand.nbytes) for operand in (*step.reads, *step.writes))
