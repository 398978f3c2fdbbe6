"""Losses over a network's outputs: partial sums by sample, a fixed-order total, the gradient.

Each adds its total to that of the loss before it, so that the last holds the loss of the step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, Final

from ..graph import Kind, Network, Op, Param, Use, Value
from ..kernels.loss.cross_entropy import pixel_splits
from ..kernels.loss.per_element import FUNCTIONS, element_splits
from .builder import Builder, whole
from .concat_views import WORD, StridedSupport
from .operator import Launch, Operator
from .row_tiles import tiles_by_pixel

TARGET: Final = "target"
LOSSES: Final = ("cross_entropy", *FUNCTIONS)
CLASSES: Final[Mapping[str, Any]] = {"ignore_index": -100, "smoothing": 0.0}
_ROW = ("ignore_index", "smoothing")


@dataclass(frozen=True, slots=True)
class OutputLoss:
    """The loss of one output against the target."""

    kind: str = "cross_entropy"
    # The kernels' settings.
    attrs: Mapping[str, Any] = field(default_factory=lambda: CLASSES)
    mean: bool = True
    # Its share in the loss of the step.
    share: float = 1.0
    # The weights that the kernels read: of classes (behind them their sum), or of channels and of
    # positive targets; None for none.
    params: tuple[Param | None, ...] = (None,)

    def target_shape(self, output: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of targets for an output of this shape: of classes, one a row or pixel."""
        return output[:-1] if self.kind == "cross_entropy" else output

    def target(self, output: Value) -> Value:
        """The targets of an output."""
        axes = () if self.kind == "cross_entropy" else output.axes
        return Value(TARGET, self.target_shape(output.shape), axes)

    @property
    def target_dtype(self) -> str:
        return "int64" if self.kind == "cross_entropy" else "float32"


def label_ranges(network: Network) -> tuple[tuple[int, int], ...]:
    """The number of classes and the ignored label of each loss that takes labels, once each."""
    found = (
        (network.values[op.inputs[0]].shape[-1], op.attrs["ignore_index"])
        for op in network.ops
        if op.kind == "cross_entropy"
    )
    return tuple(dict.fromkeys(found))


def without_loss_names(network: Network, losses: tuple[OutputLoss, ...]) -> Network:
    """The network without the names of losses and targets."""
    reserved = {TARGET, "loss", *(f"loss {number}" for number in range(1, len(losses)))}
    if not reserved & {*network.values, *(op.name for op in network.ops)}:
        return network

    def named(name: str) -> str:
        return f"{name} of the network" if name in reserved else name

    values = (replace(value, name=named(value.name)) for value in network.values.values())
    ops = (
        replace(
            op, name=named(op.name), inputs=tuple(map(named, op.inputs)), output=named(op.output)
        )
        for op in network.ops
    )
    return replace(
        network,
        values={value.name: value for value in values},
        ops=tuple(ops),
        inputs=tuple(map(named, network.inputs)),
        outputs=tuple(map(named, network.outputs)),
    )


def with_losses(network: Network, losses: tuple[OutputLoss, ...]) -> Network:
    """The network with a loss for each output, the last of which holds their sum."""
    if not losses:
        return network
    values = {**network.values, TARGET: losses[0].target(network.values[network.outputs[0]])}
    ops, params = list(network.ops), dict(network.params)
    before: tuple[str, ...] = ()
    for number, (loss, output) in enumerate(zip(losses, network.outputs, strict=True), 1):
        name = "loss" if number == len(losses) else f"loss {number}"
        attrs = {**loss.attrs, "mean": loss.mean, "share": loss.share}
        names = tuple("" if param is None else param.name for param in loss.params)
        ops.append(Op(name, loss.kind, (output, TARGET, *before), name, names, attrs))
        params |= {param.name: param for param in loss.params if param is not None}
        values[name] = Value(name, (2,))
        before = (name,)
    return replace(
        network,
        values=values,
        ops=tuple(ops),
        params=params,
        inputs=(*network.inputs, TARGET),
        outputs=("loss",),
    )


def forward(b: Builder, op: Op) -> None:
    logits, target = (b.buffer_of[name] for name in op.inputs[:2])
    if len(b.shape(op.inputs[0])) > 2:
        splits = pixel_splits(prod(b.shape(op.inputs[0])[1:-1]), b.shape(op.inputs[0])[-1])
        sums = b.add_map(f"{op.name} sums", (b.batch, splits, 2), Kind.AUX, "float32")
        b.add_pass(op, "pixels", (Use(logits), Use(target)), (Use(sums),), params=op.params)
    else:
        sums = b.add_map(f"{op.name} rows", (b.batch, 2), Kind.AUX, "float32")
        lse = b.add_map(_lse(op), (b.batch,), Kind.AUX, "float32")
        reads, writes = (Use(logits), Use(target)), (Use(sums), Use(lse))
        b.add_pass(op, "rows", reads, writes, params=op.params)
    _add_total(b, op, sums)


def elements_forward(b: Builder, op: Op) -> None:
    shape = (b.batch, element_splits(prod(b.shape(op.inputs[0])[1:])), 2)
    sums = b.add_map(f"{op.name} sums", shape, Kind.AUX, "float32")
    reads = tuple(Use(b.buffer_of[name]) for name in op.inputs[:2])
    b.add_pass(op, "forward", reads, (Use(sums),), params=op.params)
    _add_total(b, op, sums)


def _add_total(b: Builder, op: Op, sums: str) -> None:
    total = b.add_whole(op.output, Kind.AUX, (2,))
    b.put(op.output, total)
    reads = (Use(sums), *(whole(b.buffer_of[name]) for name in op.inputs[2:]))
    b.add_pass(op, "total", reads, (whole(total),), unit=b.batch, reduction=True)


def backward(b: Builder, op: Op) -> None:
    if not b.needs_grad(op.inputs[0]):
        return
    logits, target = (b.buffer_of[name] for name in op.inputs[:2])
    lse = (Use(_lse(op)),) if _lse(op) in b.buffers else ()
    reads = (Use(logits), Use(target), whole(b.buffer_of[op.output]), *lse)
    dx = b.new_grad(op.inputs[0])
    attrs = b.padding(dx)
    b.add_pass(op, "grad_input", reads, (Use(dx),), params=op.params, attrs=attrs)


def _lse(op: Op) -> str:
    return f"{op.name} logsumexp"


def _run_rows(a: Launch) -> None:
    logits, target = a.reads
    operands = (logits.flatten(1), target, a.params[0])
    a.kernels.cross_entropy_rows(*operands, *a.writes, **a.settings(*_ROW))


def _run_pixels(a: Launch) -> None:
    logits, target = a.reads
    operands = (logits.flatten(1, -2), target.flatten(1), a.params[0])
    a.kernels.cross_entropy_pixels(*operands, a.writes[0], **a.settings(*_ROW))


def _run_total(a: Launch) -> None:
    sums, *before = a.reads
    settings = a.settings("mean", "share")
    a.kernels.loss_total(sums, before[0] if before else None, a.writes[0], **settings)


def _run_grad_input(a: Launch) -> None:
    logits, target, total, *lse = a.reads
    rows = logits.flatten(1) if lse else logits.flatten(0, -2)
    known = (rows, target.flatten(), a.params[0], lse[0] if lse else None, total)
    operands = (*known, a.control.scale, a.writes[0].view_as(rows))
    a.kernels.cross_entropy_grad(*operands, **a.settings(*_ROW, "padded"), precision=a.stored)


def _run_elements(function: str, a: Launch) -> None:
    x, target = a.reads
    a.kernels.element_loss(x.view_as(target), target, *a.params, a.writes[0], function=function)


def _run_elements_grad(function: str, a: Launch) -> None:
    x, target, total = a.reads
    known = (x.view_as(target), target, *a.params, total, a.control.scale)
    operands = (*known, a.writes[0].view_as(target))
    a.kernels.element_loss_grad(*operands, function=function, precision=a.stored)


def _of_elements(function: str) -> Operator:
    return Operator(
        function,
        elements_forward,
        backward,
        {
            "forward": partial(_run_elements, function),
            "total": _run_total,
            "grad_input": partial(_run_elements_grad, function),
        },
        saves={"input"},
        row_tiles=tiles_by_pixel,
    )


CROSS_ENTROPY = Operator(
    "cross_entropy",
    forward,
    backward,
    {"rows": _run_rows, "pixels": _run_pixels, "total": _run_total, "grad_input": _run_grad_input},
    saves={"input"},
    # Ranges amid words would be loaded and stored by single logits.
    strided=StridedSupport(frozenset({"input"}), WORD),
    row_tiles=tiles_by_pixel,
)
ELEMENT_LOSSES = tuple(map(_of_elements, FUNCTIONS))
