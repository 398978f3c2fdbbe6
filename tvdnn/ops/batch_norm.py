"""Batch normalization: moments of groups of samples, their merge, then the map; backward likewise.

Statistics are the whole batch's, whatever its sections. Backward finds the normalized map again
from the input, and with it the mask of a ReLU that is fused.
"""

from math import prod
from typing import Any

from torch import Tensor

from ..graph import Kind, Op, Use
from ..kernels.batch_norm_tiles import BatchNormPlan, batch_norm_plan
from .builder import Builder, whole
from .definition import Launch, OpDef


def forward(b: Builder, op: Op) -> None:
    weight, bias = op.params[:2]
    statistics = whole(_statistics(b, op))
    reads = (Use(b.input_of(op)), statistics)
    b.add_pass(op, "forward", reads, (Use(b.new_output(op)),), params=(weight, bias))


def backward(b: Builder, op: Op) -> None:
    weight, bias = op.params[:2]
    statistics, training = whole(_name(op)), op.attrs["training"]
    sums: tuple[Use, ...] = ()
    if training or b.needs_param_grad(weight) or b.needs_param_grad(bias):
        sums = _sums(b, op)
    if not b.needs_grad(op.inputs[0]):
        return
    reads = [Use(b.grad_of(op)), statistics]
    if training:
        reads += [Use(b.input_of(op)), *sums]
    attrs = {"rows": prod(b.shape(op.inputs[0])[:-1])}
    writes = (Use(b.next_grad(op)),)
    b.add_pass(op, "grad_input", reads, writes, params=(weight, bias), attrs=attrs)


def _name(op: Op) -> str:
    return f"statistics {op.name}"


def _statistics(b: Builder, op: Op) -> str:
    """The buffer with the statistics of the batch, or those that running ones stand for."""
    shape = b.shape(op.inputs[0])
    statistics = b.add_whole(_name(op), Kind.AUX, (3, shape[-1]))
    tracked = tuple(name for name in op.params[2:] if name)
    if not op.attrs["training"]:
        b.add_pass(op, "recall", (), (whole(statistics),), params=tracked)
        return statistics
    plan = batch_norm_plan(shape)
    moments = _add_groups(b, op, "moments", plan)
    attrs = {"group": plan.group}
    b.add_pass(op, "moments", (Use(b.input_of(op)),), (moments,), attrs=attrs)
    b.add_pass(
        op,
        "statistics",
        (whole(moments.buffer),),
        (whole(statistics),),
        updates=tracked,
        attrs=attrs | {"shape": shape},
        effects=bool(tracked),
    )
    return statistics


def _sums(b: Builder, op: Op) -> tuple[Use, Use]:
    """The gradients of weight and bias, wanted or not."""
    weight, bias = op.params[:2]
    statistics = whole(_name(op))
    plan = batch_norm_plan(b.shape(op.inputs[0]))
    partials = _add_groups(b, op, "grad sums", plan)
    reads = (Use(b.input_of(op)), Use(b.grad_of(op)), statistics)
    attrs = {"group": plan.group}
    b.add_pass(op, "grad_sums", reads, (partials,), params=(weight, bias), attrs=attrs)
    sums = (whole(_param_grad(b, op, weight, "scale")), whole(_param_grad(b, op, bias, "shift")))
    b.add_pass(op, "grad_params", (whole(partials.buffer), statistics), sums)
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


def _rows(maps: Tensor, statistics: Tensor) -> Tensor:
    """Maps as [N, pixels, C]; a view may have renamed them."""
    return maps.view(maps.shape[0], -1, statistics.shape[1])


def _group(a: Launch) -> int:
    """Samples that share sums."""
    group: int = a.attrs["group"]
    return group


def _run_moments(a: Launch) -> None:
    x, moments = a.reads[0], a.writes[0]
    rows = x.view(x.shape[0], -1, moments.shape[-1])
    a.kernels.batch_norm_moments(rows, moments, group=_group(a))


def _run_statistics(a: Launch) -> None:
    tracked = [state[0] for state in a.updates]
    running = (*tracked, *(None,) * (3 - len(tracked)))
    settings = a.settings("shape", "group", "momentum", "eps")
    a.kernels.batch_norm_statistics(a.reads[0], a.writes[0], *running, **settings)


def _run_recall(a: Launch) -> None:
    a.kernels.batch_norm_recall(*a.params, a.writes[0], **a.settings("eps"))


def _run_forward(a: Launch) -> None:
    x, statistics = a.reads
    x, y = (_rows(maps, statistics) for maps in (x, a.writes[0]))
    a.kernels.batch_norm(x, statistics, *a.params, None, y, relu=False, precision=a.precision)


def _run_grad_sums(a: Launch) -> None:
    x, dy, statistics = a.reads
    x, dy = (_rows(maps, statistics) for maps in (x, dy))
    settings: dict[str, Any] = {"group": _group(a), "relu": False, "precision": a.precision}
    a.kernels.batch_norm_grad_sums(
        x, dy, statistics, *a.params, None, a.writes[0], None, **settings
    )


def _run_grad_params(a: Launch) -> None:
    a.kernels.batch_norm_grad_params(*a.reads, *a.writes)


def _run_grad_input(a: Launch) -> None:
    dy, statistics, *rest = a.reads
    x, dweight, dbias = (_rows(rest[0], statistics), *rest[1:]) if rest else (None, None, None)
    dy, dx = (_rows(maps, statistics) for maps in (dy, a.writes[0]))
    settings = {"rows": a.attrs["rows"], "relu": False, "precision": a.precision}
    a.kernels.batch_norm_grad_input(x, dy, statistics, *a.params, dweight, dbias, dx, **settings)


BATCH_NORM = OpDef(
    kind="batch_norm",
    forward=forward,
    backward=backward,
    roles={
        "moments": _run_moments,
        "statistics": _run_statistics,
        "recall": _run_recall,
        "forward": _run_forward,
        "grad_sums": _run_grad_sums,
        "grad_params": _run_grad_params,
        "grad_input": _run_grad_input,
    },
    saves=frozenset({"input"}),
)
