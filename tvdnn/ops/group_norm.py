"""Group normalization, and instance normalization, whose groups are single channels.

Forward keeps the groups' statistics for backward. Backward leaves sums of every sample, which add
up to the parameters' gradients.
"""

from math import prod

from torch.fx import Node

from ..graph import Kind, Op, Use
from ..kernels.language.channel_chunks import num_chunks
from .builder import Builder
from .operator import Launch, Operator
from .passes import channels_of
from .reshape_translator import by_map
from .sample_sums import SAMPLE_SUMS, add_param_grads
from .traced_op import Shape, TracedOp, UnsupportedCallError


def group_norm(
    out: Shape,
    x: Node,
    num_groups: int,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> TracedOp:
    attrs = {"groups": num_groups, "eps": float(eps)}
    return by_map(out, TracedOp("group_norm", (x,), (weight, bias), attrs))


def instance_norm(
    out: Shape,
    x: Node,
    running_mean: Node | None = None,
    running_var: Node | None = None,
    weight: Node | None = None,
    bias: Node | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> TracedOp:
    if running_mean is not None or not use_input_stats:
        raise UnsupportedCallError(
            "instance_norm with running statistics (it takes track_running_stats=False)"
        )
    return group_norm(out, x, out[1], weight, bias, eps)


def forward(b: Builder, op: Op) -> None:
    """Reads the map twice."""
    x, y = b.input_of(op), b.new_output(op)
    writes = (
        Use(y),
        Use(_by_group(b, op, _moments_of(op), y)),
        Use(_by_chunk(b, op, f"partial moments {op.name}", y)),
    )
    again, attrs = b.buffers[x].nbytes, channels_of(b, op)
    b.add_pass(op, "forward", (Use(x),), writes, params=op.params, extra_nbytes=again, attrs=attrs)


def backward(b: Builder, op: Op) -> None:
    """Reads map and gradient, and both again for the input's gradient."""
    dy = b.grad_of(op)
    reads = (Use(b.input_of(op)), Use(dy), Use(_moments_of(op)))
    sums = _by_chunk(b, op, f"sums {op.name}", dy)
    writes = [Use(sums)]
    if b.needs_grad(op.inputs[0]):
        slopes = _by_group(b, op, f"slopes {op.name}", dy)
        writes += [Use(b.next_grad(op)), Use(slopes)]
    again, attrs = sum(b.buffers[use.buffer].nbytes for use in reads), channels_of(b, op)
    b.add_pass(
        op, "grad_input", reads, writes, params=op.params[:1], extra_nbytes=again, attrs=attrs
    )
    add_param_grads(b, op, sums)


def _moments_of(op: Op) -> str:
    return f"group moments {op.name}"


def _by_group(b: Builder, op: Op, name: str, beside: str) -> str:
    """Two values by sample and group, in sections of the map `beside`."""
    shape = (b.batch, op.attrs["groups"], 2)
    return b.add_map(name, shape, Kind.AUX, "float32", b.buffers[beside].section)


def _by_chunk(b: Builder, op: Op, name: str, beside: str) -> str:
    """Two values by chunk of a sample and channel."""
    _, *sides, channels = b.shape(op.output)
    shape = (b.batch, num_chunks(prod(sides), channels), 2, channels)
    return b.add_map(name, shape, Kind.PARTIAL, "float32", b.buffers[beside].section)


def _run_forward(a: Launch) -> None:
    y, *sums = a.writes
    settings = a.settings("groups", "eps") | {"precision": a.stored}
    a.kernels.group_norm(a.by_pixel(a.reads[0]), *a.params, a.by_pixel(y), *sums, **settings)


def _run_grad_input(a: Launch) -> None:
    x, dy, moments = a.reads
    sums, *written = a.writes
    dx, slopes = written or (None, None)
    settings = a.settings("groups") | {"precision": a.stored}
    operands = (a.by_pixel(x), a.by_pixel(dy), a.params[0], moments)
    dx = None if dx is None else a.by_pixel(dx)
    a.kernels.group_norm_grad(*operands, dx, sums, slopes, **settings)


GROUP_NORM = Operator(
    "group_norm",
    forward,
    backward,
    {"forward": _run_forward, "grad_input": _run_grad_input, **SAMPLE_SUMS},
    saves={"input"},
    functions={"group_norm": group_norm, "functional.instance_norm": instance_norm},
    modules=("GroupNorm", "InstanceNorm1d", "InstanceNorm2d"),
)
