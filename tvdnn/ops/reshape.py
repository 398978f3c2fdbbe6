"""Ops that move, rename or add bytes: view, flatten to torch's order, shuffle, add."""

from ..graph import Op, Use
from .builder import Builder
from .concat_views import Ranges
from .operator import PITCHED, Launch, OpDef, as_maps


def view_forward(b: Builder, op: Op) -> None:
    b.put(op.output, b.add_view(b.input_of(op), b.shape(op.output)))
    b.passes_masks(op)


def view_backward(b: Builder, op: Op) -> None:
    b.hand_mask_on(op)
    (value,) = op.inputs
    b.adopt_grad(value, b.add_view(b.grad_of(op), b.shape(value)))


def moving_forward(b: Builder, op: Op) -> None:
    b.add_pass(op, "forward", (Use(b.input_of(op)),), (Use(b.new_output(op)),))
    b.passes_masks(op)


def moving_backward(b: Builder, op: Op) -> None:
    b.hand_mask_on(op)
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    b.add_pass(op, "grad_input", (Use(dy),), (Use(dx),))


def add_forward(b: Builder, op: Op) -> None:
    reads = tuple(Use(b.home[name]) for name in op.inputs)
    b.add_pass(op, "forward", reads, (Use(b.home[op.output]),))


def add_backward(b: Builder, op: Op) -> None:
    """The gradient of a sum is that of each of its terms, where it lies."""
    for name in op.inputs:
        if b.needs_grad(name):
            b.adopt_grad(name, b.grad_of(op))


def _run_flatten(a: Launch) -> None:
    x, y = as_maps(a.reads[0]), a.writes[0]
    n, h, w, c = x.shape
    a.kernels.unstage(x, y.view(n, c, h, w))


def _run_unflatten(a: Launch) -> None:
    dy, dx = a.reads[0], as_maps(a.writes[0])
    n, h, w, c = dx.shape
    a.kernels.stage(dy.view(n, c, h, w), dx)


def _run_shuffle(a: Launch) -> None:
    x, y = a.reads[0], a.writes[0]
    a.kernels.shuffle_channels(x.view(y.shape), y, **a.settings("groups"))


def _run_unshuffle(a: Launch) -> None:
    dy, dx = a.reads[0], a.writes[0]
    groups = dy.shape[3] // a.attrs["groups"]
    a.kernels.shuffle_channels(dy, dx.view(dy.shape), groups=groups)


def run_add(a: Launch) -> None:
    a.kernels.add(*a.reads_alike(), a.writes[0], precision=a.stored)


VIEW = OpDef(
    kind="view",
    forward=view_forward,
    backward=view_backward,
    roles={},
    pitched=Ranges(frozenset({"gradient"})),
)
FLATTEN = OpDef(
    kind="flatten",
    forward=moving_forward,
    backward=moving_backward,
    roles={"forward": _run_flatten, "grad_input": _run_unflatten},
    moves=frozenset({"forward", "grad_input"}),
    pitched=PITCHED,
)
SHUFFLE_CHANNELS = OpDef(
    kind="shuffle_channels",
    forward=moving_forward,
    backward=moving_backward,
    roles={"forward": _run_shuffle, "grad_input": _run_unshuffle},
    moves=frozenset({"forward", "grad_input"}),
    pitched=PITCHED,
)
ADD = OpDef(
    kind="add",
    forward=add_forward,
    backward=add_backward,
    roles={"forward": run_add},
    elementwise=True,
    pitched=PITCHED,
)
