"""Reductions over axes of maps, and expansions along axes, each the other's gradient."""

from functools import partial
from math import prod
from typing import Any

import torch
from torch.fx import Node

from ..graph import Op, Use
from ..graph.network import channels_last_axes
from ..kernels.reduce.axes import READS_INPUT
from .arithmetic_translator import broadcast
from .builder import Builder
from .operator import Launch, Operator
from .passes import forward, grad_apart
from .reshape_translator import groups_of, in_order, kept_first, without
from .traced_op import Shape, Source, TracedOp, UnsupportedCallError, axes_of, shape_of

OF_ONE = frozenset({"sum", "mean", "amax", "amin", "max", "min"})  # which are one element itself


def mean(
    out: Shape, x: Source, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TracedOp:
    """Means over all pixels are poolings."""
    dims, axes = _dims("mean", x, dim), axes_of(x)
    pixels = sorted(axes[each] for each in dims) == [*range(1, len(axes) - 1)]
    plain = len(out) < len(axes) or axes == channels_last_axes(len(axes))
    if pixels and plain and dims and len(axes) in (3, 4) and dtype is None:
        return TracedOp("adaptive_avg_pool2d", (x,), axes=channels_last_axes(len(out)))
    return reduced("mean", out, x, dim, dtype=dtype)


def largest(function: str, out: Shape, x: Source, dim: Any = (), keepdim: bool = False) -> TracedOp:
    """Or the smallest, as `function` says."""
    return reduced(function, out, x, dim)


def norm(
    out: Shape,
    x: Source,
    p: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
    *,
    ord: Any = 2,  # noqa: A002 (torch's name)
) -> TracedOp:
    """Torch's `norm` calls the order p, its `vector_norm` ord."""
    order = p if ord == 2 else ord
    if order not in ("fro", None, 2):
        raise UnsupportedCallError(f"norm of order {order} (of order 2)")
    return reduced("norm", out, x, dim, dtype=dtype)


def several(out: Shape, x: Source, *args: Any, **kwargs: Any) -> None:
    """No op for a call with several results: the readers of its results make ops."""


def largest_of(
    function: str, out: Shape, x: Any, dim: Any = None, *_: bool, **named: Any
) -> TracedOp | None:
    """The `function` of two maps; or as `several`, that of elements along a dimension."""
    other = dim if isinstance(dim, Node) else named.get("other")
    if other is not None:
        return broadcast(function, out, x, other)
    if not isinstance(dim, int):
        raise UnsupportedCallError("max or min over the batch (name a dimension, or two maps)")
    return None


def one_of_several(function: str, out: Shape, call: Node, index: int) -> TracedOp:
    """One of the results of such a call."""
    names = ("x", "dim", "unbiased")
    arguments: dict[str, Any] = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    x = arguments.pop("x", None) or arguments.pop("input")
    dim = arguments.get("dim")
    if function in ("max", "min"):
        if index % 2 == 1:
            raise UnsupportedCallError(f"{function} with indices")
        return reduced(function, out, x, dim)
    if index % 2 == 1:
        return reduced("mean", out, x, dim)
    spread = function.removesuffix("_mean")
    unbiased, correction = arguments.get("unbiased"), arguments.get("correction")
    return _spread(spread, out, x, dim, unbiased, correction=correction)


def _spread(
    function: str,
    out: Shape,
    x: Source,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> TracedOp:
    """A variance or a standard deviation; torch's default is the unbiased one."""
    if isinstance(dim, bool):
        raise UnsupportedCallError(f"{function} of {shape_of(x)} over the batch (name its dims)")
    given = correction if correction is not None else (1 if unbiased in (None, True) else 0)
    return reduced(function, out, x, dim, correction=float(given))


def reduced(
    function: str,
    out: Shape,
    x: Source,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    correction: float = 0.0,
) -> TracedOp:
    """A function over dimensions, which are of one element in the result, or gone."""
    if dtype not in (None, torch.float32):
        raise UnsupportedCallError(f"{function} in {str(dtype).removeprefix('torch.')}")
    shape, axes, dims = shape_of(x), axes_of(x), _dims(function, x, dim)
    result_axes = axes if len(out) == len(shape) else without(axes, dims)
    if prod(shape[each] for each in dims) == 1 and function in OF_ONE:
        return TracedOp("view", (x,), axes=result_axes)
    layout = groups_of(shape, axes, dims)
    if layout is None:
        ordered = in_order(x, kept_first(axes, dims))
        return reduced(function, out, ordered, dim, correction=correction)
    attrs = layout | {"function": function, "correction": correction}
    return TracedOp("reduce_axes", (x,), (), attrs, result_axes)


def _dims(function: str, x: Source, dim: Any) -> frozenset[int]:
    """The dimensions that a call names, which may not hold the batch."""
    shape = shape_of(x)
    given = [dim] if isinstance(dim, int) else list(dim or ())
    dims = frozenset(each % len(shape) for each in given)
    if not dims or 0 in dims:
        raise UnsupportedCallError(
            f"{function} of {shape} over {dim} (it takes dimensions other than the batch)"
        )
    return dims


_SETTINGS = ("sizes", "reduced", "function", "correction")


def backward(b: Builder, op: Op) -> None:
    """The gradients of all functions but sums and means read the input."""
    dy, dx = b.grad_of(op), b.new_grad(op.inputs[0])
    reads = (Use(b.input_of(op)),) if op.attrs["function"] in READS_INPUT else ()
    b.add_pass(op, "grad_input", (*reads, Use(dy)), (Use(dx),))


def _flat(maps: torch.Tensor) -> torch.Tensor:
    return maps.view(len(maps), -1)


def _run_forward(a: Launch) -> None:
    x, y = _flat(a.reads[0]), _flat(a.writes[0])
    a.kernels.reduce_axes(x, y, **a.settings(*_SETTINGS), precision=a.stored)


def _run_grad_input(a: Launch) -> None:
    *inputs, dy = map(_flat, a.reads)
    x, dx = inputs[0] if inputs else None, _flat(a.writes[0])
    a.kernels.reduce_axes_grad(x, dy, dx, **a.settings(*_SETTINGS), precision=a.stored)


REDUCE_AXES = Operator(
    "reduce_axes",
    forward,
    backward,
    {"forward": _run_forward, "grad_input": _run_grad_input},
    saves={"input"},
    functions={
        "sum": partial(reduced, "sum"),
        "mean": mean,
        **{name: partial(largest, name) for name in ("amax", "amin")},
        "max": partial(largest_of, "maximum"),
        "min": partial(largest_of, "minimum"),
        **{name: partial(_spread, name) for name in ("var", "std")},
        **dict.fromkeys(("var_mean", "std_mean"), several),
        **dict.fromkeys(("norm", "linalg.vector_norm"), norm),
    },
    modules=("PairwiseDistance",),
    takes_rows=True,
)
EXPAND = REDUCE_AXES.untraced(
    "expand",
    backward=grad_apart,
    launches={"forward": _run_grad_input, "grad_input": _run_forward},
    saves=frozenset(),
)
