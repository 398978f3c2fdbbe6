"""Reductions over axes of maps, and expansions along axes, each the other's gradient."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
from torch.fx import Node

from ..graph import Op, Use
from ..graph.network import channels_last_axes
from ..kernels.reduce.axes import READS_INPUT
from .arithmetic_translator import maximum, minimum
from .builder import Builder
from .operator import Launch, Operator
from .passes import forward, grad_apart
from .reshape_translator import groups_of, in_order, kept_first, without
from .traced_op import Shape, Source, TracedOp, UnsupportedCallError, axes_of, shape_of

OF_ONE = frozenset({"sum", "mean", "amax", "amin", "max", "min"})  # which are one element itself


def sum_(
    out: Shape, x: Source, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TracedOp:
    return _reduced("sum", out, x, dim, dtype)


def mean(
    out: Shape, x: Source, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TracedOp:
    """Means over all pixels are poolings."""
    dims, axes = _dims("mean", x, dim), axes_of(x)
    pixels = sorted(axes[each] for each in dims) == [*range(1, len(axes) - 1)]
    plain = len(out) < len(axes) or axes == channels_last_axes(len(axes))
    if pixels and plain and dims and len(axes) in (3, 4) and dtype is None:
        return TracedOp("adaptive_avg_pool2d", (x,), axes=channels_last_axes(len(out)))
    return _reduced("mean", out, x, dim, dtype)


def amax(out: Shape, x: Source, dim: Any = (), keepdim: bool = False) -> TracedOp:
    return _reduced("amax", out, x, dim)


def amin(out: Shape, x: Source, dim: Any = (), keepdim: bool = False) -> TracedOp:
    return _reduced("amin", out, x, dim)


def norm(
    out: Shape, x: Source, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> TracedOp:
    return _norm(out, x, p, dim, dtype)


def vector_norm(
    out: Shape,
    x: Source,
    ord: Any = 2,  # noqa: A002 (torch's name)
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> TracedOp:
    return _norm(out, x, ord, dim, dtype)


def var_mean(out: Shape, x: Source, *args: Any, **kwargs: Any) -> None:
    """No op, as std_mean: the readers of its results make ops."""


def largest(
    out: Shape, x: Source, dim: Any = None, keepdim: bool = False, *, other: Any = None, **_: Any
) -> TracedOp | None:
    """The larger of two maps; or as `var_mean`, the largest elements along a dimension."""
    return _extreme(maximum, out, x, dim, other)


def smallest(
    out: Shape, x: Source, dim: Any = None, keepdim: bool = False, *, other: Any = None, **_: Any
) -> TracedOp | None:
    return _extreme(minimum, out, x, dim, other)


def _extreme(
    of_two: Callable[..., TracedOp], out: Shape, x: Any, dim: Any, other: Any
) -> TracedOp | None:
    other = dim if isinstance(dim, Node) else other
    if other is not None:
        return of_two(out, x, other)
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
        return _reduced(function, out, x, dim)
    if index % 2 == 1:
        return _reduced("mean", out, x, dim)
    spread = function.removesuffix("_mean")
    unbiased, correction = arguments.get("unbiased"), arguments.get("correction")
    return _spread(spread, out, x, dim, unbiased, correction=correction)


def _norm(out: Shape, x: Source, p: Any, dim: Any, dtype: Any) -> TracedOp:
    if p not in ("fro", None, 2):
        raise UnsupportedCallError(f"norm of order {p} (of order 2)")
    return _reduced("norm", out, x, dim, dtype)


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
    return _reduced(function, out, x, dim, correction=float(given))


def _reduced(
    function: str, out: Shape, x: Source, dim: Any, dtype: Any = None, correction: float = 0.0
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
        return _reduced(function, out, in_order(x, kept_first(axes, dims)), dim, None, correction)
    attrs = {**layout, "function": function, "correction": correction}
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


def _run_expand(a: Launch) -> None:
    x, y = _flat(a.reads[0]), _flat(a.writes[0])
    settings = a.settings("sizes", "reduced") | {"function": "sum", "precision": a.stored}
    a.kernels.reduce_axes_grad(None, x, y, **settings)


def _run_expand_back(a: Launch) -> None:
    dy, dx = _flat(a.reads[0]), _flat(a.writes[0])
    settings = a.settings("sizes", "reduced") | {"function": "sum", "precision": a.stored}
    a.kernels.reduce_axes(dy, dx, **settings)


REDUCE_AXES = Operator(
    "reduce_axes",
    forward,
    backward,
    {"forward": _run_forward, "grad_input": _run_grad_input},
    saves={"input"},
    functions={
        "sum": sum_,
        "mean": mean,
        "amax": amax,
        "amin": amin,
        "max": largest,
        "min": smallest,
        "var": partial(_spread, "var"),
        "std": partial(_spread, "std"),
        "var_mean": var_mean,
        "std_mean": var_mean,
        "norm": norm,
        "linalg.vector_norm": vector_norm,
    },
    takes_rows=True,
)
EXPAND = Operator(
    "expand",
    forward,
    grad_apart,
    {"forward": _run_expand, "grad_input": _run_expand_back},
    takes_rows=True,
)
