"""Maps times, or plus, a value for each channel: a parameter, or another map of one pixel.

One pass makes the map's gradient and, of every sample, the sums that the values' adds up from. A
product may be added to a residual and rectified in its own pass; backward the ReLU masks the
gradient in the pass of the product, and the masked gradient is the residual's.
"""

from dataclasses import replace
from functools import partial

import torch

from ..graph import Op, Use
from ..kernels.codec.sign_bits import BYTE
from ..kernels.language.channel_chunks import num_chunks
from ..kernels.pointwise.channel_broadcast import gate_slices
from .activation import behind_relu, buffer_behind_relu, run_mask
from .builder import Builder
from .operator import STRIDED, Launch, Operator, by_pixel
from .passes import channels_of, forward, forward_by_pixel
from .remade_maps import lies_in_source
from .row_tiles import tiles_by_pixel
from .sample_sums import SAMPLE_SUMS, add_param_grads, add_sums
from .squeeze import add_reader, split_reads, squeezed_source, unstored_source


def multiply_forward(b: Builder, op: Op) -> None:
    """The product, if its reader does not make it as it loads it."""
    if op.inputs[0] in b.normalized_by_readers or not lies_in_source(b, op):
        _add_product(b, op, Use(b.new_output(op)))


def multiply_backward(b: Builder, op: Op) -> None:
    wanted = b.needs_grad(op.inputs[0])
    _add_product_grads(b, op, Use(b.next_grad(op)) if wanted else None)


def multiply_add_forward(b: Builder, op: Op) -> None:
    y = Use(b.new_output(op))
    if _has_relu(op) and b.needs_grad(op.output):
        b.relus_by_signs.add(op.output)
        y = replace(y, also=b.bits_of(op.output))
    _add_product(b, op, y)


def multiply_add_backward(b: Builder, op: Op) -> None:
    """The residual's gradient is that of the sum, where it lies, masked behind a ReLU."""
    x, _, residual = op.inputs
    dy, (grad, mask), kept = b.grad_of(op), _masked(b, op), b.needs_grad(residual)
    if kept:
        b.adopt_grad(residual, grad)
    dx = None
    if b.needs_grad(x):
        apart = kept or not b.may_hand_on(grad, x)
        dx = Use(b.new_grad(x) if apart else b.adopt_grad(x, grad))
    masked = Use(grad) if mask and kept else None
    _add_product_grads(b, op, dx, Use(dy if mask else grad), mask, masked)


def _has_relu(op: Op) -> bool:
    return op.kind == "gate_multiply_add_relu"


def _masked(b: Builder, op: Op) -> tuple[str, tuple[Use, ...]]:
    """The buffer for the gradient behind the ReLU, if any, and the mask where it is yet to be made.

    It is masked in a pass of its own where a map is a range. The sums of gates read whole ones.
    """
    dy = b.grad_of(op)
    if not _has_relu(op) or op.output in b.masked_gradients:
        return dy, ()
    if b.is_range(dy) or b.is_range(b.buffer_of[op.output]):
        return behind_relu(b, op), ()
    return buffer_behind_relu(b, op), (b.signs_of(op.output),)


def _add_product(b: Builder, op: Op, y: Use) -> None:
    """The pass forward of a product, which may also add a residual and rectify."""
    reads = [Use(b.buffer_of[name]) for name in op.inputs]
    source = unstored_source(b, op.inputs[0])
    add_reader(b, op, "forward", source, reads, (y,), channels_of(b, op))


def _add_product_grads(
    b: Builder, op: Op, dx: Use | None, dy: Use | None = None, mask: tuple[Use, ...] = (),
    masked: Use | None = None,
) -> None:  # fmt: skip
    """The passes of the gradients of a map and its gates, and of the masked gradient."""
    x, gates = op.inputs[:2]
    sums = add_sums(b, op, gate_slices) if b.needs_grad(gates) else ""
    source = squeezed_source(b, x) if sums else None
    maps = [source.map if source else b.buffer_of[x]] if sums else []
    writes = [*([Use(sums)] if sums else []), *(each for each in (dx, masked) if each is not None)]
    attrs = channels_of(b, op) | {"leaves_sums": bool(sums), "leaves_masked": masked is not None}
    reads = (*map(Use, (*maps, b.buffer_of[gates])), dy or Use(b.grad_of(op)), *mask)
    if writes:
        add_reader(b, op, "grad_input", source, reads, writes, attrs)
    if sums:
        _add_values_grad(b, op, sums)


def add_backward(b: Builder, op: Op) -> None:
    """The map's gradient is the sum's, where it lies."""
    x, gates = op.inputs
    if b.needs_grad(x):
        b.adopt_grad(x, b.grad_of(op))
    if b.needs_grad(gates):
        _add_values_grad(b, op, _slices(b, op))


def channel_add_backward(b: Builder, op: Op) -> None:
    """The map's gradient is the sum's, where it lies."""
    if b.needs_param_grad(op.params[0]):
        add_param_grads(b, op, _slices(b, op, 1))
    if b.needs_grad(op.inputs[0]):
        b.adopt_grad(op.inputs[0], b.grad_of(op))


def _slices(b: Builder, op: Op, *kinds: int) -> str:
    """The sums of the gradient over slices of pixels."""
    sums = add_sums(b, op, gate_slices, *kinds)
    b.add_pass(op, "slices", (Use(b.grad_of(op)),), (Use(sums),), attrs=channels_of(b, op))
    return sums


def scale_backward(b: Builder, op: Op) -> None:
    """Only the parameter's gradient needs the input."""
    dy, wanted = b.grad_of(op), b.needs_grad(op.inputs[0])
    if not b.needs_param_grad(op.params[0]):
        b.add_pass(op, "grad_input", (Use(dy),), (Use(b.next_grad(op)),), params=op.params)
        return
    sums = add_sums(b, op, num_chunks, 1)
    writes = (Use(sums), *((Use(b.next_grad(op)),) if wanted else ()))
    b.add_pass(op, "grad_sums", (Use(b.input_of(op)), Use(dy)), writes, params=op.params)
    add_param_grads(b, op, sums)


def _add_values_grad(b: Builder, op: Op, sums: str) -> None:
    b.add_pass(op, "grad_gate", (Use(sums),), (Use(b.new_grad(op.inputs[1])),))


def _run_add(a: Launch) -> None:
    x, values = (*a.reads, *(each for each in a.params if each is not None))
    operands = (a.by_pixel(x), values.view(-1, a.attrs["channels"]), a.by_pixel(a.writes[0]))
    a.kernels.gate(*operands, function="add", precision=a.stored)


def _run_product(a: Launch, *, relu: bool = False) -> None:
    (x, gates, *residual), made_by = split_reads(a)
    y, *signs = a.writes
    added = a.by_pixel(residual[0]) if residual else None
    bits = by_pixel(signs[0], a.attrs["channels"] // BYTE) if signs else None
    operands = (a.by_pixel(x), gates.flatten(1), a.by_pixel(y), added, bits)
    a.kernels.gate(*operands, relu=relu, made_by=made_by, precision=a.stored)


def _run_grad_input(a: Launch) -> None:
    reads, made_by = split_reads(a)
    x = a.by_pixel(reads.pop(0)) if a.attrs["leaves_sums"] else None
    gates, dy, *mask = reads
    rounded = a.rounded or (None,) * len(a.writes)
    written = list(zip(a.writes, rounded, strict=True))
    sums, _ = written.pop(0) if a.attrs["leaves_sums"] else (None, None)
    masked, masked_rounded = written.pop() if a.attrs["leaves_masked"] else (None, None)
    dx, dx_rounded = written.pop() if written else (None, None)
    output = None
    if mask:
        bits = BYTE if mask[0].dtype == torch.uint8 else 1
        output = by_pixel(mask[0], a.attrs["channels"] // bits)
    dx, masked = (None if each is None else a.by_pixel(each) for each in (dx, masked))
    operands = (x, gates.flatten(1), a.by_pixel(dy), dx, sums, output, masked)
    a.kernels.gate_grad(
        *operands,
        made_by=made_by,
        precision=a.precision if dx_rounded else "ieee",
        masked_precision=a.precision if masked_rounded else "ieee",
    )


def _run_slices(a: Launch) -> None:
    sums = a.writes[0].flatten(1, -2)
    a.kernels.gate_grad(None, None, a.by_pixel(a.reads[0]), None, sums)


def _run_values_grad(a: Launch) -> None:
    a.kernels.sum_slices(a.reads[0], a.writes[0].flatten(1), precision=a.stored)


def _run_scale(a: Launch) -> None:
    scale = a.weight.flatten()
    x, y = (by_pixel(maps, scale.numel()) for maps in (*a.reads, *a.writes))
    a.kernels.scale_channels(x, scale, y, precision=a.stored)


def _run_scale_grad(a: Launch) -> None:
    scale, (sums, *written) = a.weight.flatten(), a.writes
    x, dy, *dx = (by_pixel(maps, scale.numel()) for maps in (*a.reads, *written))
    a.kernels.scale_channels_grad(x, dy, scale, dx[0] if dx else None, sums, precision=a.stored)


GATE_MULTIPLY = Operator(
    "gate_multiply",
    multiply_forward,
    multiply_backward,
    {"forward": _run_product, "grad_input": _run_grad_input, "grad_gate": _run_values_grad},
    saves={"input"},
    strided=STRIDED,
)
GATE_MULTIPLY_ADD = GATE_MULTIPLY.untraced(
    "gate_multiply_add", forward=multiply_add_forward, backward=multiply_add_backward
)
GATE_MULTIPLY_ADD_RELU = GATE_MULTIPLY_ADD.untraced(
    "gate_multiply_add_relu",
    launches={
        **GATE_MULTIPLY.launches,
        "forward": partial(_run_product, relu=True),
        "mask": run_mask,
    },
    saves={"input", "output"},
    not_negative={"forward"},
)
GATE_ADD = Operator(
    "gate_add",
    forward_by_pixel,
    add_backward,
    {"forward": _run_add, "slices": _run_slices, "grad_gate": _run_values_grad},
)
CHANNEL_ADD = Operator(
    "channel_add",
    forward_by_pixel,
    channel_add_backward,
    {"forward": _run_add, "slices": _run_slices, **SAMPLE_SUMS},
    takes_views=True,
)
SCALE_CHANNELS = Operator(
    "scale_channels",
    forward,
    scale_backward,
    {"forward": _run_scale, "grad_input": _run_scale, "grad_sums": _run_scale_grad, **SAMPLE_SUMS},
    saves={"input"},
    row_tiles=tiles_by_pixel,
    takes_views=True,
)
