"""What becomes of a parameter's gradient: an update at once, or a sum kept for a later update."""

from ..graph import Direction, Op, Use
from .builder import Builder
from .definition import Launch, OpDef


def add_param_grads(b: Builder, op: Op, param: str) -> str:
    """The buffer with the whole gradient of a parameter, tied uses summed in the order of their backward."""
    first, *others = b.param_grads[param]
    for other in others:
        whole = (Use(first, whole=True), Use(other, whole=True))
        b.add_pass(op, "add_grad", whole, (Use(first, whole=True),))
    return first


def update(b: Builder, op: Op, param: str, role: str) -> None:
    """Add a pass that consumes the gradient of `param`: `update` applies it, `accumulate` adds it to a kept sum."""
    grad = add_param_grads(b, op, param)
    direction, b.direction = b.direction, Direction.UPDATE
    b.add_pass(op, role, (Use(grad, whole=True),), (), updates=(param,), extra_nbytes=4 * b.param_nbytes(param))
    b.direction = direction


def _run_update(a: Launch) -> None:
    param, momentum = a.updates
    settings = {"nesterov": a.attrs["nesterov"], "maximize": a.attrs["maximize"]}
    a.kernels.sgd(param, a.reads[0], momentum, a.control.sgd, **settings)


def _run_accumulate(a: Launch) -> None:
    total = a.updates[0]
    a.kernels.add(total, a.reads[0], total)


def _nothing(b: Builder, op: Op) -> None:
    """Updates are added by `update`, not by an op of the network."""


SGD_UPDATE = OpDef(
    kind="sgd",
    forward=_nothing,
    backward=_nothing,
    roles={"update": _run_update, "accumulate": _run_accumulate},
)
