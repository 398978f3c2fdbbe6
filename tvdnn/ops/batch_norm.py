"""Batch normalization: mean/M2 partials of groups of samples, their merge, then the map.

Statistics are the whole batch's, whatever its sections. The same passes may add a residual to the
normalized map and apply an activation function. Backward computes the normalized map and the
function's gradient again from the input. Where a ReLU follows a residual, the signs of the output
mask the gradient, and the masked gradient is the residual's. So they do behind other ReLUs where
inputs may be rounded. The signs are read as bits where the map rests in these, and forward leaves
the bits where they are asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..graph import Kind, Op, Use
from ..kernels.codec.sign_bits import BYTE
from ..kernels.norm.batch_norm_tiles import BatchNormPlan, batch_norm_plan
from .builder import Builder, whole
from .gradient_sums import sum_so_far
from .operator import STRIDED, Launch, Operator, by_pixel, launches
from .remade_maps import lies_in_source
from .reshape_translator import by_map
from .row_tiles import tiles_by_pixel
from .squeeze import lies_unstored
from .statistics import (
    moments_of,
    run_merge_cells,
    run_moments,
    running_of,
    slices_for,
    statistics_of,
)
from .synchronized_norm import SYNCHRONIZED, add_statistics, is_synchronized, sums_of_all
from .traced_op import Shape, TracedOp


def batch_norm(
    out: Shape,
    x: Node,
    running_mean: Node | None,
    running_var: Node | None,
    weight: Node | None = None,
    bias: Node | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    num_batches_tracked: Node | None = None,
    synchronized: bool = False,
) -> TracedOp:
    attrs = {"training": training, "momentum": momentum, "eps": float(eps)}
    attrs |= {"synchronized": True} if synchronized else {}
    state = (running_mean, running_var, num_batches_tracked if training else None)
    return by_map(out, TracedOp("batch_norm", (x,), (weight, bias), attrs, state=state))


def forward(b: Builder, op: Op) -> None:
    """The passes forward.

    A normalization with nothing fused behind it, which one other alone adds, makes no map: that
    other op normalizes it as it adds it. Nor does one that its readers make as they load it.
    """
    statistics = whole(_statistics(b, op))
    if lies_in_source(b, op) or lies_unstored(b, op):
        return
    bare = op.kind == "batch_norm"
    if bare and op.output in b.residuals and b.has_one_reader(op.output):
        b.added_normalized[op.output] = op
        b.put(op.output, b.input_of(op))
        return
    reads, params = [Use(b.input_of(op)), statistics], list(op.params[:2])
    for name in op.inputs[1:]:
        reads.append(Use(b.buffer_of[name]))
        if name in b.added_normalized:
            reads.append(whole(statistics_of(b.added_normalized[name])))
            params += b.added_normalized[name].params[:2]
    y = Use(b.buffer_of.get(op.output) or b.new_output(op))
    if _has_signs(op) and b.needs_grad(op.output):
        b.relus_by_signs.add(op.output)
        if len(op.inputs) == 1:
            b.relu_outputs[op.output] = 1.0
        y = replace(y, also=b.bits_of(op.output))
    b.add_pass(op, "forward", reads, (y,), params=tuple(params))


def backward(b: Builder, op: Op) -> None:
    """The passes backward. The residual's gradient still lies in its buffer after them.

    The input's gradient is added in place to its earlier terms where possible.
    """
    (dy, *term), (value, *residual) = b.gradient_terms[op.output], op.inputs
    writes = bool(term) or _masks(b, op)
    grad = _total(b, op) if writes else dy
    sums = _sums(b, op, grad) if writes or _needs_sums(b, op) else ()
    kept = bool(residual) and b.needs_grad(residual[0])
    if kept:
        b.adopt_grad(residual[0], grad)
    if not b.needs_grad(value):
        return
    kept |= not b.may_hand_on(grad, value)
    so_far = sum_so_far(b, value, op)
    dx = so_far or Use(b.new_grad(value) if kept else b.adopt_grad(value, grad))
    reads = [*([so_far] if so_far else []), Use(grad), whole(statistics_of(op))]
    again = "" if writes or op.output in b.masked_gradients else op.attrs.get("function", "")
    if again or op.attrs["training"]:
        reads.append(Use(b.input_of(op)))
    if op.attrs["training"]:
        reads += sums_of_all(b, op, sums)
    attrs = {"rows": prod(b.shape(value)[:-1]), "function": again, "adds": so_far is not None}
    b.add_pass(op, "grad_input", reads, (dx,), params=op.params[:2], attrs=attrs)


def _total(b: Builder, op: Op) -> str:
    """The buffer for the gradient of the ReLU's input, or for the sum of two terms.

    The buffer is the first term's, unless that holds another value's gradient too.
    """
    dy = b.grad_of(op)
    if not b.is_shared(dy):
        return dy
    shape = b.buffers[b.buffer_of[op.output]].shape
    return b.add_padded(b.unique(f"total {dy}"), op.output, shape, Kind.GRAD)


def _has_signs(op: Op) -> bool:
    """Whether the signs of the output mask its gradient."""
    return op.kind in ("batch_norm_add_relu", "batch_norm_relu_by_signs")


def _masks(b: Builder, op: Op) -> bool:
    """Whether the op masks its output's gradient itself, by signs."""
    return _has_signs(op) and op.output not in b.masked_gradients


def _needs_sums(b: Builder, op: Op) -> bool:
    return op.attrs["training"] or any(b.needs_param_grad(name) for name in op.params[:2])


def _statistics(b: Builder, op: Op) -> str:
    """The buffer with the batch's statistics, or with the running ones in their place."""
    shape = b.shape(op.inputs[0])
    statistics = b.add_whole(statistics_of(op), Kind.AUX, (3, shape[-1]))
    tracked = tuple(name for name in op.params[2:] if name)
    if not op.attrs["training"]:
        b.add_pass(op, "recall", (), (whole(statistics),), params=tracked)
        return statistics
    if is_synchronized(b, op):
        add_statistics(b, op, tracked)
        return statistics
    b.add_pass(
        op,
        "statistics",
        (moments_of(b, op),),
        (whole(statistics),),
        updates=tracked,
        attrs={"group": slices_for(b, op).group, "shape": shape},
        effects=bool(tracked),
    )
    return statistics


def _sums(b: Builder, op: Op, grad: str) -> tuple[Use, Use]:
    """The gradients of weight and bias, wanted or not.

    `grad` gets the sum of two terms, masked by the ReLU behind a residual. If the residual's own
    normalization happens where the residual is added, its sums are found as well.
    """
    if op.output in b.sums:
        return b.sums[op.output]
    statistics, plan = whole(statistics_of(op)), batch_norm_plan(b.shape(op.inputs[0]))
    partials = _add_groups(b, op, "grad sums", plan)
    dy, *term = b.gradient_terms[op.output]
    sign = [b.signs_of_range(op.output)] if _masks(b, op) else []
    reads = [Use(b.input_of(op)), statistics, Use(dy), *map(Use, term), *sign]
    writes = [partials, *([Use(grad)] if term or sign else [])]
    attrs = {"group": plan.group, "terms": 1 + len(term)}
    attrs |= {"function": ""} if op.output in b.masked_gradients else {}
    other = _summed_beside(b, op)
    if other is not None:
        reads += [Use(b.input_of(other)), whole(statistics_of(other))]
        writes.append(_add_groups(b, other, "grad sums", plan))
    attrs["beside"] = other is not None
    b.add_pass(op, "grad_sums", reads, writes, params=op.params[:2], attrs=attrs)
    if other is not None:
        b.sums[other.output] = _merged(b, other, writes[-1])
    return _merged(b, op, partials)


def _summed_beside(b: Builder, op: Op) -> Op | None:
    """The normalization of the residual that takes the same gradient, where it wants its sums.

    None where a map is a range, for narrower loads might add in another order.
    """
    other = b.added_normalized.get(op.inputs[-1])
    if other is None or not (b.needs_grad(other.output) and _needs_sums(b, other)):
        return None
    maps = {b.input_of(op), b.input_of(other), *b.gradient_terms[op.output], b.buffer_of[op.output]}
    return None if any(map(b.is_range, maps)) else other


def _merged(b: Builder, op: Op, partials: Use) -> tuple[Use, Use]:
    """The gradients of weight and bias, from their sums over slices."""
    weight, bias = op.params[:2]
    sums = (whole(_param_grad(b, op, weight, "scale")), whole(_param_grad(b, op, bias, "shift")))
    b.add_pass(op, "grad_params", (whole(partials.buffer), whole(statistics_of(op))), sums)
    return sums


def _param_grad(b: Builder, op: Op, param: str, name: str) -> str:
    if b.needs_param_grad(param):
        return b.new_param_grad(param)
    channels = b.shape(op.inputs[0])[-1]
    return b.add_whole(f"grad {name} {op.name}", Kind.PARTIAL, (channels,))


def _add_groups(b: Builder, op: Op, name: str, plan: BatchNormPlan) -> Use:
    """The use of a buffer for the sums of slices of the input, group by group."""
    *_, channels = b.shape(op.inputs[0])
    shape = plan.partials_shape(b.batch, channels)
    groups = b.add_groups(f"{name} {op.name}", shape, plan.group, b.input_of(op))
    return Use(groups, per=plan.group)


def _mask_rows(mask: Tensor, channels: int) -> Tensor:
    return by_pixel(mask, channels // BYTE if mask.dtype == torch.uint8 else channels)


def _function(a: Launch) -> dict[str, Any]:
    """The function behind the normalization, and the precision."""
    names = [name for name in ("function", "coefficient") if name in a.attrs]
    return a.settings(*names) | {"precision": a.stored}


def _run_statistics(a: Launch) -> None:
    running = running_of(a)
    settings = a.settings("shape", "group", "momentum", "eps")
    operands = (a.reads[0], a.writes[0], *running)
    a.kernels.batch_norm_statistics(*operands, **settings, flag=a.control.flag)


def _run_recall(a: Launch) -> None:
    a.kernels.batch_norm_recall(*a.params, a.writes[0], **a.settings("eps"))


def _run_forward(a: Launch) -> None:
    (x, statistics, *others), (y, *signs) = a.reads, a.writes
    channels = statistics.shape[1]
    rows = partial(by_pixel, channels=channels)
    residual = rows(others[0]) if others else None
    operands = (rows(x), statistics, *a.params[:2], residual, rows(y))
    settings: dict[str, Any] = _function(a)
    if len(others) > 1:
        settings["residual_by"] = (others[1], *a.params[2:])
    a.kernels.batch_norm(
        *operands, *(by_pixel(each, channels // BYTE) for each in signs), **settings
    )


def _run_grad_sums(a: Launch) -> None:
    (x, statistics, *maps), (partials, *grad) = a.reads, a.writes
    channels = statistics.shape[1]
    rows = partial(by_pixel, channels=channels)
    settings: dict[str, Any] = a.settings("group") | _function(a)
    settings["out_precision"] = a.output_stored
    if a.attrs["beside"]:
        *maps, other, other_statistics = maps
        settings["residual"] = (rows(other), other_statistics, grad.pop())
    dy, *terms = map(rows, maps[: a.attrs["terms"]])
    term, total = terms[0] if terms else None, rows(grad[0]) if grad else None
    y = _mask_rows(maps[-1], channels) if len(maps) > a.attrs["terms"] else None
    operands = (rows(x), dy, term, statistics, *a.params, y, partials, total)
    a.kernels.batch_norm_grad_sums(*operands, **settings)


def _run_grad_input(a: Launch) -> None:
    adds = a.attrs["adds"]
    dy, statistics, *others = a.reads[1:] if adds else a.reads
    rows = partial(by_pixel, channels=statistics.shape[1])
    x = rows(others[0]) if others else None
    sums = others[1:] or (None, None)
    dweight, dbias = sums[0] if len(sums) == 1 else sums
    settings: dict[str, Any] = a.settings("rows") | _function(a)
    settings |= {"out_precision": a.output_stored, "rounded_from": a.rounded_from}
    settings["added"] = rows(a.reads[0]) if adds else None
    operands = (x, rows(dy), statistics, *a.params, dweight, dbias, rows(a.writes[0]))
    a.kernels.batch_norm_grad_input(*operands, **settings)


_LAUNCHES: Mapping[str, Callable[[Launch], None]] = {
    "moments": run_moments,
    "merge_cells": run_merge_cells,
    "statistics": _run_statistics,
    **SYNCHRONIZED,
    "recall": _run_recall,
    "forward": _run_forward,
    "grad_sums": _run_grad_sums,
    "grad_params": launches("batch_norm_grad_params", stores=False),
    "grad_input": _run_grad_input,
}


BATCH_NORM = Operator(
    "batch_norm",
    forward,
    backward,
    _LAUNCHES,
    saves={"input"},
    adds_grads=True,
    strided=STRIDED,
    row_tiles=tiles_by_pixel,
    vdnn="all",
    functions={"functional.batch_norm": batch_norm, "counted_batch_norm": batch_norm},
    modules=("BatchNorm1d", "BatchNorm2d", "LazyBatchNorm1d", "LazyBatchNorm2d", "SyncBatchNorm"),
)
FUSED = (
    BATCH_NORM.untraced("batch_norm_relu", vdnn="", not_negative={"forward"}),
    BATCH_NORM.untraced(
        "batch_norm_relu_by_signs",
        vdnn="",
        saves={"input", "output"},
        not_negative={"forward"},
    ),
    BATCH_NORM.untraced("batch_norm_activation", vdnn=""),
    BATCH_NORM.untraced("batch_norm_add", vdnn="", in_place=True),
    BATCH_NORM.untraced(
        "batch_norm_add_relu",
        vdnn="",
        in_place=True,
        saves={"input", "output"},
        not_negative={"forward"},
    ),
)
