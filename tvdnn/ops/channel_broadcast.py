"""Maps times, or plus, a value for each channel: a parameter, or another map of one pixel.

One pass makes the map's gradient and, of every sample, the sums that the values' adds up from.
"""

from functools import partial
from math import prod

import torch

from ..graph import Op, Use
from ..kernels.language.channel_chunks import num_chunks
from ..kernels.pointwise.channel_broadcast import gate_slices
from .builder import Builder
from .operator import Launch, Operator, by_pixel
from .passes import forward as forward_of_inputs
from .row_tiles import tiles_by_pixel
from .sample_sums import SAMPLE_SUMS, add_param_grads, add_sums


def forward(b: Builder, op: Op) -> None:
    reads, writes = tuple(Use(b.buffer_of[name]) for name in op.inputs), (Use(b.new_output(op)),)
    b.add_pass(op, "forward", reads, writes, params=op.params, attrs=_sizes(b, op))


def multiply_backward(b: Builder, op: Op) -> None:
    x, gates = op.inputs
    reads, writes = [Use(b.buffer_of[x]), Use(b.buffer_of[gates]), Use(b.grad_of(op))], []
    sums = _add_sums(b, op) if b.needs_grad(gates) else None
    if sums is None:
        del reads[0]
    else:
        writes.append(Use(sums))
    if b.needs_grad(x):
        writes.append(Use(b.next_grad(op)))
    attrs = _sizes(b, op) | {"to_gate": sums is not None}
    b.add_pass(op, "grad_input", reads, writes, attrs=attrs)
    if sums is not None:
        _add_values_grad(b, op, sums)


def add_backward(b: Builder, op: Op) -> None:
    """The map's gradient is the sum's, where it lies."""
    x, gates = op.inputs
    if b.needs_grad(x):
        b.adopt_grad(x, b.grad_of(op))
    if b.needs_grad(gates):
        sums = _add_sums(b, op)
        reads, attrs = (Use(b.grad_of(op)),), _sizes(b, op)
        b.add_pass(op, "slices", reads, (Use(sums),), attrs=attrs)
        _add_values_grad(b, op, sums)


def channel_add_backward(b: Builder, op: Op) -> None:
    """The map's gradient is the sum's, where it lies."""
    if b.needs_param_grad(op.params[0]):
        sums = _add_sums(b, op, 1)
        reads, attrs = (Use(b.grad_of(op)),), _sizes(b, op)
        b.add_pass(op, "slices", reads, (Use(sums),), attrs=attrs)
        add_param_grads(b, op, sums)
    if b.needs_grad(op.inputs[0]):
        b.adopt_grad(op.inputs[0], b.grad_of(op))


def _add_sums(b: Builder, op: Op, *kinds: int) -> str:
    _, *sides, channels = b.shape(op.output)
    return add_sums(b, op, gate_slices(prod(sides), channels), *kinds, channels)


def scale_backward(b: Builder, op: Op) -> None:
    """Only the parameter's gradient needs the input."""
    dy, wanted = b.grad_of(op), b.needs_grad(op.inputs[0])
    if not b.needs_param_grad(op.params[0]):
        b.add_pass(op, "grad_input", (Use(dy),), (Use(b.next_grad(op)),), params=op.params)
        return
    _, *sides, channels = b.shape(op.output)
    sums = add_sums(b, op, num_chunks(prod(sides), channels), 1, channels)
    writes = (Use(sums), *((Use(b.next_grad(op)),) if wanted else ()))
    b.add_pass(op, "grad_sums", (Use(b.input_of(op)), Use(dy)), writes, params=op.params)
    add_param_grads(b, op, sums)


def _add_values_grad(b: Builder, op: Op, sums: str) -> None:
    b.add_pass(op, "grad_gate", (Use(sums),), (Use(b.new_grad(op.inputs[1])),))


def _sizes(b: Builder, op: Op) -> dict[str, int]:
    return {"channels": b.shape(op.output)[-1]}


def _by_pixel(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    return by_pixel(maps, a.attrs["channels"])


def _run(function: str, a: Launch) -> None:
    x, gates = (*a.reads, *(each for each in a.params if each is not None))
    (y,) = a.writes
    operands = (_by_pixel(a, x), gates.view(-1, a.attrs["channels"]), _by_pixel(a, y))
    a.kernels.gate(*operands, function=function, precision=a.stored)


_run_multiply, _run_add = partial(_run, "multiply"), partial(_run, "add")


def _run_grad_input(a: Launch) -> None:
    *read, gates, dy = a.reads
    written = list(a.writes)
    sums = written.pop(0) if a.attrs["to_gate"] else None
    x = _by_pixel(a, read[0]) if read else None
    dx = _by_pixel(a, written[0]) if written else None
    operands = (x, gates.flatten(1), _by_pixel(a, dy), dx, sums)
    a.kernels.gate_grad(*operands, precision=a.stored)


def _run_slices(a: Launch) -> None:
    sums = a.writes[0].flatten(1, -2)
    a.kernels.gate_grad(None, None, _by_pixel(a, a.reads[0]), None, sums)


def _run_values_grad(a: Launch) -> None:
    a.kernels.sum_slices(a.reads[0], a.writes[0].flatten(1), precision=a.stored)


def _scale_of(a: Launch) -> torch.Tensor:
    scale = a.params[0]
    assert scale is not None
    return scale.flatten()


def _run_scale(a: Launch) -> None:
    scale = _scale_of(a)
    x, y = (by_pixel(maps, scale.numel()) for maps in (*a.reads, *a.writes))
    a.kernels.scale_channels(x, scale, y, precision=a.stored)


def _run_scale_grad(a: Launch) -> None:
    scale, (sums, *written) = _scale_of(a), a.writes
    x, dy, *dx = (by_pixel(maps, scale.numel()) for maps in (*a.reads, *written))
    a.kernels.scale_channels_grad(x, dy, scale, dx[0] if dx else None, sums, precision=a.stored)


GATE_MULTIPLY = Operator(
    "gate_multiply",
    forward,
    multiply_backward,
    {"forward": _run_multiply, "grad_input": _run_grad_input, "grad_gate": _run_values_grad},
    saves={"input"},
)
GATE_ADD = Operator(
    "gate_add",
    forward,
    add_backward,
    {"forward": _run_add, "slices": _run_slices, "grad_gate": _run_values_grad},
)
CHANNEL_ADD = Operator(
    "channel_add",
    forward,
    channel_add_backward,
    {"forward": _run_add, "slices": _run_slices, **SAMPLE_SUMS},
    takes_views=True,
)
SCALE_CHANNELS = Operator(
    "scale_channels",
    forward_of_inputs,
    scale_backward,
    {"forward": _run_scale, "grad_input": _run_scale, "grad_sums": _run_scale_grad, **SAMPLE_SUMS},
    saves={"input"},
    row_tiles=tiles_by_pixel,
    takes_views=True,
)
