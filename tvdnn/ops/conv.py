"""conv2d: packed weights, per-sample forward and data gradient, running sums for parameters.

A conv2d fused with a ReLU takes its gradient masked. With pooling as well, it un-pools the gradient
into a map that lives as long as its layer's block of samples. The bias's gradient adds up from sums
over tiles of the map's gradient, which the convolution that writes that gradient may leave.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from ..graph import POOL_2X2, Kind, Op, Use
from ..kernels.conv.bands import packed_shape, packed_shape_grad_input
from ..kernels.conv.batch_stats import MomentCells, moment_cells
from ..kernels.conv.depthwise_grad_weight import DepthwisePlan
from ..kernels.conv.grad_bias import GradBiasPlan, grad_bias_plan
from ..kernels.conv.grad_input_add_mask import may_be_last
from ..kernels.conv.grad_weight.launch import GradWeightPlan, grad_weight_plan
from ..kernels.conv.grad_weight.shape import few_of
from .activation import behind_relu, run_mask
from .bias_rounding import round_in_place
from .builder import Builder, whole
from .conv_launches import (
    LAUNCHES,
    run_forward,
    run_forward_relu_max_pool2d,
    run_unpool,
)
from .conv_sizes import filter_shape, plan_settings, sides_of
from .conv_translator import conv
from .operator import STRIDED_BY_WORDS, Operator
from .pool import add_codes, codes_of
from .remade_maps import remakes, source_read_by
from .row_tiles import NO_HALO, Halo, grad_rows_beside, rows_beside, tiles_of_windows
from .squeeze import source_in_backward
from .statistics import add_cells


def forward(b: Builder, op: Op) -> None:
    """The output, and its moments by cell where they are wanted and the kernel leaves them."""
    y = Use(b.new_output(op))
    cells = _moment_cells(b, op) if op.output in b.normalized else None
    moments = None if cells is None else add_cells(b, op, cells)
    if moments is None:
        _product(b, op, y)
    else:
        _product(b, op, y, moments, attrs={"cells": cells})


def forward_relu(b: Builder, op: Op) -> None:
    _product(b, op, Use(b.new_output(op)))
    _rectify(b, op)


def forward_relu_max_pool2d(b: Builder, op: Op) -> None:
    y = b.new_output(op)
    _product(b, op, Use(y), Use(add_codes(b, op, prod(POOL_2X2["kernel"]))))
    _rectify(b, op)


def _rectify(b: Builder, op: Op) -> None:
    """Declare the mask, and the bias-sum tiles, of the output's gradient."""
    b.relu_outputs[op.output] = 1.0
    if b.needs_param_grad(op.params[1]) and _bias_plan(b, op).cell > 1:
        b.bias_tiles[op.output] = _cell_behind(b, op)


def _product(b: Builder, op: Op, *writes: Use, attrs: Mapping[str, Any] | None = None) -> None:
    """The convolution and its fused ops, and what makes its input, where the launch does so."""
    source = source_read_by(b, op)
    made = source is not None
    reads: list[Use] = [Use(b.input_of(op), halo=halo_of(b, op), exact=made), pack(b, op)]
    params, attrs = [op.params[1]], dict(attrs or {})
    if source is not None:
        reads.append(source.beside)
        params += source.params
        attrs |= source.attrs
    b.add_pass(op, "forward", reads, writes, params=tuple(params), flops=_flops(b, op), attrs=attrs)


def backward(
    b: Builder, op: Op, inner_grad: Callable[[Builder, Op], str] = Builder.grad_of
) -> None:
    """The passes backward, from the gradient that `inner_grad` makes."""
    packed = pack_grad_input(b, op) if b.needs_grad(op.inputs[0]) else None
    grad = inner_grad(b, op)
    dy = _unpooled(b, op, grad) if _pools(op) else grad
    dy = add_param_grads(b, op, grad, dy, lambda dy: add_grad_weight(b, op, dy, b.input_of(op)))
    if packed is not None:
        _grad_input(b, op, dy, packed)


def add_param_grads(
    b: Builder, op: Op, grad: str, dy: str, add_weight_grad: Callable[[str], None]
) -> str:
    """The passes of weight and bias, and the gradient rounded for products."""
    if not _sums_exactly(b, op):
        add_weight_grad(dy)
        add_grad_bias(b, op, grad, dy)
        return dy
    add_grad_bias(b, op, grad, dy)
    rounded = round_in_place(b, op, dy)
    add_weight_grad(rounded)
    return rounded


def _sums_exactly(b: Builder, op: Op) -> bool:
    """Whether the bias's gradient sums values that are not yet rounded for products.

    Ranges do not, nor outputs with a ReLU behind: the product that makes their gradient masks it.
    """
    if b.precision == "ieee" or not b.needs_param_grad(op.params[1]) or b.is_range(b.grad_of(op)):
        return False
    readers = [each.kind for each in b.network.ops if op.output in each.inputs]
    return op.output not in b.relu_outputs and readers != ["relu"]


def _grad_input(b: Builder, op: Op, dy: str, packed: Use) -> None:
    """The data gradient; masked for the op that made the input, with the sums that this wants.

    The last term of a sum's gradient is added to the other term first.
    """
    value = op.inputs[0]
    other, flops = b.other_term(value), _flops(b, op)
    if other is not None and may_be_last(filter_shape(b, op), **plan_settings(b, op)):
        total = Use(b.new_total(value))
        b.add_pass(op, "grad_last", (Use(dy), packed, *other), (total,), flops=flops)
        return
    mask = b.mask_of(value, by_bits=True)
    dx = b.new_grad(value)
    writes = [Use(dx)]
    if mask and value in b.bias_tiles:
        b.bias_tile_sums[value] = b.add_bias_tile_sums(dx, b.bias_tiles[value])
        writes.append(Use(b.bias_tile_sums[value]))
    reads = (Use(dy, halo=grad_halo_of(b, op)), packed, *mask)
    b.add_pass(op, "grad_input", reads, writes, flops=flops)


def _pools(op: Op) -> bool:
    return "sides" in op.attrs


def _unpooled(b: Builder, op: Op, grad: str) -> str:
    name, shape = b.unique(f"grad {op.name}"), _map_shape(b, op)
    name = b.add_padded(name, op.output, shape, Kind.GRAD)
    b.add_pass(op, "unpool", (Use(grad), Use(codes_of(op))), (Use(name),))
    return name


def _map_shape(b: Builder, op: Op) -> tuple[int, ...]:
    """The shape of the convolution's own output."""
    n, p, q, k = b.shape(op.output)
    return (n, *op.attrs.get("sides", (p, q)), k)


def pack(b: Builder, op: Op) -> Use:
    """The copy of the weight that a convolution wants."""
    shape = packed_shape(filter_shape(b, op), **_packing(b, op))
    return b.add_weight_copy(op, "pack", f"packed {op.name}", shape)


def pack_grad_input(b: Builder, op: Op) -> Use:
    """The copy of the weight that a data gradient wants."""
    shape = packed_shape_grad_input(filter_shape(b, op), **_packing(b, op))
    return b.add_weight_copy(op, "pack_grad_input", f"packed grad {op.name}", shape)


def _packing(b: Builder, op: Op) -> dict[str, Any]:
    """What the bands of a layer's input channels depend on."""
    settings = plan_settings(b, op)
    return {name: settings[name] for name in ("groups", "dtype", "precision")}


def add_grad_weight(b: Builder, op: Op, small: str, large: str) -> None:
    """The pass that sums the weight's gradient over the convolution's smaller and larger map.

    Where it can, the launch makes the larger map again as it loads what that was made of.
    """
    if not b.needs_param_grad(op.params[0]):
        return
    reads: tuple[Use, ...] = (Use(small), Use(large, halo=halo_of(b, op)))
    few = _batch(b, small, reads)
    batch = {"batch": few} if few else {}  # signatures of large batches are those that ship
    plan, places = _weight_plan(b, op, small, large, reads), b.buffers[small].shape[:-1]
    source = source_in_backward(b, op.inputs[0]) if large == b.input_of(op) else None
    if source is None or not remakes(b, op, small, large, source):
        assert op.inputs[0] not in b.made_by_readers, f"nothing has stored {op.inputs[0]}"
        add_weight_sums(b, op, reads, plan, b.product_flops(op, *places), attrs=batch)
        return
    reads = (Use(small), Use(source.map, exact=True), source.beside, *source.behind)
    flops = b.product_flops(op, *places)
    attrs = {**source.attrs, **batch}
    add_weight_sums(b, op, reads, plan, flops, params=source.params, attrs=attrs)


def add_weight_sums(
    b: Builder, op: Op, reads: Sequence[Use], plan: GradWeightPlan | DepthwisePlan, flops: float,
    params: tuple[str, ...] = (), attrs: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Running sums of the weight's gradient, one for each split of the work on a map's pixels."""
    k, c, r, s = filter_shape(b, op)
    sums = whole(b.add_partials(op, op.params[0], (plan.splits, k, r, s, c)))
    keeps_rows = not any(any(use.halo) for use in reads)
    least = plan.least_sums if isinstance(plan, GradWeightPlan) and keeps_rows else 0
    settings = {"unit": plan.unit, "reduction": True, "least_sums": least}
    b.add_pass(
        op, "grad_weight", reads, (sums,), flops=flops, params=params, attrs=attrs, **settings
    )  # fmt: skip


def add_grad_bias(b: Builder, op: Op, grad: str, dy: str) -> None:
    """Running sums of the bias's gradient, in between over cells where these are to be made."""
    bias = op.params[1]
    if not b.needs_param_grad(bias):
        return
    plan = _bias_plan(b, op)
    sums = [whole(b.add_partials(op, bias, (plan.splits, *b.param_shape(bias))))]
    if plan.cell == 1:
        rows = dy
    elif op.output in b.bias_tile_sums:
        rows = b.bias_tile_sums[op.output]
    else:
        rows = grad
        sums.append(Use(b.add_bias_tile_sums(grad, _cell_behind(b, op))))
    attrs = {"cell": plan.cell}
    b.add_pass(op, "grad_bias", (Use(rows),), sums, unit=plan.unit, reduction=True, attrs=attrs)


def _weight_plan(
    b: Builder, op: Op, small: str, large: str, reads: Sequence[Use]
) -> GradWeightPlan:
    """Of whole maps. Of row tiles with a halo it is that of images, a unit of row tiles each."""
    shape, settings = filter_shape(b, op), plan_settings(b, op)
    settings["pitches"] = b.pitch(large), b.pitch(small)
    settings["batch"] = _batch(b, small, reads)
    sides = sides_of(b, large), sides_of(b, small)
    if not any(any(use.halo) for use in reads):
        return grad_weight_plan(*sides, shape, **settings)
    unit = max(b.buffers[b.resolved(use).buffer].section for use in reads)
    images = ((unit * height, width) for height, width in sides)
    return replace(grad_weight_plan(*images, shape, **settings), unit=unit)


def _batch(b: Builder, small: str, reads: Sequence[Use]) -> int:
    """Samples of a batch of few; 0 for others and for row tiles with a halo: for any batch."""
    return 0 if any(any(use.halo) for use in reads) else few_of(b.buffers[small].shape[0])


def halo_of(b: Builder, op: Op) -> Halo:
    """Rows beside a row tile that the op's windows read of the larger of its maps."""
    return NO_HALO if b.row_tiles == 1 else rows_beside(op, filter_shape(b, op)[2])


def grad_halo_of(b: Builder, op: Op) -> Halo:
    """Rows beside a row tile of the smaller map that row tiles of the larger are made of."""
    return NO_HALO if b.row_tiles == 1 else grad_rows_beside(op, filter_shape(b, op)[2])


def _moment_cells(b: Builder, op: Op) -> MomentCells | None:
    """The tiles whose mean and M2 the kernel may leave; None with a halo."""
    if any(halo_of(b, op)):
        return None
    maps = b.input_of(op), b.buffer_of[op.output]
    sides, pitches = (sides_of(b, name) for name in maps), (b.pitch(maps[0]), b.pitch(maps[1]))
    return moment_cells(*sides, filter_shape(b, op), **plan_settings(b, op), pitches=pitches)


def _bias_plan(b: Builder, op: Op) -> GradBiasPlan:
    _, height, width, channels = _map_shape(b, op)
    return grad_bias_plan((height, width), channels)


def _cell_behind(b: Builder, op: Op) -> int:
    """The side of a tile in the op's output."""
    cell: int = _bias_plan(b, op).cell
    return cell // 2 if _pools(op) else cell


def _flops(b: Builder, op: Op) -> float:
    return b.product_flops(op, *_map_shape(b, op)[:-1])


PRODUCTS = frozenset({"forward", "grad_input", "grad_last", "grad_weight"})
CONV2D = Operator(
    "conv2d",
    forward,
    backward,
    LAUNCHES,
    saves={"input"},
    products=PRODUCTS,
    strided=STRIDED_BY_WORDS,
    row_tiles=tiles_of_windows,
    vdnn="conv",
    functions={"conv1d": conv, "conv2d": conv},
    modules=("Conv1d", "Conv2d"),
    takes_buffers=True,
)
CONV2D_RELU = CONV2D.untraced(
    "conv2d_relu",
    forward=forward_relu,
    backward=partial(backward, inner_grad=behind_relu),
    launches={**LAUNCHES, "forward": partial(run_forward, relu=True), "mask": run_mask},
    saves={"input", "output"},
    not_negative={"forward"},
)
CONV2D_RELU_MAX_POOL2D = CONV2D_RELU.untraced(
    "conv2d_relu_max_pool2d",
    forward=forward_relu_max_pool2d,
    launches={**CONV2D_RELU.launches, "forward": run_forward_relu_max_pool2d, "unpool": run_unpool},
    copies_values={"unpool"},
)
