"""linear: weights cast where products cannot; the weight gradient is one launch.

Fused with a ReLU, and with dropout behind it, it takes its gradient masked and scaled.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch.fx import Node

from ..functional import convolution
from ..graph import Kind, Op, Use
from ..kernels.linear.passes import linear_shares
from ..kernels.linear.tf32_weight import keeps_weight
from ..kernels.linear.transpose import needs_transposed
from ..kernels.pointwise.dropout import scale_of
from .activation import behind_relu, run_mask
from .bias_rounding import rounded_copy, run_round
from .builder import Builder, whole
from .dropout import run_dropout
from .operator import TORCH_DTYPES, Launch, Operator
from .optimizer import run_fused_update, update_by
from .reshape_translator import by_last
from .traced_op import Shape, TracedOp, UnsupportedCallError, shape_of


def linear(out: Shape, x: Node, weight: Node, bias: Node | None = None) -> TracedOp:
    if len(out) < 2 or len(shape_of(weight)) != 2:
        shapes = f"{shape_of(x)} and a weight of {shape_of(weight)}"
        raise UnsupportedCallError(f"linear of {shapes} (it takes [N, ..., F], and [K, F])")
    if len(out) == 2:
        return TracedOp("linear", (x,), (weight, bias))
    pointwise = convolution((1, 1), 1, 0, 1, 1)
    return by_last(out, x, TracedOp("conv2d", (), (weight, bias), pointwise))


def forward(b: Builder, op: Op) -> None:
    y, cast = b.new_output(op), _weight(b, op, "cast")
    writes = (Use(y), *_partials(b, y, *b.param_shape(op.params[0])))
    reads = (Use(b.input_of(op)), *([cast] if cast else []))
    params = ("", op.params[1]) if cast else op.params
    nbytes, flops = 0 if cast else b.param_nbytes(op.params[0]), b.product_flops(op, b.batch)
    b.add_pass(op, "forward", reads, writes, params=params, flops=flops, extra_nbytes=nbytes)


def _partials(b: Builder, name: str, outputs: int, terms: int) -> tuple[Use, ...]:
    """Where a product leaves the sums of its shares, if it has more than one."""
    shares = linear_shares(outputs, terms, TORCH_DTYPES[b.dtype], b.precision)
    if shares == 1:
        return ()
    shape = (b.batch, shares, outputs)
    return (Use(b.add_map(f"shares {name}", shape, Kind.PARTIAL, "float32")),)


def forward_relu(b: Builder, op: Op) -> None:
    forward(b, op)
    b.relu_outputs[op.output] = 1.0


def forward_relu_dropout(b: Builder, op: Op) -> None:
    forward(b, op)
    b.relu_outputs[op.output] = scale_of(op.attrs["p"])


def backward(
    b: Builder, op: Op, product_grad: Callable[[Builder, Op], str] = Builder.grad_of
) -> None:
    """The passes behind the gradient of the product alone, which `product_grad` makes."""
    weight, bias = op.params
    cast = _weight(b, op, "cast_grad_input") if b.needs_grad(op.inputs[0]) else None
    dy = product_grad(b, op)
    rounded = dy if b.precision == "ieee" else rounded_copy(b, op, dy)
    if b.needs_grad(op.inputs[0]):  # first: the weight's copy and its gradient are never together
        _grad_input(b, op, rounded, cast)
    if b.needs_param_grad(weight):
        _grad_weight(b, op, rounded)
    if b.needs_param_grad(bias):
        _grad_bias(b, op, dy)


def _grad_weight(b: Builder, op: Op, dy: str) -> None:
    """The gradient, or in its place the update that the product's epilogue applies."""
    weight, reads = op.params[0], (Use(b.input_of(op)), Use(dy))
    workspaces = _transposed(b, op)
    once: dict[str, Any] = {
        "unit": b.batch,
        "reduction": True,
        "flops": b.product_flops(op, b.batch),
    }
    if weight in b.fused_update:
        once |= {"updates": (weight,), "extra_nbytes": b.update_nbytes(weight)}
        b.add_pass(op, "update_weight", reads, workspaces, attrs=b.update_attrs, **once)
    else:
        grad = whole(b.new_param_grad(weight))
        b.add_pass(op, "grad_weight", reads, (grad, *workspaces), **once)


def _transposed(b: Builder, op: Op) -> tuple[Use, ...]:
    """Buffers for the product's transposed operands, if it takes them so: x, then the gradient."""
    if not needs_transposed(b.batch, TORCH_DTYPES[b.dtype], b.precision):
        return ()
    shapes = [(size, b.batch) for size in reversed(b.param_shape(op.params[0]))]
    return tuple(
        whole(b.add_whole(f"turned {name} {op.name}", Kind.PARTIAL, shape, b.dtype))
        for name, shape in zip(("input", "gradient"), shapes, strict=True)
    )


def _grad_bias(b: Builder, op: Op, dy: str) -> None:
    bias = op.params[1]
    if bias in b.fused_update:
        grad = b.add_partials(op, bias, (1, *b.param_shape(bias)))
    else:
        grad = b.new_param_grad(bias)
    b.add_pass(op, "grad_bias", (Use(dy),), (whole(grad),), unit=b.batch, reduction=True)


def _grad_input(b: Builder, op: Op, dy: str, cast: Use | None) -> None:
    value = op.inputs[0]
    mask = b.mask_of(value, by_bits=False)
    attrs = {"mask_scale": b.relu_outputs[value]} if mask else {}
    reads = (Use(dy), *mask, *([cast] if cast else []))
    params = ("",) if cast else op.params[:1]
    dx = b.new_grad(value)
    outputs, inputs = b.param_shape(op.params[0])
    writes = (Use(dx), *_partials(b, dx, inputs, outputs))
    nbytes, flops = b.param_nbytes(op.params[0]), b.product_flops(op, b.batch)
    b.add_pass(
        op, "grad_input", reads, writes, params=params, flops=flops, extra_nbytes=nbytes,
        attrs=attrs,
    )  # fmt: skip


def _weight(b: Builder, op: Op, role: str) -> Use | None:
    """The weight's copy as products read it, made by a pass `role`; None where it needs none."""
    param = op.params[0]
    exact = b.dtype == "float32" and b.precision == "ieee"
    if exact or keeps_weight(b.param_shape(param), TORCH_DTYPES[b.dtype], b.precision):
        return None
    return b.add_weight_copy(op, role, f"{role} {op.name}", b.param_shape(param))


def _run_cast(a: Launch) -> None:
    a.kernels.cast(a.params[0], a.writes[0], precision=a.stored)


def _run_forward_relu_dropout(a: Launch) -> None:
    place = {"seed": a.control.seed, "op_id": a.attrs["op_id"], "first_sample": a.first_sample}
    _run_forward(a, relu=True, dropout_p=a.attrs["p"], **place)


def _run_forward(a: Launch, **fused: Any) -> None:
    x, *cast = a.reads
    weight = cast[0] if cast else a.params[0]
    bias, (y, *partials) = a.params[1], a.writes
    fused["out_precision"] = a.stored
    fused["partials"] = partials[0] if partials else None
    a.kernels.linear(x.flatten(1), weight, bias, y, precision=a.precision, **fused)


def _run_grad_input(a: Launch) -> None:
    dy, *reads = a.reads
    dx, *partials = a.writes
    by: dict[str, Any] = {"out_precision": a.stored, "partials": partials[0] if partials else None}
    if "mask_scale" in a.attrs:
        by |= {"mask": reads.pop(0).flatten(1), "scale": a.attrs["mask_scale"]}
    weight = reads[0] if reads else a.params[0]
    a.kernels.linear_grad_input(dy, weight, dx.flatten(1), precision=a.precision, **by)


def _run_mask_dropout(a: Launch) -> None:
    y, dy = a.reads
    run_dropout(replace(a, reads=(dy,)))
    a.kernels.relu_grad(y, a.writes[0], a.writes[0], precision=a.stored)


def _run_grad_weight(a: Launch) -> None:
    x, dy = a.reads
    grad, *transposed = a.writes
    a.kernels.linear_grad_weight(
        x.flatten(1), dy, grad.unsqueeze(0), group=a.stop - a.start, precision=a.precision,
        transposed=transposed or None,
    )  # fmt: skip


def _run_update_weight(a: Launch) -> None:
    x, dy = a.reads
    settings = {"precision": a.precision, "transposed": a.writes or None}
    update_by(a, "linear_grad_weight_", x.flatten(1), dy, **settings)


def _run_grad_bias(a: Launch) -> None:
    dy, grad = a.reads[0], a.writes[0]
    a.kernels.linear_grad_bias(dy, grad.view(1, -1), group=a.stop - a.start)


_LAUNCHES: Mapping[str, Callable[[Launch], None]] = {
    "cast": _run_cast,
    "cast_grad_input": _run_cast,
    "forward": _run_forward,
    "round": run_round,
    "grad_weight": _run_grad_weight,
    "update_weight": _run_update_weight,
    "grad_bias": _run_grad_bias,
    "update": run_fused_update,
    "grad_input": _run_grad_input,
}
LINEAR = Operator(
    "linear",
    forward,
    backward,
    _LAUNCHES,
    saves={"input"},
    products={"forward", "grad_input", "grad_weight", "update_weight"},
    functions={"linear": linear},
    modules=("Linear",),
    instead_of=dict.fromkeys(("matmul", "mm"), "tvdnn.nn.Linear multiplies by a parameter"),
)
LINEAR_RELU = LINEAR.untraced(
    "linear_relu",
    forward=forward_relu,
    backward=partial(backward, product_grad=behind_relu),
    launches={**_LAUNCHES, "forward": partial(_run_forward, relu=True), "mask": run_mask},
    saves={"input", "output"},
    not_negative={"forward"},
)
LINEAR_RELU_DROPOUT = LINEAR_RELU.untraced(
    "linear_relu_dropout",
    forward=forward_relu_dropout,
    launches={**_LAUNCHES, "forward": _run_forward_relu_dropout, "mask": _run_mask_dropout},
)
