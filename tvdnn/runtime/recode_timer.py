"""Recodes on scratch memory, to be timed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch

from ..graph import (
    CODECS,
    DTYPE_NBYTES,
    RAW,
    SHARES,
    Buffer,
    Form,
    Graph,
    Kind,
    Need,
    in_form,
    is_packed,
    may_rest_in,
)
from ..placement import aligned
from ..planner.ir.costs import RecodeKind, Samples
from ..planner.ir.schedule import Action, Lane, Operand, Space, Step
from ..units import KIB
from .binding import RECODES, Call, behind_clearing, bind_recode
from .known_launches import KnownLaunches
from .launch_timer import REPEATS, Scratch
from .views import ByteViews

# Bytes of the raw values of a recode. The least take no longer than fewer, the most fill the GPU.
SIZES: Final = tuple(16 * KIB << 2 * number for number in range(8))
WIDTH: Final = 256  # values in a row


def recodes_of(graph: Graph) -> tuple[RecodeKind, ...]:
    """The recodes that plans of a graph may ask for.

    They are those to forms that a pass can read, and those of maps to and from forms that give the
    values back.
    """
    wanted = {
        (form, graph.buffers[use.buffer].dtype)
        for pass_ in graph.passes
        for use in pass_.reads
        for form in use.forms
    }
    maps = [buffer for buffer in graph.buffers.values() if buffer.kind is Kind.MAP]
    for codec in CODECS.values():
        form = Form(codec.name)
        fitting = [each for each in maps if codec.gives is Need.VALUES and may_rest_in(each, form)]
        wanted |= {(form, each.dtype) for each in fitting}
    return tuple(
        (*ends, dtype) for ends in RECODES for form, dtype in sorted(wanted) if form in ends
    )


def recoded_sizes(recode: RecodeKind, limit: int) -> tuple[int, ...]:
    """Bytes of raw values at which a recode is measured, on at most `limit` bytes."""
    steps = {nbytes: _step(_buffer(recode, nbytes), recode, 0) for nbytes in SIZES}
    fits = [nbytes for nbytes, step in steps.items() if _nbytes(step) <= limit]
    return tuple(fits or SIZES[:1])


def estimated_recode(recode: RecodeKind, limit: int, known: KnownLaunches) -> Samples | None:
    """A recode's samples by the roofline, of known rates; None where these have no sheet."""
    source, target = (_with_room(form) for form in recode[:2])
    sizes = recoded_sizes(recode, limit)
    found = [known.estimate_recode(_buffer(recode, nbytes), source, target) for nbytes in sizes]
    samples = tuple((nbytes, each) for nbytes, each in zip(sizes, found, strict=True) if each)
    return samples or None


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
    if any(is_packed(operand.form) for operand in operands):
        return _packed_calls(scratch, buffer, steps, memory)
    return tuple(bind_recode(buffer, step, memory, scratch.kernels) for step in steps)


def _packed_calls(
    scratch: Scratch, buffer: Buffer, steps: Sequence[Step], memory: ByteViews
) -> tuple[Call, ...]:
    """Recodes of values half of which are zero. The first encoding clears the counts of all."""
    counts = torch.zeros(len(steps), dtype=torch.int32, device=memory.arena.device)
    memory = replace(memory, counts=counts)
    numbered = [step._replace(count_word=number) for number, step in enumerate(steps)]
    encodes = [step if step.reads[0].form == RAW else _backwards(step) for step in numbered]
    for step in encodes:
        memory.view(step.reads[0], buffer).relu_()
    calls = [bind_recode(buffer, step, memory, scratch.kernels) for step in encodes]
    calls[0] = behind_clearing(calls[0], memory, scratch.kernels)
    if encodes == numbered:
        return tuple(calls)
    for call in calls:
        call()
    return tuple(bind_recode(buffer, step, memory, scratch.kernels) for step in numbered)


def _backwards(step: Step) -> Step:
    return step._replace(reads=step.writes, writes=step.reads)


def _buffer(recode: RecodeKind, nbytes: int) -> Buffer:
    *_, dtype = recode
    rows = nbytes // (WIDTH * DTYPE_NBYTES[dtype])
    return Buffer("recoded", Kind.MAP, (rows, WIDTH), dtype, rows)


def _step(buffer: Buffer, recode: RecodeKind, offset: int) -> Step:
    """A recode of all rows of the buffer. Source and target lie end to end."""
    source, target = (_with_room(form) for form in recode[:2])
    rows = (0, buffer.rows)
    nbytes = in_form(buffer, source).nbytes
    read = Operand(buffer.name, *rows, Space.ARENA, offset, nbytes, source)
    behind = offset + aligned(nbytes)
    nbytes = in_form(buffer, target).nbytes
    written = Operand(buffer.name, *rows, Space.ARENA, behind, nbytes, target)
    return Step(Lane.COMPUTE, Action.RECODE, 0, -1, *rows, (read,), (written,))


def _with_room(form: Form) -> Form:
    """The form whose head has room for all values."""
    return form._replace(share=SHARES) if is_packed(form) else form


def _nbytes(step: Step) -> int:
    return sum(aligned(operand.nbytes) for operand in (*step.reads, *step.writes))
