"""conv_transpose2d: a convolution whose forward pass and data gradient change places.

Its weight [C, K/g, R, S] is that of the convolution which makes C channels out of K.
"""

from math import prod

from ..graph import Op, Use
from .builder import Builder, whole
from .conv import (
    PRODUCTS,
    ROLES,
    add_param_grads,
    filter_shape,
    grad_halo_of,
    halo_of,
    pack,
    pack_grad_input,
    run_grad_weight,
    spreading_of,
    storing_of,
    weight_plan,
)
from .operator import PITCHED_BY_WORDS, Launch, OpDef


def forward(b: Builder, op: Op) -> None:
    reads = (Use(b.input_of(op), halo=grad_halo_of(b, op)), whole(pack_grad_input(b, op)))
    writes = (Use(b.new_output(op)),)
    b.add_pass(op, "forward", reads, writes, params=op.params[1:], flops=_flops(b, op))


def backward(b: Builder, op: Op) -> None:
    dy, value = b.grad_of(op), op.inputs[0]
    dy = add_param_grads(b, op, dy, dy, _grad_weight)
    if b.needs_grad(value):
        k, c, r, s = filter_shape(b, op)
        packed = pack(b, op, "pack", f"packed {op.name}", (k, r, s, c))
        reads = (Use(dy, halo=halo_of(b, op)), whole(packed))
        b.add_pass(op, "grad_input", reads, (Use(b.new_grad(value)),), flops=_flops(b, op))


def _grad_weight(b: Builder, op: Op, dy: str) -> None:
    """That of the convolution: the gradient is its input, the input its gradient."""
    weight, (k, c, r, s) = op.params[0], filter_shape(b, op)
    if not b.needs_param_grad(weight):
        return
    (_, *out_sides, _), (_, *in_sides, _) = b.shape(op.output), b.shape(op.inputs[0])
    reads = (Use(b.input_of(op)), Use(dy, halo=halo_of(b, op)))
    plan = weight_plan(b, op, (out_sides[0], out_sides[1]), (in_sides[0], in_sides[1]), reads)
    sums, flops = whole(b.add_partials(op, weight, (plan.splits, k, r, s, c))), _flops(b, op)
    b.add_pass(op, "grad_weight", reads, (sums,), unit=plan.unit, reduction=True, flops=flops)


def _flops(b: Builder, op: Op) -> float:
    _, c, r, s = filter_shape(b, op)
    return 2.0 * prod(b.shape(op.inputs[0])) * c * r * s


def _run_forward(a: Launch) -> None:
    x, packed = a.reads
    a.kernels.conv2d_grad_input(x, packed, a.writes[0], bias=a.params[0], **spreading_of(a))


def _run_grad_input(a: Launch) -> None:
    a.kernels.conv2d(*a.reads, None, a.writes[0], **storing_of(a))


def _run_grad_weight(a: Launch) -> None:
    x, dy = a.reads
    run_grad_weight(a, dy, x)


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
