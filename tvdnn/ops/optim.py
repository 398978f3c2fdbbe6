"""What becomes of a parameter's gradient: an update at once, or a sum kept for a later update."""

from ..graph import Direction, Op
from .builder import Builder, whole
from .definition import Launch, OpDef


def add_param_grads(b: Builder, op: Op, param: str) -> str:
    """The buffer with a parameter's whole gradient, tied uses summed in order of their backward."""
    first, *others = b.param_grads[param]
    for other in others:
        b.add_pass(op, "add_grad", (whole(first), whole(other)), (whole(first),))
    return first


def update(b: Builder, op: Op, param: str, role: str) -> None:
    """Add a pass that consumes a parameter's gradient: "update" applies, "accumulate" sums it."""
    grad = add_param_grads(b, op, param)
    direction, b.direction = b.direction, Direction.UPDATE
    traffic = 4 * b.param_nbytes(param)  # parameter and momentum, read and written
    b.add_pass(op, role, (whole(grad),), (), updates=(param,), extra_nbytes=traffic)
    b.direction = direction


def _run_update(a: Launch) -> None:
    param, momentum = a.updates
    settings = a.settings("nesterov", "maximize")
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
