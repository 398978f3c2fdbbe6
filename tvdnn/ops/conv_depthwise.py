"""conv2d_depthwise: convolution of each channel by a filter of its own.

Its passes are those of a convolution. Forward pass and data gradient read the same copy of the
weight, [R, S, C], unrounded: their products are exact in float32.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..graph import Op, Use
from ..kernels.conv.batch_stats import MomentCells
from ..kernels.conv.depthwise import depthwise_cells
from ..kernels.conv.depthwise_grad_weight import depthwise_plan
from .builder import Builder
from .conv import add_grad_bias, add_weight_sums
from .conv_launches import LAUNCHES, filter_of
from .conv_sizes import filter_shape, sides_of
from .operator import STRIDED_BY_WORDS, TORCH_DTYPES, Launch, Operator, launches
from .remade_maps import made_by_of, source_read_by
from .statistics import add_cells

GEOMETRY = ("stride", "padding", "dilation")


def forward(b: Builder, op: Op) -> None:
    beside, params, attrs = _made(b, op)
    reads = (Use(b.input_of(op)), _pack(b, op, f"packed {op.name}"), *beside)
    writes, flops = [Use(b.new_output(op))], _flops(b, op)
    cells = _moment_cells(b, op) if op.output in b.normalized else None
    moments = None if cells is None else add_cells(b, op, cells)
    if moments is not None:
        writes.append(moments)
        attrs = {**attrs, "cells": cells}
    params = (op.params[1], *params)
    b.add_pass(op, "forward", reads, writes, params=params, flops=flops, attrs=attrs)


def _moment_cells(b: Builder, op: Op) -> MomentCells | None:
    """The cells of the output whose mean and M2 the kernel may leave."""
    geometry, dtype = (op.attrs["stride"], op.attrs["dilation"]), TORCH_DTYPES[b.dtype]
    sides = sides_of(b, b.buffer_of[op.output])
    return depthwise_cells(sides, filter_shape(b, op), *geometry, dtype)


def _made(b: Builder, op: Op) -> tuple[tuple[Use, ...], tuple[str, ...], Mapping[str, Any]]:
    """What stands beside the source of the input, where the launches make the input of it."""
    source = source_read_by(b, op)
    return ((source.beside,), source.params, source.attrs) if source else ((), (), {})


def backward(b: Builder, op: Op) -> None:
    dy, value = b.grad_of(op), op.inputs[0]
    _grad_weight(b, op, dy)
    add_grad_bias(b, op, dy, dy)
    if b.needs_grad(value):
        reads = (Use(dy), _pack(b, op, f"packed grad {op.name}"))
        b.add_pass(op, "grad_input", reads, (Use(b.new_grad(value)),), flops=_flops(b, op))


def _pack(b: Builder, op: Op, name: str) -> Use:
    """A copy of the weight with channels innermost."""
    c, _, r, s = filter_shape(b, op)
    return b.add_weight_copy(op, "pack", name, (r, s, c))


def _grad_weight(b: Builder, op: Op, dy: str) -> None:
    if not b.needs_param_grad(op.params[0]):
        return
    (_, height, width, _), (c, _, r, s) = b.shape(op.output), filter_shape(b, op)
    plan = depthwise_plan((height, width), c, (r, s), op.attrs["stride"], op.attrs["dilation"])
    beside, params, attrs = _made(b, op)
    reads = (Use(b.input_of(op)), Use(dy), *beside)
    add_weight_sums(b, op, reads, plan, _flops(b, op), params, attrs)


def _flops(b: Builder, op: Op) -> float:
    return b.product_flops(op, *b.shape(op.output)[:-1])


def _run_pack(a: Launch) -> None:
    """Pack the weight [C, 1, R, S] as a convolution from C channels to one."""
    a.kernels.pack_weight(filter_of(a).transpose(0, 1), a.writes[0][None], groups=1)


def _run_forward(a: Launch) -> None:
    settings = a.settings(*GEOMETRY) | {"precision": a.stored} | _maker_of(a, a.params[1:])
    y, *moments = a.writes
    left = {"moments": moments[0], "cells": a.attrs["cells"]} if moments else {}
    a.kernels.depthwise_conv2d(*a.reads[:2], a.params[0], y, **settings, **left)


def _run_grad_weight(a: Launch) -> None:
    settings = a.settings(*GEOMETRY) | {"first": a.start == 0} | _maker_of(a, a.params)
    a.kernels.depthwise_conv2d_grad_weight(*a.reads[:2], a.writes[0], **settings)


def _maker_of(a: Launch, params: Sequence[Tensor | None]) -> dict[str, Any]:
    """What the launch makes its larger map by, if it does."""
    return {"made_by": made_by_of(a, params)} if "maker" in a.attrs else {}


CONV2D_DEPTHWISE = Operator(
    "conv2d_depthwise",
    forward,
    backward,
    {
        **LAUNCHES,
        "pack": _run_pack,
        "forward": _run_forward,
        "grad_input": launches("depthwise_conv2d_grad_input", *GEOMETRY),
        "grad_weight": _run_grad_weight,
    },
    saves={"input"},
    strided=STRIDED_BY_WORDS,
    vdnn="conv",
    takes_buffers=True,
)
