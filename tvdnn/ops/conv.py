"""conv2d: packed weights, per-sample forward and data gradient, weight gradient in partial sums.

Fused with a ReLU it takes its gradient masked; with pooling besides, it un-pools the gradient of
what it kept into a map that lives as long as the block of samples that its layer is at.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

from ..graph import Kind, Op, Use
from ..kernels.conv_grad_weight_groups import grad_weight_tiles
from .activation import behind_relu, run_mask
from .builder import Builder, whole
from .definition import TORCH_DTYPES, Launch, OpDef
from .pool import add_codes, codes_of

TARGET_PROGRAMS = 512  # of a weight gradient's launch over a run: four waves of an H200's 132 SMs
BIAS_ROWS = 512  # pixels that a program sums for a bias: 1.6 GB take thousands, not one a section
POOL: Mapping[str, Any] = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
MIN_SPLIT_PIXELS = 2048  # output pixels below which cutting a partial sum further no longer pays


def forward(b: Builder, op: Op) -> None:
    _product(b, op, b.new_output(op))


def forward_relu(b: Builder, op: Op) -> None:
    forward(b, op)
    b.rectified[op.output] = 1.0


def forward_relu_max_pool2d(b: Builder, op: Op) -> None:
    _product(b, op, b.new_output(op), add_codes(b, op, prod(POOL["kernel"])))
    b.rectified[op.output] = 1.0


def _product(b: Builder, op: Op, *written: str) -> None:
    """The convolution, and what is fused with it."""
    x, (weight, bias) = b.input_of(op), op.params
    k, c, r, s = b.param_shape(weight)
    packed = _pack(b, op, "pack", f"packed {op.name}", (k, r, s, c))
    writes = tuple(Use(name) for name in written)
    reads = (Use(x), whole(packed))
    b.add_pass(op, "forward", reads, writes, params=(bias,), flops=_flops(b, op))


def backward(b: Builder, op: Op) -> None:
    _gradients(b, op, b.grad_of)


def backward_relu(b: Builder, op: Op) -> None:
    _gradients(b, op, partial(behind_relu, b))


def backward_relu_max_pool2d(b: Builder, op: Op) -> None:
    _gradients(b, op, partial(_unpooled, b))


def _gradients(b: Builder, op: Op, product_grad: Callable[[Op], str]) -> None:
    """The passes behind the gradient of the convolution alone, which `product_grad` makes."""
    packed = _pack_grad_input(b, op) if b.needs_grad(op.inputs[0]) else None
    dy = product_grad(op)
    if b.needs_param_grad(op.params[0]):
        _grad_weight(b, op, dy)
    if b.needs_param_grad(op.params[1]):
        _grad_bias(b, op, dy)
    if packed is not None:
        mask = b.mask_of(op.inputs[0])
        reads, dx = (Use(dy), whole(packed), *mask), b.new_grad(op.inputs[0])
        b.add_pass(op, "grad_input", reads, (Use(dx),), flops=_flops(b, op))


def _unpooled(b: Builder, op: Op) -> str:
    """The gradient of the map that is pooled."""
    dy = behind_relu(b, op)
    name = b.add_map(f"grad {op.name}", _map_shape(b, op), Kind.GRAD)
    b.add_pass(op, "unpool", (Use(dy), Use(codes_of(op))), (Use(name),))
    return name


def _map_shape(b: Builder, op: Op) -> tuple[int, ...]:
    """The shape of what the convolution alone makes."""
    n, p, q, k = b.shape(op.output)
    return (n, *op.attrs.get("sides", (p, q)), k)


def _pack_grad_input(b: Builder, op: Op) -> str:
    k, c, r, s = b.param_shape(op.params[0])
    groups = op.attrs["groups"]
    shape = (c * groups, r, s, k // groups)
    return _pack(b, op, "pack_grad_input", f"packed grad {op.name}", shape)


def _pack(b: Builder, op: Op, role: str, name: str, shape: tuple[int, ...]) -> str:
    """A copy of the weight in the compute type and the order that a product wants."""
    packed = whole(b.add_whole(name, Kind.WEIGHT, shape, b.dtype))
    weight = op.params[0]
    nbytes = b.param_nbytes(weight)
    b.add_pass(op, role, (), (packed,), params=(weight,), extra_nbytes=nbytes)
    return name


def _grad_weight(b: Builder, op: Op, dy: str) -> None:
    weight = op.params[0]
    k, c, r, s = b.param_shape(weight)
    group, splits = reduction_groups(b, op, dy)
    shape = (-(-b.batch // group), splits, k, r, s, c)
    partial = Use(b.add_partials(f"partial {weight} {op.name}", shape), per=group)
    reads = (Use(b.input_of(op)), Use(dy))
    flops = _flops(b, op)
    b.add_pass(op, "grad_weight", reads, (partial,), flops=flops, unit=group, group=group)
    _sum_partials(b, op, "sum_weight", partial, weight)


def _grad_bias(b: Builder, op: Op, grad: str) -> None:
    bias, dy = op.params[1], b.buffers[grad]
    group, channels = dy.section, b.shape(op.output)[-1]
    num_groups = -(-b.batch // group)
    splits = max(1, group * prod(dy.shape[1:3]) // BIAS_ROWS)
    slices = b.add_partials(f"slices {bias} {op.name}", (num_groups, splits, channels))
    partial = b.add_partials(f"partial {bias} {op.name}", (num_groups, channels))
    writes = (Use(slices, per=group), Use(partial, per=group))
    b.add_pass(op, "grad_bias", (Use(dy.name),), writes, unit=group, group=group)
    _sum_partials(b, op, "sum_bias", writes[1], bias)


def _sum_partials(b: Builder, op: Op, role: str, partial: Use, param: str) -> None:
    grad = whole(b.new_param_grad(param))
    b.add_pass(op, role, (partial,), (grad,), unit=partial.per, reduction=True)


def reduction_groups(b: Builder, op: Op, grad: str) -> tuple[int, int]:
    """Samples of one partial sum of the weight gradient, and the slices that it is cut into.

    Fixed by shape, type and chunk size alone: groups are as large as lets a launch over one run
    start `TARGET_PROGRAMS` programs.
    """
    x, dy = b.buffers[b.input_of(op)], b.buffers[grad]
    run = b.run_rows(x.name, dy.name)
    parts = 1 << max(0, -(-TARGET_PROGRAMS // _num_tiles(b, op)) - 1).bit_length()
    group = min(max(x.section, dy.section, run // parts), run)
    pixels = prod(dy.shape[1:3]) * group
    splits = min(max(1, parts // (run // group)), max(1, pixels // MIN_SPLIT_PIXELS))
    return group, splits


def _num_tiles(b: Builder, op: Op) -> int:
    """Programs that one partial sum of the weight gradient takes."""
    shape, groups = b.param_shape(op.params[0]), op.attrs["groups"]
    dtype = TORCH_DTYPES[b.dtype]
    tiles: int = grad_weight_tiles(*shape, groups, dtype, b.precision)
    return tiles


def _flops(b: Builder, op: Op) -> float:
    _, c, r, s = b.param_shape(op.params[0])
    return 2.0 * prod(_map_shape(b, op)) * c * r * s


def _settings(a: Launch) -> dict[str, Any]:
    settings = a.settings("stride", "padding", "dilation", "groups")
    return settings | {"precision": a.precision}


def _run_pack(a: Launch) -> None:
    a.kernels.pack_weight(a.params[0], a.writes[0], **a.settings("groups"))


def _run_pack_grad_input(a: Launch) -> None:
    a.kernels.pack_weight_grad_input(a.params[0], a.writes[0], **a.settings("groups"))


def _run_forward(a: Launch) -> None:
    a.kernels.conv2d(a.reads[0], a.reads[1], a.params[0], a.writes[0], **_settings(a))


def _run_forward_relu(a: Launch) -> None:
    x, packed = a.reads
    a.kernels.conv2d(x, packed, a.params[0], a.writes[0], relu=True, **_settings(a))


def _run_forward_relu_max_pool2d(a: Launch) -> None:
    x, packed = a.reads
    a.kernels.conv2d_max_pool(x, packed, a.params[0], *a.writes, relu=True, **_settings(a))


def _run_unpool(a: Launch) -> None:
    a.kernels.max_unpool2d(*a.reads, a.writes[0], **POOL)


def _run_grad_input(a: Launch) -> None:
    dy, packed, *mask = a.reads
    by = {"mask": mask[0]} if mask else {}
    a.kernels.conv2d_grad_input(dy, packed, a.writes[0], **by, **_settings(a))


def _run_grad_weight(a: Launch) -> None:
    partials = a.writes[0]
    group, splits = a.attrs["group"], partials.shape[1]
    a.kernels.conv2d_grad_weight_groups(
        a.reads[0], a.reads[1], partials, group=group, splits=splits, **_settings(a)
    )


def _run_grad_bias(a: Launch) -> None:
    """Sum slices of each group in parallel, then each group's slices into its partial."""
    slices, partials = a.writes
    a.kernels.conv2d_grad_bias_groups(a.reads[0], slices, group=a.attrs["group"])
    a.kernels.sum_rows(slices.view(-1, slices.shape[2]), partials, group=slices.shape[1])


def _run_sum(a: Launch) -> None:
    """Add partial sums in index order to a gradient, which the launch with the first one starts."""
    a.kernels.sum_partials(a.reads[0], a.writes[0], first=a.start == 0)


_ROLES: Mapping[str, Callable[[Launch], None]] = {
    "pack": _run_pack,
    "forward": _run_forward,
    "pack_grad_input": _run_pack_grad_input,
    "grad_weight": _run_grad_weight,
    "sum_weight": _run_sum,
    "grad_bias": _run_grad_bias,
    "sum_bias": _run_sum,
    "grad_input": _run_grad_input,
}
CONV2D = OpDef(
    kind="conv2d",
    forward=forward,
    backward=backward,
    roles=_ROLES,
    saves=frozenset({"input"}),
)
CONV2D_RELU = OpDef(
    kind="conv2d_relu",
    forward=forward_relu,
    backward=backward_relu,
    roles={**_ROLES, "forward": _run_forward_relu, "mask": run_mask},
    saves=frozenset({"input", "output"}),
)
CONV2D_RELU_MAX_POOL2D = OpDef(
    kind="conv2d_relu_max_pool2d",
    forward=forward_relu_max_pool2d,
    backward=backward_relu_max_pool2d,
    roles={
        **_ROLES,
        "forward": _run_forward_relu_max_pool2d,
        "mask": run_mask,
        "unpool": _run_unpool,
    },
    saves=frozenset({"input", "output"}),
)
