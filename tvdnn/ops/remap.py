"""Pads, slices, rolls, flips and repeats: copies of a map by indices that are computed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..kernels.copy.remap import Axis
from .operator import Launch, Operator
from .passes import forward, grad_apart
from .reshape_translator import groups_of, without
from .traced_op import (
    Inner,
    Shape,
    Source,
    TracedOp,
    UnsupportedCallError,
    axes_of,
    call_behind,
    shape_of,
)

AXES = 3  # along which the kernels compute indices
MODES = ("constant", "reflect", "replicate", "circular")


@dataclass(frozen=True, slots=True)
class Selection:
    """The elements that are taken along one dimension."""

    axis: Axis
    size: int


def remapped(
    name: str,
    x: Source,
    picks: Mapping[int, Selection],
    *,
    fill: float = 0.0,
    drop: Collection[int] = (),
) -> TracedOp:
    """The copy of `x` that has `picks` along some of its dimensions, by their numbers.

    The result lacks the dimensions `drop`, along which one element is taken.
    """
    shape, axes = shape_of(x), axes_of(x)
    if any(dim == 0 for dim in picks):
        raise UnsupportedCallError(f"{name} of {shape} along the batch")
    sizes = [picks[dim].size if dim in picks else size for dim, size in enumerate(shape)]
    if 0 in sizes:
        raise UnsupportedCallError(f"{name} of {shape} that leaves nothing")
    result_axes = without(axes, drop)
    if all(each.axis.is_identity(shape[dim], each.size) for dim, each in picks.items()):
        return TracedOp("view", (x,), axes=result_axes)
    stored = [axes.index(axis) for axis in range(1, len(shape))]
    groups = _grouped([(shape[dim], sizes[dim], picks.get(dim)) for dim in stored])
    if len(groups) > AXES:
        raise UnsupportedCallError(
            f"{name} of {shape} along dimensions {sorted(picks)} (it takes up to {AXES} that are"
            " not neighbours)"
        )
    attrs = {
        "source": tuple(source for source, _, _ in groups),
        "result": tuple(size for _, size, _ in groups),
        "axes": tuple(Axis() if each is None else each.axis for _, _, each in groups),
        "fill": float(fill),
    }
    return TracedOp("remap", (x,), (), attrs, result_axes)


Group = tuple[int, int, Selection | None]


def _grouped(dims: Sequence[Group]) -> list[Group]:
    """Sizes before and after, by stored axis; neighbours of which all is taken are one."""
    groups: list[Group] = []
    for source, size, picks in dims:
        whole = picks is None or picks.axis.is_identity(source, size)
        if whole and source == 1:
            continue
        if whole and groups and groups[-1][2] is None:
            source, size = groups[-1][0] * source, groups[-1][1] * size
            groups.pop()
        groups.append((source, size, None if whole else picks))
    return [(1, 1, None)] * (AXES - len(groups)) + groups


def pad(
    out: Shape, x: Source, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> TracedOp:
    """Pairs of pads, the last dimension's first."""
    if mode not in MODES:
        raise UnsupportedCallError(f"pad by {mode} (by {', '.join(MODES)})")
    last = len(out) - 1
    befores = {last - index: before for index, before in enumerate(pad[::2])}
    picks = {dim: Selection(Axis(-before, mode=mode), out[dim]) for dim, before in befores.items()}
    call = remapped("pad", x, _but_whole(picks, shape_of(x)), fill=value or 0.0)
    if call.kind == "view" or mode != "constant" or value:
        return call
    behinds = {last - index: behind for index, behind in enumerate(pad[1::2])}
    zeros = {dim: (befores[dim], behinds[dim]) for dim in picks}
    return replace(call, attrs={**call.attrs, "zeros": zeros})


def _but_whole(picks: Mapping[int, Selection], shape: Shape) -> dict[int, Selection]:
    """The selections that change a dimension."""
    return {
        dim: each for dim, each in picks.items() if not each.axis.is_identity(shape[dim], each.size)
    }


def behind_zeros(x: Source, most: tuple[int, int]) -> tuple[Source, tuple[int, int]]:
    """Rows and columns of zeros around a map that a pad has added, and the map without them.

    `x` and none where there are others, or more than `most`.
    """
    call = call_behind(x)
    zeros = {} if call is None or call.kind != "remap" else call.attrs.get("zeros", {})
    (top, bottom), (left, right) = (zeros.get(dim, (0, 0)) for dim in (2, 3))
    plain = len(shape_of(x)) == 4 and set(zeros) <= {2, 3}
    even = (top, left) == (bottom, right) and 0 <= top <= most[0] and 0 <= left <= most[1]
    if call is None or not zeros or not plain or not even:
        return x, (0, 0)
    return call.inputs[0], (top, left)


def padded(x: Source, pads: Mapping[int, tuple[int, int]]) -> Source:
    """`x` with zeros before and behind it along some dimensions."""
    shape = list(shape_of(x))
    picks = {}
    for dim, (before, behind) in pads.items():
        shape[dim] += before + behind
        picks[dim] = Selection(Axis(-before), shape[dim])
    picks = _but_whole(picks, shape_of(x))
    return Inner(remapped("pad", x, picks), tuple(shape), axes_of(x)) if picks else x


def flip(out: Shape, x: Source, *dims: Any, **named: Any) -> TracedOp:
    picks = {}
    for dim in _integers(dims, named):
        size = out[dim]
        picks[dim % len(out)] = Selection(Axis(size - 1, -1), size)
    return remapped("flip", x, {dim: each for dim, each in picks.items() if each.size > 1})


def roll(out: Shape, x: Source, shifts: Any, dims: Any = None) -> TracedOp:
    if dims is None or dims == ():
        raise UnsupportedCallError(f"roll of {out} as one row, the batch among it (name its dims)")
    shift_of: dict[int, int] = {}
    for shift, dim in zip(_integers((shifts,), {}), _integers((dims,), {}), strict=True):
        shift_of[dim % len(out)] = shift_of.get(dim % len(out), 0) + shift
    picks = {
        dim: Selection(Axis(-(shift % out[dim]), mode="circular"), out[dim])
        for dim, shift in shift_of.items()
    }
    return remapped("roll", x, _but_whole(picks, out))


def repeat(out: Shape, x: Source, *sizes: Any, **named: Any) -> TracedOp:
    """Repeats along dimensions, and expansions of dimensions of one: `out` says how often."""
    shape = shape_of(x)
    if len(out) != len(shape):
        raise UnsupportedCallError(f"repeat of {shape} to {out} (it takes as many dimensions)")
    circular = {dim: Selection(Axis(mode="circular"), size) for dim, size in enumerate(out)}
    picks = _but_whole(circular, shape)
    if picks and 0 not in picks and all(shape[dim] == 1 for dim in picks):
        layout = groups_of(out, axes_of(x), picks)
        if layout is not None:
            of_sum = {"function": "sum", "correction": 0.0}  # whose gradient is an expansion
            return TracedOp("expand", (x,), (), layout | of_sum, axes_of(x))
    return remapped("repeat", x, picks)


def _integers(given: Sequence[Any], named: Mapping[str, Any]) -> list[int]:
    """Numbers given one by one, or as one tuple."""
    values = [*given, *named.values()]
    return [
        each
        for value in values
        for each in (value if isinstance(value, (tuple, list)) else (value,))
    ]


def _source(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    return maps.view(len(maps), *a.attrs["source"])


def _result(a: Launch, maps: torch.Tensor) -> torch.Tensor:
    return maps.view(len(maps), *a.attrs["result"])


def _run_forward(a: Launch) -> None:
    x, y = _source(a, a.reads[0]), _result(a, a.writes[0])
    a.kernels.remap(x, y, **a.settings("axes", "fill"), precision=a.stored)


def _run_grad_input(a: Launch) -> None:
    dy, dx = _result(a, a.reads[0]), _source(a, a.writes[0])
    a.kernels.remap_grad(dy, dx, **a.settings("axes"), precision=a.stored)


_PADS = ("Zero", "Constant", "Reflection", "Replication", "Circular")
REMAP = Operator(
    "remap",
    forward,
    grad_apart,
    {"forward": _run_forward, "grad_input": _run_grad_input},
    functions={
        "pad": pad,
        "flip": flip,
        "roll": roll,
        **dict.fromkeys(("repeat", "tile", "expand", "expand_as", "broadcast_to"), repeat),
    },
    modules=tuple(f"{kind}Pad{dims}d" for kind in _PADS for dims in (1, 2)),
    takes_rows=True,
    skippable=True,
)
