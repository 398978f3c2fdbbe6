"""Concatenation and ranges of channels: copies into and out of channel ranges of one map."""

from itertools import accumulate, pairwise

from ..graph import Op, Use
from .builder import Builder
from .definition import Launch, OpDef

Range = tuple[int, int]


def concat_forward(b: Builder, op: Op) -> None:
    y = b.new_output(op)
    reads = tuple(Use(b.home[name]) for name in op.inputs)
    writes = tuple(Use(y, channels=channels) for channels in _ranges(b, op))
    b.add_pass(op, "forward", reads, writes)


def concat_backward(b: Builder, op: Op) -> None:
    dy, parts = b.grad_of(op), zip(op.inputs, _ranges(b, op), strict=True)
    wanted = [(name, channels) for name, channels in parts if b.needs_grad(name)]
    reads = tuple(Use(dy, channels=channels) for _, channels in wanted)
    writes = tuple(Use(b.new_grad(name)) for name, _ in wanted)
    b.add_pass(op, "grad_input", reads, writes)


def narrow_forward(b: Builder, op: Op) -> None:
    x = Use(b.input_of(op), channels=op.attrs["channels"])
    b.add_pass(op, "forward", (x,), (Use(b.new_output(op)),))


def narrow_backward(b: Builder, op: Op) -> None:
    """The gradient fills its range of one that others may fill elsewhere."""
    value, channels = op.inputs[0], op.attrs["channels"]
    dx = b.grad_with_room(value, channels)
    b.add_pass(op, "grad_input", (Use(b.grad_of(op)),), (Use(dx, channels=channels),))


def _ranges(b: Builder, op: Op) -> list[Range]:
    """The channels of the output that each input fills."""
    widths = (b.shape(name)[-1] for name in op.inputs)
    return list(pairwise(accumulate(widths, initial=0)))


def run_copies(a: Launch) -> None:
    """Copy each read to the write of its place."""
    for src, dst in zip(a.reads, a.writes, strict=True):
        a.kernels.copy_channels(src.view_as(dst) if src.is_contiguous() else src, dst)


def run_zeros(a: Launch) -> None:
    """Clear the channels that nothing else writes."""
    for dst in a.writes:
        a.kernels.zero_channels(dst)


CONCAT = OpDef(
    kind="concat",
    forward=concat_forward,
    backward=concat_backward,
    roles={"forward": run_copies, "grad_input": run_copies},
)
NARROW = OpDef(
    kind="narrow",
    forward=narrow_forward,
    backward=narrow_backward,
    roles={"forward": run_copies, "grad_input": run_copies},
)
