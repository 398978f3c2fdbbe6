"""Group normalization, and instance normalization, whose groups are single channels.

The forward leaves the groups' statistics to the gradient, which leaves of every sample what the
parameters' gradients add up from.
"""

from math import prod

import torch

from ..graph import Kind, Op, Use
from ..kernels.language.channel_chunks import num_chunks
from .builder import Builder
from .operator import Launch, OpDef
from .optimizer import run_update_at_once
from .sample_sums import add_param_grads, run_param_grad


def forward(b: Builder, op: Op) -> None:
    """Reads the map twice."""
    x, y = b.input_of(op), b.new_output(op)
    writes = (
        Use(y),
        Use(_by_group(b, op, _moments_of(op), y)),
        Use(_by_chunk(b, op, f"partial moments {op.name}", y)),
    )
    _add_pass(b, op, "forward", (Use(x),), writes, op.params)


def backward(b: Builder, op: Op) -> None:
    """Reads the map and the gradient twice, if that of the input is wanted."""
    dy = b.grad_of(op)
    reads = (Use(b.input_of(op)), Use(dy), Use(_moments_of(op)))
    sums = _by_chunk(b, op, f"sums {op.name}", dy)
    writes = [Use(sums)]
    if b.needs_grad(op.inputs[0]):
        slopes = _by_group(b, op, f"slopes {op.name}", dy)
        writes += [Use(b.next_grad(op)), Use(slopes)]
    _add_pass(b, op, "grad_input", reads, tuple(writes), op.params[:1])
    add_param_grads(b, op, sums)


def _add_pass(
    b: Builder,
    op: Op,
    role: str,
    reads: tuple[Use, ...],
    writes: tuple[Use, ...],
    params: tuple[str, ...],
) -> None:
    again = sum(b.buffers[use.buffer].nbytes for use in reads)
    attrs = {"channels": b.shape(op.output)[-1]}
    b.add_pass(op, role, reads, writes, params=params, extra_nbytes=again, attrs=attrs)


def _moments_of(op: Op) -> str:
    return f"group moments {op.name}"


def _by_group(b: Builder, op: Op, name: str, beside: str) -> str:
    """Two values by sample and group, in sections as long as those of the map `beside`."""
    shape = (b.batch, op.attrs["groups"], 2)
    return b.add_map(name, shape, Kind.AUX, "float32", b.buffers[beside].section)


def _by_chunk(b: Builder, op: Op, name: str, beside: str) -> str:
    """Two values by chunk of a sample and channel."""
    _, *sides, channels = b.shape(op.output)
    shape = (b.batch, num_chunks(prod(sides), channels), 2, channels)
    return b.add_map(name, shape, Kind.PARTIAL, "float32", b.buffers[beside].section)


def _by_pixel(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    """Maps as [N, pixels, channels]; a view may have renamed them."""
    return maps.view(len(maps), -1, a.attrs["channels"])


def _run_forward(a: Launch) -> None:
    y, *sums = a.writes
    settings = a.settings("groups", "eps") | {"precision": a.stored}
    operands = (*a.params, _by_pixel(a, y), *sums)
    a.kernels.group_norm(_by_pixel(a, a.reads[0]), *operands, **settings)


def _run_grad_input(a: Launch) -> None:
    x, dy, moments = a.reads
    sums, *written = a.writes
    dx, slopes = written or (None, None)
    settings = a.settings("groups") | {"precision": a.stored}
    a.kernels.group_norm_grad(
        _by_pixel(a, x), _by_pixel(a, dy), a.params[0], moments,
        None if dx is None else _by_pixel(a, dx), sums, slopes, **settings,
    )  # fmt: skip


GROUP_NORM = OpDef(
    kind="group_norm",
    forward=forward,
    backward=backward,
    roles={
        "forward": _run_forward,
        "grad_input": _run_grad_input,
        "grad_weight": run_param_grad,
        "grad_bias": run_param_grad,
        "update": run_update_at_once,
    },
    saves=frozenset({"input"}),
)
