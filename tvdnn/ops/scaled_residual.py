"""Branches that are scaled by channel, or dropped by parts, and added to a residual in one pass.

These are the layer scale and the stochastic depth of ConvNeXt, EfficientNet and others. Backward
the branch's gradient drops the same parts. The residual's gradient is the sum's, where it lies.
"""

from ..graph import Network, Op, Use
from ..kernels.language.channel_chunks import num_chunks
from ..kernels.pointwise.dropout_blocks import Drop
from .builder import Builder
from .dropout import run_dropout_parts
from .operator import STRIDED, Launch, Operator
from .passes import channels_of
from .row_tiles import tiles_by_pixel
from .sample_sums import SAMPLE_SUMS, add_grad_input, add_param_grads, add_sums, grad_and_sums


def forward(b: Builder, op: Op) -> None:
    reads = tuple(Use(b.buffer_of[name]) for name in op.inputs)
    y = b.buffer_of.get(op.output) or b.new_output(op)
    b.add_pass(op, "forward", reads, (Use(y),), params=op.params, attrs=channels_of(b, op))


def _hand_on(b: Builder, op: Op) -> bool:
    """Give the residual its gradient. Whether the branch wants one."""
    branch, residual = op.inputs
    if b.needs_grad(residual):
        b.adopt_grad(residual, b.grad_of(op))
    return b.needs_grad(branch)


def _branch_grad(b: Builder, op: Op) -> str:
    """A buffer for the branch's gradient, which is no range.

    Apart, the ops that scale and drop take no ranges. A convolution's bias has another gradient
    where its output's gradient is a range: under tf32 it sums rounded values.
    """
    is_range = b.is_range(b.grad_of(op))
    return b.new_grad(op.inputs[0]) if is_range else b.next_grad(op)


def backward(b: Builder, op: Op) -> None:
    """The residual's gradient lies in its buffer after the branch's is made."""
    if _hand_on(b, op):
        reads, writes = (Use(b.grad_of(op)),), (Use(_branch_grad(b, op)),)
        b.add_pass(op, "grad_input", reads, writes, attrs=channels_of(b, op))


def scaled_backward(b: Builder, op: Op) -> None:
    wanted = b.needs_param_grad(op.params[0])
    if not _hand_on(b, op) and not wanted:
        return
    sums = add_sums(b, op, num_chunks, 1) if wanted else ""
    reads = (*([Use(b.input_of(op))] if wanted else []), Use(b.grad_of(op)))
    add_grad_input(b, op, sums, reads, op.params, _branch_grad)
    if sums:
        add_param_grads(b, op, sums)


def _drop_of(a: Launch) -> Drop | None:
    """The launch's draws; None where nothing is dropped."""
    if "part" not in a.attrs:
        return None
    return Drop(a.control.seed, *(a.attrs[name] for name in ("part", "p", "op_id")), a.first_sample)


def _run_forward(a: Launch) -> None:
    branch, residual, y = map(a.by_pixel, (*a.reads, a.writes[0]))
    scale = a.weight.flatten() if a.params else None
    a.kernels.add_scaled(branch, scale, residual, y, drop=_drop_of(a), precision=a.stored)


def _run_scaled_grad(a: Launch) -> None:
    *read, dy = map(a.by_pixel, a.reads)
    operands = (read[0] if read else None, dy, a.weight.flatten(), *grad_and_sums(a))
    a.kernels.scale_channels_grad(*operands, drop=_drop_of(a), precision=a.stored)


def tiles_of_scaled(network: Network, op: Op) -> int:
    """Of a map with parts that fall whole, none."""
    return 1 if "part" in op.attrs else tiles_by_pixel(network, op)


DROPOUT_PARTS_ADD = Operator(
    "dropout_parts_add",
    forward,
    backward,
    {"forward": _run_forward, "grad_input": run_dropout_parts},
    in_place=True,
    strided=STRIDED,
)
SCALE_CHANNELS_ADD = Operator(
    "scale_channels_add",
    forward,
    scaled_backward,
    {"forward": _run_forward, "grad_input": _run_scaled_grad, **SAMPLE_SUMS},
    saves={"input"},
    strided=STRIDED,
    row_tiles=tiles_of_scaled,
)
