"""Concatenation and ranges of channels: what does not lie in its range of a map is copied there.

The gradients of branches are ranges of the container's.
"""

from ..graph import Op, Use
from .builder import Builder
from .concat_views import ranges_of
from .gradient_sums import range_of_all
from .operator import PITCHED, Launch, OpDef


def concat_forward(b: Builder, op: Op) -> None:
    y = b.new_output(op)
    away = []
    for name, channels in zip(op.inputs, ranges_of(b.network, op), strict=True):
        source, target = (b.resolved(use) for use in (Use(b.home[name]), Use(y, channels=channels)))
        if target not in (source, *b.copied):
            away.append((source, target))
    if away:
        reads, writes = zip(*away, strict=True)
        b.add_pass(op, "forward", reads, writes)
        b.copied.update(writes)


def concat_backward(b: Builder, op: Op) -> None:
    """Give each branch its range of the gradient, or add that to ranges which they have."""
    dy, total = b.grad_of(op), range_of_all(b, op)
    if total is not None:
        b.add_pass(op, "add_grad", (total, Use(dy)), (total,))
        return
    for name, channels in zip(op.inputs, ranges_of(b.network, op), strict=True):
        if not b.needs_grad(name):
            continue
        if b.is_shared(dy):
            part = Use(dy, channels=channels)
            b.add_pass(op, "grad_input", (part,), (Use(b.new_grad(name)),))
        else:
            b.adopt_grad(name, b.add_range(dy, channels))


def narrow_forward(b: Builder, op: Op) -> None:
    x = Use(b.input_of(op), channels=op.attrs["channels"])
    y = Use(b.new_output(op))
    if b.resolved(x) != b.resolved(y):
        b.add_pass(op, "forward", (x,), (y,))


def narrow_backward(b: Builder, op: Op) -> None:
    """The gradient fills its range of one that others may fill elsewhere, if it does not yet."""
    value, channels, dy = op.inputs[0], op.attrs["channels"], b.resolved(Use(b.grad_of(op)))
    ranged = (dx for dx in b.contributions.get(value, ()) if b.keeps_channels(dx))
    if any(b.resolved(Use(dx, channels=channels)) == dy for dx in ranged):
        return
    dx = b.grad_with_room(value, channels)
    b.add_pass(op, "grad_input", (Use(b.grad_of(op)),), (Use(dx, channels=channels),))


def run_copies(a: Launch) -> None:
    """Copy each read to the write of its place."""
    for src, dst in zip(a.reads, a.writes, strict=True):
        if src.is_contiguous():
            a.kernels.copy_channels(src.view_as(dst), dst)
        else:
            a.kernels.copy_channels(src, dst.view_as(src))


def run_zeros(a: Launch) -> None:
    """Clear the channels that nothing else writes."""
    for dst in a.writes:
        a.kernels.zero_channels(dst)


CONCAT = OpDef(
    kind="concat",
    forward=concat_forward,
    backward=concat_backward,
    roles={"forward": run_copies, "grad_input": run_copies},
    moves=frozenset({"forward", "grad_input"}),
    pitched=PITCHED,
)
NARROW = OpDef(
    kind="narrow",
    forward=narrow_forward,
    backward=narrow_backward,
    roles={"forward": run_copies, "grad_input": run_copies},
    moves=frozenset({"forward", "grad_input"}),
    pitched=PITCHED,
)
