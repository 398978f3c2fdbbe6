"""conv2d: packed weights, per-sample forward and data gradient, weight gradient as partial sums over fixed groups."""

from ..graph import Kind, Op, Use
from ..kernels import conv as conv_kernels
from .builder import RUN_CHUNKS, Builder, numel
from .definition import TORCH_DTYPES, Launch, OpDef

TARGET_PROGRAMS = 512  # programs of a weight gradient's launch over one run: about four waves of an H200's 132 SMs
BIAS_ROWS = 512  # pixels that one program sums for a bias: 1.6 GB then take thousands of programs, not one a section
MIN_SPLIT_PIXELS = 2048  # output pixels below which cutting a partial sum further no longer pays


def forward(b: Builder, op: Op) -> None:
    x, weight, bias = b.home[op.inputs[0]], *op.params
    k, c, r, s = b.network.params[weight].shape
    packed = b.add_whole(f"packed {op.name}", Kind.WEIGHT, (k, r, s, c), b.dtype)
    y = b.home[op.output] = b.add_map(op.output, b.shape(op.output))
    b.add_pass(op, "pack", (), (Use(packed, whole=True),), params=(weight,), extra_nbytes=b.param_nbytes(weight))
    b.add_pass(
        op, "forward", (Use(x), Use(packed, whole=True)), (Use(y),), params=(bias,), flops=_flops(b, op)
    )


def backward(b: Builder, op: Op) -> None:
    if b.needs_grad(op.inputs[0]):
        _pack_grad_input(b, op)
    if b.needs_param_grad(op.params[0]):
        _grad_weight(b, op)
    if b.needs_param_grad(op.params[1]):
        _grad_bias(b, op)
    if b.needs_grad(op.inputs[0]):
        packed, dy = f"packed grad {op.name}", b.grad_of(op)
        dx = b.new_grad(op.inputs[0])
        b.add_pass(op, "grad_input", (Use(dy), Use(packed, whole=True)), (Use(dx),), flops=_flops(b, op))


def _pack_grad_input(b: Builder, op: Op) -> None:
    k, c, r, s = b.network.params[op.params[0]].shape
    groups = op.attrs["groups"]
    shape = (c * groups, r, s, k // groups)
    packed = b.add_whole(f"packed grad {op.name}", Kind.WEIGHT, shape, b.dtype)
    nbytes = b.param_nbytes(op.params[0])
    b.add_pass(op, "pack_grad_input", (), (Use(packed, whole=True),), params=op.params[:1], extra_nbytes=nbytes)


def _grad_weight(b: Builder, op: Op) -> None:
    x, dy = b.home[op.inputs[0]], b.grad_of(op)
    k, c, r, s = b.network.params[op.params[0]].shape
    group, splits = reduction_groups(b, op)
    num_groups = -(-b.batch // group)
    partial = b.add_partials(f"partial {op.params[0]} {op.name}", (num_groups, splits, k, r, s, c))
    b.add_pass(
        op, "grad_weight", (Use(x), Use(dy)), (Use(partial, per=group),), flops=_flops(b, op), unit=group, group=group
    )
    grad = b.new_param_grad(op.params[0])
    b.add_pass(op, "sum_weight", (Use(partial, per=group),), (Use(grad, whole=True),), unit=group, reduction=True)


def _grad_bias(b: Builder, op: Op) -> None:
    dy = b.buffers[b.grad_of(op)]
    group, channels = dy.section, b.shape(op.output)[-1]
    num_groups = -(-b.batch // group)
    splits = max(1, group * numel(dy.shape[1:3]) // BIAS_ROWS)
    slices = b.add_partials(f"slices {op.params[1]} {op.name}", (num_groups, splits, channels))
    partial = b.add_partials(f"partial {op.params[1]} {op.name}", (num_groups, channels))
    writes = (Use(slices, per=group), Use(partial, per=group))
    b.add_pass(op, "grad_bias", (Use(dy.name),), writes, unit=group, group=group)
    grad = b.new_param_grad(op.params[1])
    b.add_pass(op, "sum_bias", (Use(partial, per=group),), (Use(grad, whole=True),), unit=group, reduction=True)


def reduction_groups(b: Builder, op: Op) -> tuple[int, int]:
    """Samples of one partial sum of the weight gradient, and the slices that it is cut into further.

    Fixed by shape, type and chunk size alone: groups are as large as lets a launch over one run start
    `TARGET_PROGRAMS` programs.
    """
    x, dy = b.buffers[b.home[op.inputs[0]]], b.buffers[b.grad_of(op)]
    k, c, r, s = b.network.params[op.params[0]].shape
    tiles = conv_kernels.grad_weight_tiles(k, c, r, s, op.attrs["groups"], TORCH_DTYPES[b.dtype], b.precision)
    unit = max(x.section, dy.section)
    fit = max(1, RUN_CHUNKS * b.chunk_size // max(x.row_nbytes, dy.row_nbytes))
    run = min(max(unit, 1 << (fit.bit_length() - 1)), 1 << max(0, b.batch - 1).bit_length())
    parts = 1 << max(0, -(-TARGET_PROGRAMS // tiles) - 1).bit_length()
    group = min(max(unit, run // parts), run)
    pixels = numel(dy.shape[1:3]) * group
    splits = min(max(1, parts // (run // group)), max(1, pixels // MIN_SPLIT_PIXELS))
    return group, splits


def _flops(b: Builder, op: Op) -> float:
    k, c, r, s = b.network.params[op.params[0]].shape
    return 2.0 * numel(b.shape(op.output)) * c * r * s


def _settings(a: Launch) -> dict[str, object]:
    return {name: a.attrs[name] for name in ("stride", "padding", "dilation", "groups")} | {"precision": a.precision}


def _run_pack(a: Launch) -> None:
    a.kernels.pack_weight(a.params[0], a.writes[0], groups=a.attrs["groups"])


def _run_pack_grad_input(a: Launch) -> None:
    a.kernels.pack_weight_grad_input(a.params[0], a.writes[0], groups=a.attrs["groups"])


def _run_forward(a: Launch) -> None:
    a.kernels.conv2d(a.reads[0], a.reads[1], a.params[0], a.writes[0], **_settings(a))


def _run_grad_input(a: Launch) -> None:
    a.kernels.conv2d_grad_input(a.reads[0], a.reads[1], a.writes[0], **_settings(a))


def _run_grad_weight(a: Launch) -> None:
    partials = a.writes[0]
    group, splits = a.attrs["group"], partials.shape[1]
    a.kernels.conv2d_grad_weight(a.reads[0], a.reads[1], partials, group=group, splits=splits, **_settings(a))


def _run_grad_bias(a: Launch) -> None:
    """Sum slices of each group in parallel, then each group's slices into its partial."""
    slices, partials = a.writes
    a.kernels.conv2d_grad_bias(a.reads[0], slices, group=a.attrs["group"])
    a.kernels.sum_rows(slices.view(-1, slices.shape[2]), partials, group=slices.shape[1])


def run_sum(a: Launch) -> None:
    """Add partial sums, in index order, to a parameter's gradient; the launch that holds the first starts it."""
    a.kernels.sum_partials(a.reads[0], a.writes[0], first=a.start == 0)


CONV2D = OpDef(
    kind="conv2d",
    forward=forward,
    backward=backward,
    roles={
        "pack": _run_pack,
        "forward": _run_forward,
        "pack_grad_input": _run_pack_grad_input,
        "grad_weight": _run_grad_weight,
        "sum_weight": run_sum,
        "grad_bias": _run_grad_bias,
        "sum_bias": run_sum,
        "grad_input": _run_grad_input,
    },
    saves=frozenset({"input"}),
)
