"""Gates: maps times, or plus, a value for each channel: a parameter, or another map of one pixel.

One pass makes the map's gradient and, of every sample, what the gate's adds up from.
"""

from math import prod

import torch

from ..graph import Kind, Op, Use
from ..kernels.pointwise.channel_broadcast import gate_slices
from .builder import Builder
from .operator import Launch, OpDef
from .optimizer import run_update_at_once
from .sample_sums import add_param_grads, run_param_grad


def forward(b: Builder, op: Op) -> None:
    reads = tuple(Use(b.home[name]) for name in op.inputs)
    b.add_pass(op, "forward", reads, (Use(b.new_output(op)),), attrs=_sizes(b, op))


def multiply_backward(b: Builder, op: Op) -> None:
    x, gates = op.inputs
    reads, writes = [Use(b.home[x]), Use(b.home[gates]), Use(b.grad_of(op))], []
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
        _add_gate_grad(b, op, sums)


def add_backward(b: Builder, op: Op) -> None:
    """The map's gradient is the sum's, where it lies."""
    x, gates = op.inputs
    if b.needs_grad(x):
        b.adopt_grad(x, b.grad_of(op))
    if b.needs_grad(gates):
        sums = _add_sums(b, op)
        reads, attrs = (Use(b.grad_of(op)),), _sizes(b, op)
        b.add_pass(op, "slices", reads, (Use(sums),), attrs=attrs)
        _add_gate_grad(b, op, sums)


def channel_forward(b: Builder, op: Op) -> None:
    writes = (Use(b.new_output(op)),)
    b.add_pass(op, "forward", (Use(b.input_of(op)),), writes, params=op.params, attrs=_sizes(b, op))


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
    samples, *sides, channels = b.shape(op.output)
    shape = (samples, gate_slices(prod(sides), channels), *kinds, channels)
    rows = b.buffers[b.grad_of(op)].section
    return b.add_map(f"sums {op.name}", shape, Kind.AUX, "float32", rows)


def _add_gate_grad(b: Builder, op: Op, sums: str) -> None:
    b.add_pass(op, "grad_gate", (Use(sums),), (Use(b.new_grad(op.inputs[1])),))


def _sizes(b: Builder, op: Op) -> dict[str, int]:
    return {"channels": b.shape(op.output)[-1]}


def _by_pixel(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    """Maps as [N, pixels, channels]; a view may have renamed them."""
    return maps.view(len(maps), -1, a.attrs["channels"])


def _run(function: str, a: Launch) -> None:
    x, gates = (*a.reads, *(each for each in a.params if each is not None))
    (y,) = a.writes
    operands = (_by_pixel(a, x), gates.view(-1, a.attrs["channels"]), _by_pixel(a, y))
    a.kernels.gate(*operands, function=function, precision=a.stored)


def _run_multiply(a: Launch) -> None:
    _run("multiply", a)


def _run_add(a: Launch) -> None:
    _run("add", a)


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


def _run_grad_gate(a: Launch) -> None:
    a.kernels.sum_slices(a.reads[0], a.writes[0].flatten(1), precision=a.stored)


GATE_MULTIPLY = OpDef(
    kind="gate_multiply",
    forward=forward,
    backward=multiply_backward,
    roles={
        "forward": _run_multiply,
        "grad_input": _run_grad_input,
        "grad_gate": _run_grad_gate,
    },
    saves=frozenset({"input"}),
)
GATE_ADD = OpDef(
    kind="gate_add",
    forward=forward,
    backward=add_backward,
    roles={"forward": _run_add, "slices": _run_slices, "grad_gate": _run_grad_gate},
)
CHANNEL_ADD = OpDef(
    kind="channel_add",
    forward=channel_forward,
    backward=channel_add_backward,
    roles={
        "forward": _run_add,
        "slices": _run_slices,
        "grad_weight": run_param_grad,
        "update": run_update_at_once,
    },
)
