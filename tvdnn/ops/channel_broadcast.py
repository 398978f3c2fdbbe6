"""Maps times, or plus, a value for each channel: a parameter, or another map of one pixel.

One pass makes the map's gradient and, of every sample, the sums that the values' adds up from.
"""

from functools import partial

from ..graph import Op, Use
from ..kernels.language.channel_chunks import num_chunks
from ..kernels.pointwise.channel_broadcast import gate_slices
from .builder import Builder
from .operator import STRIDED, Launch, Operator, by_pixel
from .passes import channels_of, forward, forward_by_pixel
from .remade_maps import lies_in_source
from .row_tiles import tiles_by_pixel
from .sample_sums import SAMPLE_SUMS, add_grad_input, add_param_grads, add_sums, grad_and_sums


def multiply_forward(b: Builder, op: Op) -> None:
    """The product, if its reader does not make it as it loads it."""
    if not lies_in_source(b, op):
        forward_by_pixel(b, op)


def multiply_backward(b: Builder, op: Op) -> None:
    x, gates = op.inputs
    sums = add_sums(b, op, gate_slices) if b.needs_grad(gates) else ""
    maps = (x, gates) if sums else (gates,)
    reads = (*(Use(b.buffer_of[name]) for name in maps), Use(b.grad_of(op)))
    add_grad_input(b, op, sums, reads)
    if sums:
        _add_values_grad(b, op, sums)


def add_backward(b: Builder, op: Op) -> None:
    """The map's gradient is the sum's, where it lies."""
    x, gates = op.inputs
    if b.needs_grad(x):
        b.adopt_grad(x, b.grad_of(op))
    if b.needs_grad(gates):
        _add_values_grad(b, op, _slices(b, op))


def channel_add_backward(b: Builder, op: Op) -> None:
    """The map's gradient is the sum's, where it lies."""
    if b.needs_param_grad(op.params[0]):
        add_param_grads(b, op, _slices(b, op, 1))
    if b.needs_grad(op.inputs[0]):
        b.adopt_grad(op.inputs[0], b.grad_of(op))


def _slices(b: Builder, op: Op, *kinds: int) -> str:
    """The sums of the gradient over slices of pixels."""
    sums = add_sums(b, op, gate_slices, *kinds)
    b.add_pass(op, "slices", (Use(b.grad_of(op)),), (Use(sums),), attrs=channels_of(b, op))
    return sums


def scale_backward(b: Builder, op: Op) -> None:
    """Only the parameter's gradient needs the input."""
    dy, wanted = b.grad_of(op), b.needs_grad(op.inputs[0])
    if not b.needs_param_grad(op.params[0]):
        b.add_pass(op, "grad_input", (Use(dy),), (Use(b.next_grad(op)),), params=op.params)
        return
    sums = add_sums(b, op, num_chunks, 1)
    writes = (Use(sums), *((Use(b.next_grad(op)),) if wanted else ()))
    b.add_pass(op, "grad_sums", (Use(b.input_of(op)), Use(dy)), writes, params=op.params)
    add_param_grads(b, op, sums)


def _add_values_grad(b: Builder, op: Op, sums: str) -> None:
    b.add_pass(op, "grad_gate", (Use(sums),), (Use(b.new_grad(op.inputs[1])),))


def _run(function: str, a: Launch) -> None:
    x, gates = (*a.reads, *(each for each in a.params if each is not None))
    operands = (a.by_pixel(x), gates.view(-1, a.attrs["channels"]), a.by_pixel(a.writes[0]))
    a.kernels.gate(*operands, function=function, precision=a.stored)


_run_multiply, _run_add = partial(_run, "multiply"), partial(_run, "add")


def _run_grad_input(a: Launch) -> None:
    *read, gates, dy = a.reads
    x = a.by_pixel(read[0]) if read else None
    operands = (x, gates.flatten(1), a.by_pixel(dy), *grad_and_sums(a))
    a.kernels.gate_grad(*operands, precision=a.stored)


def _run_slices(a: Launch) -> None:
    sums = a.writes[0].flatten(1, -2)
    a.kernels.gate_grad(None, None, a.by_pixel(a.reads[0]), None, sums)


def _run_values_grad(a: Launch) -> None:
    a.kernels.sum_slices(a.reads[0], a.writes[0].flatten(1), precision=a.stored)


def _run_scale(a: Launch) -> None:
    scale = a.weight.flatten()
    x, y = (by_pixel(maps, scale.numel()) for maps in (*a.reads, *a.writes))
    a.kernels.scale_channels(x, scale, y, precision=a.stored)


def _run_scale_grad(a: Launch) -> None:
    scale, (sums, *written) = a.weight.flatten(), a.writes
    x, dy, *dx = (by_pixel(maps, scale.numel()) for maps in (*a.reads, *written))
    a.kernels.scale_channels_grad(x, dy, scale, dx[0] if dx else None, sums, precision=a.stored)


GATE_MULTIPLY = Operator(
    "gate_multiply",
    multiply_forward,
    multiply_backward,
    {"forward": _run_multiply, "grad_input": _run_grad_input, "grad_gate": _run_values_grad},
    saves={"input"},
    strided=STRIDED,
)
GATE_ADD = Operator(
    "gate_add",
    forward_by_pixel,
    add_backward,
    {"forward": _run_add, "slices": _run_slices, "grad_gate": _run_values_grad},
)
CHANNEL_ADD = Operator(
    "channel_add",
    forward_by_pixel,
    channel_add_backward,
    {"forward": _run_add, "slices": _run_slices, **SAMPLE_SUMS},
    takes_views=True,
)
SCALE_CHANNELS = Operator(
    "scale_channels",
    forward,
    scale_backward,
    {"forward": _run_scale, "grad_input": _run_scale, "grad_sums": _run_scale_grad, **SAMPLE_SUMS},
    saves={"input"},
    row_tiles=tiles_by_pixel,
    takes_views=True,
)
