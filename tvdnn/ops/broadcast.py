"""Sums, products, quotients, maxima and minima of operands whose shapes broadcast.

An operand is a map, or a parameter or buffer of the module. The gradient of a repeated operand is
a sum over the repeated dimensions: by sample first, and for parameters then over the batch.
"""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch

from ..graph import Kind, Op, Use
from ..kernels.pointwise.broadcast import FUNCTIONS, sum_slices_of
from .builder import Builder
from .operator import Launch, Operator
from .row_tiles import tiles_by_pixel
from .sample_sums import SAMPLE_SUMS, add_param_grads

Sizes = tuple[int, int, int]
READS = {  # by function and operand, which operands its gradient reads
    "add": ((), ()),
    "multiply": ((1,), (0,)),
    "divide": ((1,), (0, 1)),
    "maximum": ((0, 1), (0, 1)),
    "minimum": ((0, 1), (0, 1)),
}


class BroadcastOperand(NamedTuple):
    """An operand of a pass."""

    # The number of the read or parameter that holds it.
    place: int
    # Those of a sample in the order of the result's axes, 1 where it is repeated.
    sizes: Sizes
    # Of a parameter, the dimension that each axis of the result has; () of a map.
    permutation: tuple[int, ...] = ()


def kind_of(function: str) -> str:
    """The kind of op that computes a function of the kernels."""
    return f"broadcast_{function}"


def forward(b: Builder, op: Op) -> None:
    reads, operands = _reads(b, op, (0, 1))
    attrs = {"operands": operands, "sizes": _sizes(b, op)[2]}
    writes = (Use(b.new_output(op)),)
    b.add_pass(op, "forward", reads, writes, params=op.params, attrs=attrs)


def backward(function: str, b: Builder, op: Op) -> None:
    for number in (0, 1):
        if _is_param(op, number):
            wanted = b.needs_param_grad(op.params[0])
        else:
            wanted = b.needs_grad(_input(op, number))
        if wanted:
            _add_gradient(b, op, function, number)


def _add_gradient(b: Builder, op: Op, function: str, number: int) -> None:
    """The passes that make the gradient of one operand."""
    needed, (*operand_sizes, sizes) = READS[function][number], _sizes(b, op)
    reads, operands = _reads(b, op, needed)
    dy, own = b.grad_of(op), operand_sizes[number]
    params = op.params if any(_is_param(op, each) for each in needed) else ()
    attrs: dict[str, Any] = {"operands": operands, "sizes": sizes, "first": number == 0}
    if own == sizes and not _is_param(op, number):
        value = _input(op, number)
        if function == "add" and (number == 0 or op.attrs["scale"] == 1):
            b.adopt_grad(value, dy)
        else:
            writes = (Use(b.new_grad(value)),)
            b.add_pass(op, "grad_input", (Use(dy), *reads), writes, params=params, attrs=attrs)
        return
    kept = tuple(size == full for size, full in zip(own, sizes, strict=True))
    columns = prod(own)
    slices = sum_slices_of(prod(sizes) // columns, columns)
    attrs |= {"kept": kept, "order": _order(op) if _is_param(op, number) else ()}
    shape = (b.batch, slices, 1, columns)
    name = f"sums {op.name}" if number == 0 else f"sums {op.name} of the second"
    sums = b.add_map(name, shape, Kind.AUX, "float32", b.buffers[dy].section)
    writes = (Use(sums),)
    b.add_pass(op, "grad_sums", (Use(dy), *reads), writes, params=params, attrs=attrs)
    if _is_param(op, number):
        add_param_grads(b, op, sums)
    else:
        grad = Use(b.new_grad(_input(op, number)))
        b.add_pass(op, "grad_repeated", (Use(sums),), (grad,))


def _is_param(op: Op, number: int) -> bool:
    return bool(op.attrs.get("param", -1) == number)


def _input(op: Op, number: int) -> str:
    return op.inputs[0 if len(op.inputs) == 1 else number]


def _reads(
    b: Builder, op: Op, numbers: Sequence[int]
) -> tuple[list[Use], tuple[BroadcastOperand | None, BroadcastOperand | None]]:
    """Uses of the operands of these numbers that are maps, and all operands; None of others."""
    reads: list[Use] = []
    operands: list[BroadcastOperand | None] = [None, None]
    for number in numbers:
        sizes = _sizes(b, op)[number]
        if _is_param(op, number):
            operands[number] = BroadcastOperand(0, sizes, tuple(op.attrs["permutation"]))
        else:
            operands[number] = BroadcastOperand(len(reads), sizes)
            reads.append(Use(b.buffer_of[_input(op, number)]))
    return reads, (operands[0], operands[1])


def _sizes(b: Builder, op: Op) -> list[Sizes]:
    """Three sizes of a sample of both operands and of the result.

    Neighbouring axes of more are made one where each operand is repeated in both or in neither.
    """
    full = b.shape(op.output)[1:]
    shapes = [_sample_shape(b, op, number) for number in (0, 1)] + [full]
    axes = [tuple(shape[axis] for shape in shapes) for axis in range(len(full))]
    while len(axes) > 3:
        kinds = [tuple(size == each[2] for size in each) for each in axes]
        alike = [place for place in range(1, len(axes)) if kinds[place - 1] == kinds[place]]
        place = alike[0] if alike else 0
        assert place, f"{op.name} broadcasts along more than three groups of axes"
        joined = tuple(one * other for one, other in zip(axes[place - 1], axes[place], strict=True))
        axes[place - 1 : place + 1] = [joined]
    axes = [(1, 1, 1)] * (3 - len(axes)) + axes
    return [(axes[0][each], axes[1][each], axes[2][each]) for each in range(3)]


def _sample_shape(b: Builder, op: Op, number: int) -> tuple[int, ...]:
    """The sizes of a sample of an operand, in the order of the result's axes."""
    if not _is_param(op, number):
        return b.shape(_input(op, number))[1:]
    shape, permutation = op.attrs["shape"], op.attrs["permutation"]
    padded = (*(1,) * (len(permutation) - len(shape)), *shape)
    return tuple(padded[axis] for axis in permutation[1:]) or (1,)  # of [N], one number


def _order(op: Op) -> tuple[int, ...]:
    """The axes of a sample in the order in which a parameter's gradient is summed.

    Filters have their second dimension last, other parameters their dimensions as torch has them.
    """
    permutation = op.attrs["permutation"]
    stored = [0, 2, 3, 1] if op.attrs["filters"] else [*range(len(permutation))]
    axes = [permutation.index(dim) for dim in stored if permutation.index(dim) > 0]
    return (*range(3 - len(axes)), *(axis - 1 + 3 - len(axes) for axis in axes))


def _operands(a: Launch, reads: Sequence[torch.Tensor], samples: int) -> list[torch.Tensor | None]:
    """Both operands as views of the result's shape; None where they are not read."""
    found: list[torch.Tensor | None] = []
    for operand in a.attrs["operands"]:
        if operand is None:
            found.append(None)
            continue
        if operand.permutation:
            shape = a.attrs["shape"]
            shaped = a.weight if a.weight.shape == shape else a.weight.view(shape)
            padded = shaped[(None,) * (len(operand.permutation) - shaped.dim())]
            values = padded.permute(operand.permutation)
        else:
            values = reads[operand.place]
        values = values.view(values.shape[0], *operand.sizes)
        found.append(values.expand(samples, *a.attrs["sizes"]))
    return found


def _result(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    return maps.view(len(maps), *a.attrs["sizes"])


def _run_forward(function: str, a: Launch) -> None:
    y = _result(a, a.writes[0])
    operands = _operands(a, a.reads, len(y))
    a.kernels.broadcast(*operands, y, function=function, scale=a.attrs["scale"], precision=a.stored)


def _run_grad_input(function: str, a: Launch) -> None:
    dy, grad = _result(a, a.reads[0]), _result(a, a.writes[0])
    operands = _operands(a, a.reads[1:], len(dy))
    settings = {"function": function, "precision": a.stored, **a.settings("scale", "first")}
    a.kernels.broadcast_grad(dy, *operands, grad, **settings)


def _run_grad_sums(function: str, a: Launch) -> None:
    dy = _result(a, a.reads[0])
    operands, kept = _operands(a, a.reads[1:], len(dy)), a.attrs["kept"]
    maps = [dy, *operands]
    if order := a.attrs["order"]:
        axes = (0, *(axis + 1 for axis in order))
        maps = [None if each is None else each.permute(axes) for each in maps]
        kept = tuple(kept[axis] for axis in order)
    settings = {"function": function, "kept": kept, **a.settings("scale", "first")}
    a.kernels.broadcast_grad_sums(*maps, a.writes[0].flatten(1, 2), **settings)


def _run_grad_repeated(a: Launch) -> None:
    sums, grad = a.reads[0].flatten(1, 2), a.writes[0].flatten(1)
    a.kernels.sum_slices(sums, grad, precision=a.stored)


def _definition(function: str) -> Operator:
    return Operator(
        kind_of(function),
        forward,
        partial(backward, function),
        {
            "forward": partial(_run_forward, function),
            "grad_input": partial(_run_grad_input, function),
            "grad_sums": partial(_run_grad_sums, function),
            "grad_repeated": _run_grad_repeated,
            **SAMPLE_SUMS,
        },
        saves={"input"} if any(READS[function]) else set(),
        row_tiles=tiles_by_pixel,
        takes_rows=True,
        takes_views=True,
    )


BROADCASTS = tuple(map(_definition, FUNCTIONS))
