"""conv_transpose2d: a convolution whose forward pass and data gradient change places.

Its weight [C, K/g, R, S] is that of the convolution which makes C channels out of K.
"""

from math import prod

from ..graph import Op, Use
from ..kernels.conv_grad_weight import grad_weight_plan
from .builder import Builder, whole
from .conv import (
    GEOMETRY,
    PRODUCTS,
    ROLES,
    add_param_grads,
    filter_shape,
    pack,
    pack_grad_input,
    settings_of,
    storing_of,
)
from .definition import PITCHED_BY_WORDS, TORCH_DTYPES, Launch, OpDef


def forward(b: Builder, op: Op) -> None:
    reads = (Use(b.input_of(op)), whole(pack_grad_input(b, op)))
    writes = (Use(b.new_output(op)),)
    b.add_pass(op, "forward", reads, writes, params=op.params[1:], flops=_flops(b, op))


def backward(b: Builder, op: Op) -> None:
    dy, value = b.grad_of(op), op.inputs[0]
    dy = add_param_grads(b, op, dy, dy, _grad_weight)
    if b.needs_grad(value):
        k, c, r, s = filter_shape(b, op)
        packed = pack(b, op, "pack", f"packed {op.name}", (k, r, s, c))
        reads = (Use(dy), whole(packed))
        b.add_pass(op, "grad_input", reads, (Use(b.new_grad(value)),), flops=_flops(b, op))


def _grad_weight(b: Builder, op: Op, dy: str) -> None:
    """That of the convolution: the gradient is its input, the input its gradient."""
    weight, (k, c, r, s) = op.params[0], filter_shape(b, op)
    if not b.needs_param_grad(weight):
        return
    plan = grad_weight_plan(
        b.shape(op.output)[1:3], b.shape(op.inputs[0])[1:3], (k, c, r, s),
        **{name: op.attrs[name] for name in GEOMETRY},
        dtype=TORCH_DTYPES[b.dtype], precision=b.precision,
    )  # fmt: skip
    sums = whole(b.add_partials(op, weight, (plan.splits, k, r, s, c)))
    reads, flops = (Use(b.input_of(op)), Use(dy)), _flops(b, op)
    b.add_pass(op, "grad_weight", reads, (sums,), unit=plan.unit, reduction=True, flops=flops)


def _flops(b: Builder, op: Op) -> float:
    _, c, r, s = filter_shape(b, op)
    return 2.0 * prod(b.shape(op.inputs[0])) * c * r * s


def _run_forward(a: Launch) -> None:
    x, packed = a.reads
    a.kernels.conv2d_grad_input(x, packed, a.writes[0], bias=a.params[0], **storing_of(a))


def _run_grad_input(a: Launch) -> None:
    a.kernels.conv2d(*a.reads, None, a.writes[0], **storing_of(a))


def _run_grad_weight(a: Launch) -> None:
    x, dy = a.reads
    a.kernels.conv2d_grad_weight(dy, x, a.writes[0], first=a.start == 0, **settings_of(a))


CONV_TRANSPOSE2D = OpDef(
    kind="conv_transpose2d",
    forward=forward,
    backward=backward,
    roles={
        **ROLES,
        "forward": _run_forward,
        "grad_input": _run_grad_input,
        "grad_weight": _run_grad_weight,
    },
    saves=frozenset({"input"}),
    products=PRODUCTS,
    pitched=PITCHED_BY_WORDS,
)
