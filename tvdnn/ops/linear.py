"""linear: weights cast where the compute type is not float32; the weight gradient sums over the batch in one launch."""

from ..graph import Kind, Op, Use
from .builder import Builder, numel
from .definition import Launch, OpDef


def forward(b: Builder, op: Op) -> None:
    x, bias = b.home[op.inputs[0]], op.params[1]
    y = b.home[op.output] = b.add_map(op.output, b.shape(op.output))
    weight = _weight(b, op, "cast")
    if weight is None:
        b.add_pass(op, "forward", (Use(x),), (Use(y),), params=op.params, **_work(b, op))
    else:
        b.add_pass(op, "forward", (Use(x), Use(weight, whole=True)), (Use(y),), params=("", bias), flops=_flops(b, op))


def backward(b: Builder, op: Op) -> None:
    x, dy = b.home[op.inputs[0]], b.grad_of(op)
    weight, bias = op.params
    batch = b.batch
    if b.needs_grad(op.inputs[0]):  # first, so that the weight's copy and its gradient are never there together
        _grad_input(b, op)
    if b.needs_param_grad(weight):
        grad = b.new_param_grad(weight)
        write = (Use(grad, whole=True),)
        b.add_pass(op, "grad_weight", (Use(x), Use(dy)), write, unit=batch, reduction=True, flops=_flops(b, op))
    if b.needs_param_grad(bias):
        grad = b.new_param_grad(bias)
        b.add_pass(op, "grad_bias", (Use(dy),), (Use(grad, whole=True),), unit=batch, reduction=True)


def _grad_input(b: Builder, op: Op) -> None:
    cast = _weight(b, op, "cast_grad_input")
    dx = b.new_grad(op.inputs[0])
    reads = (Use(b.grad_of(op)), *(() if cast is None else (Use(cast, whole=True),)))
    params = op.params[:1] if cast is None else ("",)
    b.add_pass(op, "grad_input", reads, (Use(dx),), params=params, **_work(b, op))


def _weight(b: Builder, op: Op, role: str) -> str | None:
    """The copy of the weight in the compute type, made by a pass `role`; None where the parameter serves itself."""
    if b.dtype == "float32":
        return None
    name = b.add_whole(f"{role} {op.name}", Kind.WEIGHT, b.network.params[op.params[0]].shape, b.dtype)
    nbytes = b.param_nbytes(op.params[0])
    b.add_pass(op, role, (), (Use(name, whole=True),), params=op.params[:1], extra_nbytes=nbytes)
    return name


def _flops(b: Builder, op: Op) -> float:
    return 2.0 * b.batch * numel(b.network.params[op.params[0]].shape)


def _work(b: Builder, op: Op) -> dict[str, float]:
    return {"flops": _flops(b, op), "extra_nbytes": b.param_nbytes(op.params[0])}


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
    a.kernels.linear_grad_weight(a.reads[0].flatten(1), a.reads[1], partials, group=group, precision=a.precision)


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
