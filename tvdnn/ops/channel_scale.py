"""Maps times a parameter of one value a channel; only that one's gradient needs the input."""

from math import prod

import torch

from ..graph import Kind, Op, Use
from ..kernels.language.channel_chunks import num_chunks
from .builder import Builder
from .operator import Launch, OpDef
from .optimizer import run_update_at_once
from .sample_sums import add_param_grads, run_param_grad


def forward(b: Builder, op: Op) -> None:
    reads, writes = (Use(b.input_of(op)),), (Use(b.new_output(op)),)
    b.add_pass(op, "forward", reads, writes, params=op.params)


def backward(b: Builder, op: Op) -> None:
    dy, wanted = b.grad_of(op), b.needs_grad(op.inputs[0])
    if not b.needs_param_grad(op.params[0]):
        b.add_pass(op, "grad_input", (Use(dy),), (Use(b.next_grad(op)),), params=op.params)
        return
    _, *sides, channels = b.shape(op.output)
    shape = (b.batch, num_chunks(prod(sides), channels), 1, channels)
    sums = b.add_map(f"sums {op.name}", shape, Kind.AUX, "float32", b.buffers[dy].section)
    writes = (Use(sums), *((Use(b.next_grad(op)),) if wanted else ()))
    b.add_pass(op, "grad_sums", (Use(b.input_of(op)), Use(dy)), writes, params=op.params)
    add_param_grads(b, op, sums)


def _by_pixel(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    """Maps as [N, pixels, channels]; a view may have renamed them."""
    return maps.view(len(maps), -1, _scale_of(a).numel())


def _scale_of(a: Launch) -> torch.Tensor:
    scale = a.params[0]
    assert scale is not None
    return scale.flatten()


def _run_scale(a: Launch) -> None:
    x, y = (_by_pixel(a, maps) for maps in (*a.reads, *a.writes))
    a.kernels.scale_channels(x, _scale_of(a), y, precision=a.stored)


def _run_grad_sums(a: Launch) -> None:
    x, dy = (_by_pixel(a, maps) for maps in a.reads)
    sums, *written = a.writes
    dx = _by_pixel(a, written[0]) if written else None
    a.kernels.scale_channels_grad(x, dy, _scale_of(a), dx, sums, precision=a.stored)


SCALE_CHANNELS = OpDef(
    kind="scale_channels",
    forward=forward,
    backward=backward,
    roles={
        "forward": _run_scale,
        "grad_input": _run_scale,
        "grad_sums": _run_grad_sums,
        "grad_weight": run_param_grad,
        "update": run_update_at_once,
    },
    saves=frozenset({"input"}),
)
