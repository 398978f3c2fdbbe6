"""What torch's calls mean as network ops: a translator a function, with torch's signature."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from .graph.network import channels_last_axes
from .kernels.activation import FUNCTIONS as ACTIVATIONS
from .kernels.conv_depthwise import suits_depthwise
from .kernels.softmax import MOST_CHANNELS

Ints = int | list[int] | tuple[int, ...]
Shape = tuple[int, ...]
POINTWISE: Mapping[str, Any] = {
    "kernel": (1, 1),
    "stride": (1, 1),
    "padding": (0, 0),
    "dilation": (1, 1),
    "groups": 1,
}
ARITHMETIC = ("add", "add_multiple", "affine", "multiply")
ELEMENTWISE = frozenset({"relu", *ACTIVATIONS, *ARITHMETIC, "dropout", "view"})


@dataclass(frozen=True, slots=True)
class Call:
    """An op in the making: the nodes that it reads, its parameters' nodes and its settings.

    `state` are the nodes of the module's buffers that it reads or changes.
    `axes` say where the dimensions of its result are stored, if it minds the order of its input's.
    Other ops take maps [N, C, H, W] and make such, but for those of ELEMENTWISE, which keep any.
    """

    kind: str
    inputs: tuple[Node, ...]
    params: tuple[Node | None, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    axes: Shape | None = None
    state: tuple[Node | None, ...] = ()


class UnsupportedCallError(Exception):
    """A torch call that is no op of tvdnn; the message names it, or which use of it."""


def shape_of(node: Node) -> Shape:
    """Torch's shape of what `node` yields."""
    return tuple(node.meta["value"].shape)


def axes_of(node: Node) -> Shape:
    """Of each dimension of what `node` yields, the axis where that is stored."""
    axes: Shape = node.meta["axes"]
    return axes


def result_axes(name: str, call: Call, out: Shape) -> Shape:
    """Of each dimension of a call's result, the axis where that is stored."""
    if call.axes is not None:
        return call.axes
    orders = {axes_of(x) for x in call.inputs}
    if call.kind in ELEMENTWISE and len(orders) == 1:
        return orders.pop()
    if any(order != channels_last_axes(len(order)) for order in orders):
        raise UnsupportedCallError(f"{name} of permuted maps (permute them back to [N, C, H, W])")
    return channels_last_axes(len(out))


def conv2d(
    out: Shape,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Call:
    kernel = pair(shape_of(weight)[2:])
    attrs = {
        "kernel": kernel,
        "stride": pair(stride),
        "padding": _resolved_padding(padding, kernel, pair(dilation)),
        "dilation": pair(dilation),
        "groups": groups,
    }
    depthwise = suits_depthwise(shape_of(x)[1], out[1], groups, kernel)
    return Call("conv2d_depthwise" if depthwise else "conv2d", (x,), (weight, bias), attrs)


def conv_transpose2d(
    out: Shape,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Call:
    """The padding of the output shows in its shape."""
    attrs = {
        "kernel": pair(shape_of(weight)[2:]),
        "stride": pair(stride),
        "padding": pair(padding),
        "dilation": pair(dilation),
        "groups": groups,
    }
    return Call("conv_transpose2d", (x,), (weight, bias), attrs)


def linear(out: Shape, x: Node, weight: Node, bias: Node | None = None) -> Call:
    if len(out) == 2:
        return Call("linear", (x,), (weight, bias))
    if len(out) != 4 or axes_of(x)[-1] != 3:
        raise UnsupportedCallError(
            f"linear over an input of {len(out)} dimensions"
            " (it takes [N, F], or maps permuted to [N, H, W, C])"
        )
    return Call("conv2d", (x,), (weight, bias), POINTWISE, axes_of(x))


def relu(out: Shape, x: Node, inplace: bool = False) -> Call:
    return Call("relu", (x,))


def leaky_relu(out: Shape, x: Node, negative_slope: float = 0.01, inplace: bool = False) -> Call:
    if negative_slope < 0:
        raise UnsupportedCallError(
            f"leaky_relu with a slope of {negative_slope} (it takes one that is not negative)"
        )
    return Call("leaky_relu", (x,), (), {"coefficient": float(negative_slope)})


def elu(out: Shape, x: Node, alpha: float = 1.0, inplace: bool = False) -> Call:
    return Call("elu", (x,), (), {"coefficient": float(alpha)})


def gelu(out: Shape, x: Node, approximate: str = "none") -> Call:
    return Call("gelu" if approximate == "none" else "gelu_tanh", (x,))


def silu(out: Shape, x: Node, inplace: bool = False) -> Call:
    return Call("silu", (x,))


def sigmoid(out: Shape, x: Node) -> Call:
    return Call("sigmoid", (x,))


def tanh(out: Shape, x: Node) -> Call:
    return Call("tanh", (x,))


def hardswish(out: Shape, x: Node, inplace: bool = False) -> Call:
    return Call("hardswish", (x,))


def hardsigmoid(out: Shape, x: Node, inplace: bool = False) -> Call:
    return Call("hardsigmoid", (x,))


def relu6(out: Shape, x: Node, inplace: bool = False) -> Call:
    return Call("relu6", (x,))


def hardtanh(
    out: Shape, x: Node, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Call:
    """What torch's ReLU6 calls."""
    if (min_val, max_val) != (0, 6):
        raise UnsupportedCallError(f"hardtanh from {min_val} to {max_val} (it takes 0 to 6)")
    return Call("relu6", (x,))


def add(out: Shape, x: Any, other: Any, alpha: float = 1) -> Call:
    if not isinstance(x, Node):
        return _affine(other, alpha, x)
    if not isinstance(other, Node):
        return _affine(x, 1, alpha * other)
    if alpha == 1 and (call := _by_channel("channel_add", x, other)):
        return call
    if shape_of(x) == shape_of(other):
        return Call("add" if alpha == 1 else "add_multiple", (x, other), (), _scale(alpha))
    if alpha == 1:
        return _gated("add", x, other)
    shapes = f"{shape_of(x)} and {shape_of(other)} times {alpha}"
    raise UnsupportedCallError(f"add of {shapes} (it takes two maps of one shape)")


def sub(out: Shape, x: Any, other: Any, alpha: float = 1) -> Call:
    return add(out, x, other, -alpha)


def mul(out: Shape, x: Any, other: Any) -> Call:
    if not isinstance(x, Node):
        return _affine(other, x)
    if not isinstance(other, Node):
        return _affine(x, other)
    if call := _by_channel("scale_channels", x, other):
        return call
    if shape_of(x) == shape_of(other):
        return Call("multiply", (x, other))
    return _gated("mul", x, other)


def _by_channel(kind: str, x: Node, other: Node) -> Call | None:
    """The op of a map and a parameter of its channels, in either order; None of other nodes."""
    for maps, param in ((x, other), (other, x)):
        if param.op == "get_attr" and _is_by_channel(maps, shape_of(param)):
            return Call(kind, (maps,), (param,), axes=axes_of(maps))
    return None


def _is_by_channel(maps: Node, shape: Shape) -> bool:
    """Whether a parameter of this shape has a value for each channel of maps, and none besides."""
    channel = axes_of(maps).index(len(axes_of(maps)) - 1)
    wanted = [1] * len(axes_of(maps))
    wanted[channel] = shape_of(maps)[channel]
    ahead = len(wanted) - len(shape)
    return ahead >= 0 and (*wanted[:ahead], *shape) == tuple(wanted)


def div(out: Shape, x: Any, other: Any) -> Call:
    if isinstance(other, Node) or not isinstance(x, Node):
        raise UnsupportedCallError("div by a tensor (it takes a map and a number)")
    return _affine(x, 1 / other)


def neg(out: Shape, x: Node) -> Call:
    return _affine(x, -1)


def _affine(x: Node, scale: float, shift: float = 0) -> Call:
    return Call("affine", (x,), (), {"scale": float(scale), "shift": float(shift)})


def _scale(alpha: float) -> dict[str, float]:
    return {} if alpha == 1 else {"scale": float(alpha)}


def _gated(function: str, x: Node, other: Node) -> Call:
    """A map and one value a channel, in either order."""
    shapes = shape_of(x), shape_of(other)
    for maps, gates in ((x, other), (other, x)):
        samples, channels, *sides = shape_of(maps)
        if len(sides) == 2 and shape_of(gates) == (samples, channels, 1, 1):
            return Call("gate_multiply" if function == "mul" else "gate_add", (maps, gates))
    raise UnsupportedCallError(
        f"{function} of {shapes[0]} and {shapes[1]} (it takes two maps of one shape, or a map"
        " [N, C, H, W] and [N, C, 1, 1])"
    )


def cat(out: Shape, tensors: Sequence[Node], dim: int = 0) -> Call:
    _check_channels(out, dim)
    return Call("view" if len(tensors) == 1 else "concat", tuple(tensors))


def split(out: Shape, x: Node, sizes: Any = None, dim: int = 0, **named_sizes: Any) -> None:
    """split and chunk by themselves are no ops: those who take the parts make them."""
    _check_channels(shape_of(x), dim)


def narrow(out: Shape, x: Node, dim: int, start: int, length: int) -> Call:
    _check_channels(out, dim)
    return _channels(x, start % shape_of(x)[1], length)


def getitem(out: Shape, x: Node, index: Any) -> Call:
    """A range of channels by slices, or a part of what split or chunk makes of a map."""
    parts = x.meta["value"]
    if isinstance(parts, tuple):
        (source,) = x.all_input_nodes
        before = parts[: index % len(parts)]
        return _channels(source, sum(part.shape[1] for part in before), out[1])
    return _channels(x, _first_channel(out, shape_of(x), index), out[1])


def _first_channel(out: Shape, source: Shape, index: Any) -> int:
    """Where the slices `index` of a map begin, if channels are all that they leave out."""
    slices = index if isinstance(index, tuple) else (index,)
    plain = all(isinstance(each, slice) and each.step in (None, 1) for each in slices)
    if not plain or (out[0], *out[2:]) != (source[0], *source[2:]) or len(source) not in (2, 4):
        raise UnsupportedCallError(
            f"a slice of {source} that gives {out} (it takes channels, x[:, a:b])"
        )
    return int(slices[1].indices(source[1])[0]) if len(slices) > 1 else 0


def _channels(x: Node, start: int, length: int) -> Call:
    """A range of the channels of `x`."""
    if length == shape_of(x)[1]:
        return Call("view", (x,))
    if _is_stored_otherwise(x):
        raise UnsupportedCallError(f"a range of {shape_of(x)}, the pixels of maps of one channel")
    return Call("narrow", (x,), (), {"channels": (start, start + length)})


def _is_stored_otherwise(x: Node) -> bool:
    """Whether `x` is a view of values whose last axis is another than its own."""
    call = x.meta["call"]
    if call is None or call.kind != "view":
        return False
    (source,) = call.inputs
    return shape_of(source)[1] != shape_of(x)[1] or _is_stored_otherwise(source)


def _check_channels(shape: Shape, dim: int) -> None:
    if len(shape) not in (2, 4) or dim not in (1, 1 - len(shape)):
        raise UnsupportedCallError(
            f"cat, split or narrow of {len(shape)} dimensions along {dim} (channels are 1)"
        )


def max_pool2d(
    out: Shape,
    x: Node,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,  # with it torch calls another function
) -> Call:
    attrs = window(kernel_size, stride, padding) | {"dilation": pair(dilation)}
    return Call("max_pool2d", (x,), (), attrs)


def avg_pool2d(
    out: Shape,
    x: Node,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Call:
    attrs = window(kernel_size, stride, padding)
    if attrs["kernel"] == attrs["stride"] == (1, 1) and divisor_override in (None, 1):
        return Call("view", (x,))
    averaging = {"count_include_pad": count_include_pad, "divisor_override": divisor_override}
    return Call("avg_pool2d", (x,), (), attrs | averaging)


def adaptive_avg_pool2d(out: Shape, x: Node, output_size: Any) -> Call:
    return Call("view" if out == shape_of(x) else "adaptive_avg_pool2d", (x,))


def mean(out: Shape, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Call:
    dims = () if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    rank = len(shape_of(x))
    if rank != 4 or sorted(each % rank for each in dims) != [2, 3] or dtype is not None:
        raise UnsupportedCallError(f"mean of {shape_of(x)} over {dim} (it takes [2, 3], pixels)")
    return Call("adaptive_avg_pool2d", (x,))


def softmax(
    out: Shape, x: Node, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Call:
    return _over_channels("softmax", x, dim, dtype)


def log_softmax(
    out: Shape, x: Node, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Call:
    return _over_channels("log_softmax", x, dim, dtype)


def _over_channels(function: str, x: Node, dim: int | None, dtype: Any) -> Call:
    shape, axes = shape_of(x), axes_of(x)
    if dim is None or axes[dim] != len(shape) - 1 or shape[dim] > MOST_CHANNELS or dtype:
        raise UnsupportedCallError(
            f"{function} of {shape} over {dim} (it takes channels, up to {MOST_CHANNELS})"
        )
    return Call(function, (x,), (), {"channels": shape[dim]}, axes)


def dropout(
    out: Shape, x: Node, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Call:
    if not training or p == 0:
        return Call("view", (x,))
    return Call("dropout", (x,), (), {"p": float(p)})


def dropout2d(
    out: Shape, x: Node, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Call:
    if not training or p == 0:
        return Call("view", (x,))
    if len(out) != 4:
        raise UnsupportedCallError(f"dropout2d of {out} (it takes maps [N, C, H, W])")
    return Call("dropout_parts", (x,), (), _parts("channel", p, out[1]))


def torch_stochastic_depth(x: Tensor, p: float, mode: str, training: bool = True) -> Tensor:
    """Maps of which samples, or by mode "batch" all, are dropped, by torch's own functions."""
    if has_torch_function((x,)):
        handle: Any = handle_torch_function
        result: Tensor = handle(torch_stochastic_depth, (x,), x, p, mode, training)
        return result
    if not training or p == 0:
        return x
    shape = (len(x) if mode == "row" else 1, *(1,) * (x.dim() - 1))
    kept = (torch.rand(shape, device=x.device) >= p).to(x.dtype)
    return x * (kept / (1 - p) if p < 1 else kept)


def stochastic_depth(out: Shape, x: Node, p: float, mode: str, training: bool = True) -> Call:
    if not training or p == 0:
        return Call("view", (x,))
    channels = out[axes_of(x).index(len(out) - 1)]
    return Call("dropout_parts", (x,), (), _parts(mode, p, channels), axes_of(x))


def _parts(part: str, p: float, channels: int) -> dict[str, Any]:
    return {"part": part, "p": float(p), "channels": channels}


def interpolate(out: Shape, x: Node, *args: Any, **kwargs: Any) -> Call:
    """What torch's Upsample calls."""
    if len(out) != 4:
        raise UnsupportedCallError(f"interpolate of {len(out)} dimensions (it takes maps)")
    settings = resizing(out, shape_of(x), *args, **kwargs)
    same = out == shape_of(x) and settings["scales"] == (1, 1)
    return Call("view", (x,)) if same else Call("resize", (x,), (), settings)


def resizing(
    out: Shape,
    source: Shape,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> dict[str, Any]:
    """The settings of a resizing of maps, as kernels/resize.py has them."""
    if mode not in ("nearest", "bilinear") or antialias:
        blurred = " with antialias" if antialias else ""
        raise UnsupportedCallError(f"interpolate by {mode}{blurred} (by nearest or bilinear)")
    sides = zip(source[2:], out[2:], strict=True)
    if align_corners:
        scales = [(side - 1) / (made - 1) if made > 1 else 0.0 for side, made in sides]
        return {"mode": "corners", "scales": tuple(scales)}
    scales = [side / made for side, made in sides]
    if scale_factor is not None and not recompute_scale_factor:
        factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * 2
        scales = [1 / factor for factor in factors]
    return {"mode": mode, "scales": tuple(scales)}


def local_response_norm(
    out: Shape, x: Node, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Call:
    attrs = {"size": size, "alpha": float(alpha), "beta": float(beta), "k": float(k)}
    return Call("local_response_norm", (x,), (), attrs)


def batch_norm(
    out: Shape,
    x: Node,
    running_mean: Node | None,
    running_var: Node | None,
    weight: Node | None = None,
    bias: Node | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    num_batches_tracked: Node | None = None,
) -> Call:
    if len(out) == 3:
        raise UnsupportedCallError("batch_norm over [N, C, L] (it takes [N, C] and [N, C, H, W])")
    attrs = {"training": training, "momentum": momentum, "eps": float(eps)}
    state = (running_mean, running_var, num_batches_tracked if training else None)
    return Call("batch_norm", (x,), (weight, bias), attrs, state=state)


def reshape(out: Shape, x: Node, *args: Any, **kwargs: Any) -> Call:
    """flatten, view, reshape and contiguous, by their effect: the target `out` says all."""
    source = shape_of(x)
    flattens = out == (source[0], math.prod(source[1:]))
    if out == source:
        return Call("view", (x,))
    if flattens and axes_of(x) == tuple(range(len(source))):
        return Call("view", (x,), axes=(0, 1))
    if out[0] == source[0] and _is_channel_major(out) and _is_channel_major(source):
        return Call("view", (x,), axes=channels_last_axes(len(out)))
    if flattens:
        return Call("flatten", (x,))
    raise UnsupportedCallError(
        f"reshape of {source} to {out} (it may only flatten all but the batch)"
    )


def permute(out: Shape, x: Node, *dims: Any, **named: Any) -> Call:
    """The same bytes under another order of dimensions."""
    (order,) = named.values() if named else ((dims[0] if len(dims) == 1 else dims),)
    return _reordered(x, [dim % len(out) for dim in order])


def transpose(out: Shape, x: Node, dim0: int, dim1: int) -> Call:
    order = list(range(len(out)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _reordered(x, order)


def _reordered(x: Node, order: Sequence[int]) -> Call:
    if order[0] != 0:
        raise UnsupportedCallError("permute of the batch (it must stay the first dimension)")
    return Call("view", (x,), axes=tuple(axes_of(x)[dim] for dim in order))


def layer_norm(
    out: Shape,
    x: Node,
    normalized_shape: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Call:
    if len(normalized_shape) != 1 or axes_of(x)[-1] != len(out) - 1:
        raise UnsupportedCallError(
            f"layer_norm of {shape_of(x)} over {tuple(normalized_shape)}"
            " (it takes [N, F], or maps permuted to [N, H, W, C], over the last dimension)"
        )
    return Call("layer_norm", (x,), (weight, bias), {"eps": float(eps)}, axes_of(x))


def counted_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float | None,
    eps: float,
    num_batches_tracked: Tensor | None,
) -> Tensor:
    """What a layer asks of torch's function, which does not know the number of batches.

    Without a momentum the running statistics become the mean over all batches.
    """
    state, affine = (running_mean, running_var), (weight, bias)
    if has_torch_function((x,)):
        given = (x, *state, *affine, training, momentum, eps, num_batches_tracked)
        handle: Any = handle_torch_function
        result: Tensor = handle(counted_batch_norm, (x,), *given)
        return result
    if num_batches_tracked is not None:
        num_batches_tracked += 1
        if momentum is None and not x.is_meta:
            momentum = 1.0 / float(num_batches_tracked)
    return functional.batch_norm(x, *state, *affine, training, momentum or 0.0, eps)


def group_norm(
    out: Shape,
    x: Node,
    num_groups: int,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Call:
    return Call("group_norm", (x,), (weight, bias), {"groups": num_groups, "eps": float(eps)})


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
) -> Call:
    if running_mean is not None or not use_input_stats:
        raise UnsupportedCallError(
            "instance_norm with running statistics (it takes track_running_stats=False)"
        )
    return group_norm(out, x, out[1], weight, bias, eps)


FUNCTIONS: Mapping[Any, Callable[..., Call | None]] = {
    functional.conv2d: conv2d,
    functional.conv_transpose2d: conv_transpose2d,
    functional.linear: linear,
    functional.relu: relu,
    functional.relu_: relu,
    torch.relu: relu,
    torch.relu_: relu,
    functional.leaky_relu: leaky_relu,
    functional.leaky_relu_: leaky_relu,
    functional.elu: elu,
    functional.elu_: elu,
    functional.gelu: gelu,
    functional.silu: silu,
    torch.sigmoid: sigmoid,
    torch.sigmoid_: sigmoid,
    torch.tanh: tanh,
    torch.tanh_: tanh,
    functional.hardswish: hardswish,
    functional.hardsigmoid: hardsigmoid,
    functional.relu6: relu6,
    functional.hardtanh: hardtanh,
    functional.hardtanh_: hardtanh,
    operator.add: add,
    operator.iadd: add,
    torch.add: add,
    operator.sub: sub,
    operator.isub: sub,
    torch.sub: sub,
    operator.mul: mul,
    operator.imul: mul,
    torch.mul: mul,
    operator.truediv: div,
    operator.itruediv: div,
    torch.div: div,
    operator.neg: neg,
    torch.neg: neg,
    torch.cat: cat,
    torch.concat: cat,
    torch.concatenate: cat,
    torch.split: split,
    torch.chunk: split,
    torch.narrow: narrow,
    operator.getitem: getitem,
    functional.max_pool2d: max_pool2d,
    torch.max_pool2d: max_pool2d,
    functional.avg_pool2d: avg_pool2d,
    functional.adaptive_avg_pool2d: adaptive_avg_pool2d,
    functional.dropout: dropout,
    functional.dropout2d: dropout2d,
    functional.interpolate: interpolate,
    torch_stochastic_depth: stochastic_depth,
    functional.local_response_norm: local_response_norm,
    functional.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    functional.batch_norm: batch_norm,
    counted_batch_norm: batch_norm,
    functional.group_norm: group_norm,
    torch.group_norm: group_norm,
    functional.instance_norm: instance_norm,
    torch.mean: mean,
    functional.softmax: softmax,
    torch.softmax: softmax,
    functional.log_softmax: log_softmax,
    torch.log_softmax: log_softmax,
    torch.squeeze: reshape,
    torch.unsqueeze: reshape,
    torch.flatten: reshape,
    torch.reshape: reshape,
    torch.permute: permute,
    torch.transpose: transpose,
}

METHODS: Mapping[str, Callable[..., Call | None]] = {
    "relu": relu,
    "relu_": relu,
    "sigmoid": sigmoid,
    "sigmoid_": sigmoid,
    "tanh": tanh,
    "tanh_": tanh,
    "add": add,
    "add_": add,
    "sub": sub,
    "sub_": sub,
    "mul": mul,
    "mul_": mul,
    "div": div,
    "div_": div,
    "neg": neg,
    "neg_": neg,
    "split": split,
    "chunk": split,
    "narrow": narrow,
    "mean": mean,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "squeeze": reshape,
    "unsqueeze": reshape,
    "flatten": reshape,
    "view": reshape,
    "reshape": reshape,
    "contiguous": reshape,
    "permute": permute,
    "transpose": transpose,
}

SUPPORTED = (
    "Conv2d, ConvTranspose2d, Linear, ReLU, LeakyReLU, ReLU6, ELU, SiLU, GELU, Sigmoid, Tanh,"
    " Hardswish, Hardsigmoid, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, BatchNorm1d, BatchNorm2d,"
    " Dropout, Dropout2d, StochasticDepth, Upsample, LocalResponseNorm, LayerNorm, GroupNorm,"
    " InstanceNorm1d, InstanceNorm2d, Flatten, Identity and Sequential, their functional forms,"
    " view, reshape, contiguous, permute and transpose, Softmax and LogSoftmax, mean of pixels,"
    " squeeze and unsqueeze, sums and products of maps, numbers, parameters of channels and [N, C,"
    " 1, 1], and cat, split, chunk, narrow and slices of channels"
)


def pair(value: Ints) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    height, width = value if len(value) == 2 else (value[0], value[0])
    return int(height), int(width)


def window(kernel_size: Ints, stride: Ints | None, padding: Ints) -> dict[str, Any]:
    """A pooling window; no stride means that windows do not overlap."""
    return {
        "kernel": pair(kernel_size),
        "stride": pair(stride or kernel_size),
        "padding": pair(padding),
    }


def _resolved_padding(
    padding: Ints | str, kernel: tuple[int, int], dilation: tuple[int, int]
) -> tuple[int, int]:
    """The numbers behind "same" and "valid"."""
    if not isinstance(padding, str):
        return pair(padding)
    if padding == "valid":
        return 0, 0
    height, width = (d * (k - 1) for k, d in zip(kernel, dilation, strict=True))
    if height % 2 or width % 2:
        raise UnsupportedCallError(
            f'conv2d with kernel {kernel} and padding="same", which pads unevenly'
        )
    return height // 2, width // 2


def _is_channel_major(shape: Shape) -> bool:
    """Whether a sample's bytes are the same channels first and channels last."""
    sides = shape[2:]
    return all(side == 1 for side in sides) or (len(sides) == 2 and shape[1] == 1)
