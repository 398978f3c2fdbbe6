"""Ops that move or rename bytes: view, flatten to torch's order, and the sum of gradients."""

from ..graph import Op, Use
from .builder import Builder
from .definition import Launch, OpDef


def view_forward(b: Builder, op: Op) -> None:
    b.home[op.output] = b.input_of(op)
    b.passes_masks(op)


def view_backward(b: Builder, op: Op) -> None:
    b.hand_mask_on(op)
    b.adopt_grad(op.inputs[0], b.grad_of(op))


def flatten_forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.new_output(op)),))
    b.passes_masks(op)


def flatten_backward(b: Builder, op: Op) -> None:
    b.hand_mask_on(op)
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    b.add_pass(op, "grad_input", (Use(dy),), (Use(dx),))


def add_grads(b: Builder, op: Op) -> None:
    """Sum the contributions to the gradient of the op's output into the first, in their order."""
    first, *others = b.contributions[op.output]
    for other in others:
        b.add_pass(op, "add_grad", (Use(first), Use(other)), (Use(first),))
    b.contributions[op.output] = [first]


def _run_flatten(a: Launch) -> None:
    x, y = a.reads[0], a.writes[0]
    n, h, w, c = x.shape
    a.kernels.unstage(x, y.view(n, c, h, w))


def _run_unflatten(a: Launch) -> None:
    dy, dx = a.reads[0], a.writes[0]
    n, h, w, c = dx.shape
    a.kernels.stage(dy.view(n, c, h, w), dx)


def run_add(a: Launch) -> None:
    a.kernels.add(a.reads[0], a.reads[1], a.writes[0])


VIEW = OpDef(kind="view", forward=view_forward, backward=view_backward, roles={})
FLATTEN = OpDef(
    kind="flatten",
    forward=flatten_forward,
    backward=flatten_backward,
    roles={"forward": _run_flatten, "grad_input": _run_unflatten},
)
