"""linear: weights cast where the type is not float32; the weight gradient is one launch."""

from math import prod

from ..graph import Kind, Op, Use
from .builder import Builder, whole
from .definition import Launch, OpDef


def forward(b: Builder, op: Op) -> None:
    x, bias = b.input_of(op), op.params[1]
    y = b.new_output(op)
    weight = _weight(b, op, "cast")
    if weight is None:
        _add_product(b, op, "forward", (Use(x),), (Use(y),), op.params)
    else:
        reads = (Use(x), whole(weight))
        b.add_pass(op, "forward", reads, (Use(y),), params=("", bias), flops=_flops(b, op))


def backward(b: Builder, op: Op) -> None:
    weight, bias = op.params
    if b.needs_grad(op.inputs[0]):  # first: the weight's copy and its gradient are never together
        _grad_input(b, op)
    if b.needs_param_grad(weight):
        reads, grad = (Use(b.input_of(op)), Use(b.grad_of(op))), b.new_param_grad(weight)
        _add_batch_sum(b, op, "grad_weight", reads, grad, _flops(b, op))
    if b.needs_param_grad(bias):
        _add_batch_sum(b, op, "grad_bias", (Use(b.grad_of(op)),), b.new_param_grad(bias), 0.0)


def _grad_input(b: Builder, op: Op) -> None:
    cast = _weight(b, op, "cast_grad_input")
    dx = b.new_grad(op.inputs[0])
    reads = (Use(b.grad_of(op)), *(() if cast is None else (whole(cast),)))
    params = op.params[:1] if cast is None else ("",)
    _add_product(b, op, "grad_input", reads, (Use(dx),), params)


def _add_product(
    b: Builder,
    op: Op,
    role: str,
    reads: tuple[Use, ...],
    writes: tuple[Use, ...],
    params: tuple[str, ...],
) -> None:
    """A product with the weight, which costs its operations and the weight's bytes."""
    nbytes = b.param_nbytes(op.params[0])
    b.add_pass(op, role, reads, writes, params=params, flops=_flops(b, op), extra_nbytes=nbytes)


def _add_batch_sum(
    b: Builder, op: Op, role: str, reads: tuple[Use, ...], grad: str, flops: float
) -> None:
    """A parameter's gradient, summed over the whole batch in one launch."""
    b.add_pass(op, role, reads, (whole(grad),), unit=b.batch, reduction=True, flops=flops)


def _weight(b: Builder, op: Op, role: str) -> str | None:
    """The weight's copy in the compute type, made by a pass `role`; None where it needs none."""
    if b.dtype == "float32":
        return None
    param = op.params[0]
    name = b.add_whole(f"{role} {op.name}", Kind.WEIGHT, b.param_shape(param), b.dtype)
    nbytes = b.param_nbytes(param)
    b.add_pass(op, role, (), (whole(name),), params=(param,), extra_nbytes=nbytes)
    return name


def _flops(b: Builder, op: Op) -> float:
    return 2.0 * b.batch * prod(b.param_shape(op.params[0]))


def _run_cast(a: Launch) -> None:
    a.kernels.cast(a.params[0], a.writes[0])


def _run_forward(a: Launch) -> None:
    weight = a.params[0] if len(a.reads) == 1 else a.reads[1]
    a.kernels.linear(a.reads[0].flatten(1), weight, a.params[1], a.writes[0], precision=a.precision)


def _run_grad_input(a: Launch) -> None:
    weight = a.params[0] if len(a.reads) == 1 else a.reads[1]
    a.kernels.linear_grad_input(a.reads[0], weight, a.writes[0].flatten(1), precision=a.precision)


def _run_grad_weight(a: Launch) -> None:
    partials = a.writes[0].unsqueeze(0)
    group = a.stop - a.start
    a.kernels.linear_grad_weight(
        a.reads[0].flatten(1), a.reads[1], partials, group=group, precision=a.precision
    )


def _run_grad_bias(a: Launch) -> None:
    a.kernels.linear_grad_bias(a.reads[0], a.writes[0].unsqueeze(0), group=a.stop - a.start)


LINEAR = OpDef(
    kind="linear",
    forward=forward,
    backward=backward,
    roles={
        "cast": _run_cast,
        "cast_grad_input": _run_cast,
        "forward": _run_forward,
        "grad_weight": _run_grad_weight,
        "grad_bias": _run_grad_bias,
        "grad_input": _run_grad_input,
    },
    saves=frozenset({"input"}),
)
