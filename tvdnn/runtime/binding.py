"""Binding: the steps of a schedule as calls over views of the arena and the slab."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Final, TypeAlias

import torch

from ..gc_pause import without_collection
from ..graph import (
    BITMAP,
    BITS,
    FP8,
    FP10,
    FP16,
    RAW,
    SSDC,
    TF32,
    Buffer,
    BufferRange,
    Form,
    Graph,
    Pass,
    Use,
    codec_of,
    is_packed,
)
from ..ops.bind_pass import BoundPass, bind_pass
from ..ops.operator import Control, Launch
from ..planner.ir.schedule import Action, Operand, Residency, Schedule, Space, Step
from ..planner.ir.settings import ENGINE, KERNEL
from .file_calls import behind_error_word, file_call
from .host_counts import FILE_LANES
from .row_halo import Copy, halo_tile, joined_tiles
from .views import ByteViews

Call = Callable[[], None]
Arguments = tuple[Launch, Sequence[Copy]]
Layout: TypeAlias = tuple[Sequence[int], Sequence[int]]  # shape and strides
Layouts: TypeAlias = Mapping[BufferRange, Layout]
Lap = Callable[[], float]  # waits for a phase and returns its seconds
# By the codecs of source and target, the launcher of a recode.
RECODES: Final[Mapping[tuple[Form, Form], str]] = {
    (RAW, BITS): "sign_bits_encode",
    (RAW, TF32): "tf32_encode",
    (TF32, RAW): "tf32_decode",
    (RAW, BITMAP): "bitmap_encode",
    (BITMAP, RAW): "bitmap_decode",
    (RAW, SSDC): "ssdc_encode",
    (SSDC, RAW): "ssdc_decode",
    (RAW, FP16): "fp16_encode",
    (FP16, RAW): "fp16_decode",
    (RAW, FP10): "fp10_encode",
    (FP10, RAW): "fp10_decode",
    (RAW, FP8): "fp8_encode",
    (FP8, RAW): "fp8_decode",
}
STRAIGHT: Final = "_to_host"  # behind the launcher of an encoding straight to the host


@dataclass(frozen=True, slots=True)
class Tensors:
    """The tensors of a graph that lie outside the arena and the slab.

    `params` holds parameters by name. `updates` holds what a pass changes that consumes a gradient:
    the parameter and its optimizer state (None where there is none), or the running sum of
    gradients.
    """

    params: Mapping[str, torch.Tensor]
    updates: Mapping[str, tuple[torch.Tensor | None, ...]]
    control: Control


@without_collection()
def bind(
    schedule: Schedule,
    memory: ByteViews,
    tensors: Tensors,
    kernels: SimpleNamespace,
    *,
    by_unit: bool,
    copies: str = ENGINE,
) -> list[Call]:
    """A call for each step.

    `by_unit`: a launch runs unit by unit on copies of its operands. This is for kernels whose bits
    depend on the length of the run and on addresses, such as matrix products of a CPU. `copies` is
    "engine" or "kernel".
    """
    calls = [
        bind_step(schedule.graph, step, memory, tensors, kernels, by_unit=by_unit, copies=copies)
        for step in schedule.steps
    ]
    counting = next((i for i, step in enumerate(schedule.steps) if step.count_word >= 0), None)
    if counting is not None:
        calls[counting] = behind_clearing(calls[counting], memory, kernels)
    return behind_error_word(schedule, calls, memory, tensors.control, kernels)


def behind_clearing(call: Call, memory: ByteViews, kernels: SimpleNamespace) -> Call:
    """The first call that counts: it clears the words of all counts before."""
    words = memory.counts.view(1, -1)

    def run() -> None:
        kernels.zero_channels(words)
        call()

    return run


def bind_step(
    graph: Graph,
    step: Step,
    memory: ByteViews,
    tensors: Tensors,
    kernels: SimpleNamespace,
    *,
    by_unit: bool,
    copies: str = ENGINE,
) -> Call:
    """The call of one step."""
    if step.lane in FILE_LANES:
        return file_call(step, memory)
    if step.action is Action.COPY:
        source, target = memory.bytes_of(step.reads[0]), memory.bytes_of(step.writes[0])
        move = kernels.transfer if copies == KERNEL else _copy
        return lambda: move(source, target)
    if step.action is Action.RECODE:
        return bind_recode(graph.buffers[step.reads[0].buffer], step, memory, kernels)
    pass_ = graph.passes[step.pass_index]
    bound = bind_pass(graph, pass_)
    by_piece = by_unit or pass_.reads_neighbours
    pieces = _units(pass_, step) if by_piece else [(step.start, step.stop)]
    layouts = _layouts_of_grads(graph, pass_, tensors)
    arguments = [
        _arguments(graph, bound, step, piece, memory, tensors, kernels, layouts) for piece in pieces
    ]
    launch = _launch_on_copies if by_unit else _launch
    return lambda: launch(bound.run, arguments)


def _layouts_of_grads(graph: Graph, pass_: Pass, tensors: Tensors) -> Layouts:
    """The layouts of gradients: those of their parameters, contiguous where these are not there."""
    found = dict[BufferRange, Layout]()
    used = {use.range for use in (*pass_.reads, *pass_.writes)}
    for held in used & graph.param_of_grad.keys():
        name = graph.param_of_grad[held]
        param = tensors.params.get(name)
        if param is None:
            param = torch.empty(graph.network.params[name].shape, device="meta")
        found[held] = param.shape, param.stride()
    return found


def bind_recode(buffer: Buffer, step: Step, memory: ByteViews, kernels: SimpleNamespace) -> Call:
    """The call of a recode of rows of `buffer`."""
    source, target = step.reads[0], step.writes[0]
    name = RECODES[Form(source.form.codec), Form(target.form.codec)]
    recode = getattr(kernels, name + (STRAIGHT if target.space is Space.SLAB else ""))
    before, after = _rows_or_code(source, buffer, memory), _rows_or_code(target, buffer, memory)
    if is_packed(target.form):
        tail, count = (
            _tail(step.writes, memory),
            memory.counts[step.count_word : step.count_word + 1],
        )
        return lambda: recode(before, after, tail, count)
    if is_packed(source.form):
        tail = _tail(step.reads, memory)
        return lambda: recode(before, tail, after)
    return lambda: recode(before, after)


def _tail(operands: Sequence[Operand], memory: ByteViews) -> torch.Tensor:
    """The bytes of a code's tail: none where the head has room for all values."""
    return memory.bytes_of(operands[1]) if len(operands) > 1 else memory.slab[:0]


def _rows_or_code(operand: Operand, buffer: Buffer, memory: ByteViews) -> torch.Tensor:
    """Raw rows or codes of rows; the bytes of a section's own code."""
    if operand.form != RAW and codec_of(operand.form).by_section:
        return memory.bytes_of(operand)
    return memory.view(operand, buffer)


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _launch(run: Callable[[Launch], None], arguments: list[Arguments]) -> None:
    for launch, copies in arguments:
        for source, target in copies:
            target.copy_(source)
        run(launch)


def _launch_on_copies(run: Callable[[Launch], None], arguments: list[Arguments]) -> None:
    def run_on_copies(launch: Launch) -> None:
        run(replace(launch, reads=tuple(tensor.clone() for tensor in launch.reads)))

    _launch(run_on_copies, arguments)


def _units(pass_: Pass, step: Step) -> list[tuple[int, int]]:
    starts = range(step.start, step.stop, pass_.unit)
    return [(start, min(step.stop, start + pass_.unit)) for start in starts]


def _arguments(
    graph: Graph,
    bound: BoundPass,
    step: Step,
    piece: tuple[int, int],
    memory: ByteViews,
    tensors: Tensors,
    kernels: SimpleNamespace,
    layouts: Layouts,
) -> Arguments:
    """The arguments of the launch of domain rows `piece`, and the copies that come before it."""
    pass_ = graph.passes[step.pass_index]
    image = halo_tile(graph, pass_, step, piece, memory) if pass_.reads_neighbours else None

    def view(use: Use, operand: Operand) -> torch.Tensor:
        if image and any(use.halo):
            return image.rows
        buffer = graph.buffers[use.buffer]
        if use.range in layouts:
            own = memory.view(operand, buffer)
            own = own if use.channels is None else _range_of(own, use.channels, buffer)
            return own.as_strided(*layouts[use.range])
        start, stop = use.rows(*piece, buffer)
        rows = memory.view(operand, buffer)[start - operand.start : stop - operand.start]
        rows = rows if use.channels is None else _range_of(rows, use.channels, buffer)
        rows = _seen_in(use.shape, rows) if use.shape else rows
        return joined_tiles(rows) if image and not use.whole else rows

    def views(uses: Sequence[Use], operands: Sequence[Operand]) -> tuple[torch.Tensor, ...]:
        pairs = zip(uses, operands, strict=True)
        return tuple(view(use, operand) for use, operand in pairs if not use.neighbour)

    written = len(pass_.writes) - (1 if image else 0)
    codes = step.writes[len(pass_.writes) :]
    launch = bound.launch(
        kernels,
        views(pass_.reads, step.reads),
        views(pass_.writes[:written], step.writes[:written])
        + views([_use_of(code, pass_) for code in codes], codes),
        tuple(tensors.params[name] if name else None for name in pass_.params),
        tuple(tensors.updates[name] for name in pass_.updates),
        piece,
        tensors.control,
        image.beside if image else (0, 0),
    )
    return launch, image.copies if image else ()


def _range_of(rows: torch.Tensor, channels: tuple[int, int], buffer: Buffer) -> torch.Tensor:
    """A range of the channels of a buffer's rows, or of their code, whose bytes hold several."""
    per = buffer.shape[-1] // rows.shape[-1]
    return rows[..., channels[0] // per : channels[1] // per]


def _use_of(code: Operand, pass_: Pass) -> Use:
    """The write beside which a launch leaves a code."""
    wanted = (code.buffer, code.form)
    return next(use for use in pass_.writes for form in use.also if (use.buffer, form) == wanted)


def _seen_in(shape: tuple[int, ...], rows: torch.Tensor) -> torch.Tensor:
    """Rows of a buffer, or of a channel range of it, viewed with samples of another shape.

    A channel range keeps its last axis. Axes of one element get the strides that kernels expect.
    """
    if rows.is_contiguous():
        return rows.view(len(rows), *shape)
    strides = [1, rows.stride(-2)]
    for size in reversed(shape[:-1]):
        strides.append(strides[-1] * size)
    return rows.as_strided((len(rows), *shape), strides[::-1])


@dataclass(frozen=True, slots=True)
class Place:
    """Rows [start, stop) of a buffer at byte `offset` of the arena."""

    start: int
    stop: int
    offset: int

    def nbytes(self, buffer: Buffer) -> int:
        return (self.stop - self.start) * buffer.row_nbytes


def input_places(schedule: Schedule) -> dict[str, tuple[Place, ...]]:
    """The places of the rows of each input before its phase of the step."""
    return _places(schedule, schedule.graph.inputs, schedule.residencies[::-1])


def output_places(schedule: Schedule) -> dict[str, tuple[Place, ...]]:
    """The places of the rows of each output after its phase of the step."""
    return _places(schedule, schedule.graph.outputs, schedule.residencies)


def _places(
    schedule: Schedule, names: Iterable[str], stays: Sequence[Residency]
) -> dict[str, tuple[Place, ...]]:
    """The places of the last raw residency of each section, for each buffer named."""
    offsets: dict[str, dict[int, int]] = {name: {} for name in names}
    for stay in stays:
        if stay.buffer in offsets and stay.form == RAW:
            offsets[stay.buffer][stay.section] = stay.offset
    buffers = schedule.graph.buffers
    return {name: tuple(_joined(buffers[name], found)) for name, found in offsets.items()}


def _joined(buffer: Buffer, offsets: Mapping[int, int]) -> Iterator[Place]:
    """The places of the sections of a buffer. Adjacent sections are joined."""
    place: Place | None = None
    for section in sorted(offsets):
        start, stop = buffer.bounds(section)
        if place is not None and offsets[section] == place.offset + place.nbytes(buffer):
            place = replace(place, stop=stop)
            continue
        if place is not None:
            yield place
        place = Place(start, stop, offsets[section])
    if place is not None:
        yield place


def place_view(memory: ByteViews, buffer: Buffer, place: Place) -> torch.Tensor:
    """The rows of `place` as a tensor."""
    rows = (place.start, place.stop)
    nbytes = place.nbytes(buffer)
    return memory.view(Operand(buffer.name, *rows, Space.ARENA, place.offset, nbytes), buffer)
