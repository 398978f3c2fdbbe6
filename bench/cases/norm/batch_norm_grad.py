"""Gradients of batch normalization: sums, parameters and the map."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import At, KernelCase, Measured, at, checked
from bench.cases.launch import Call, Launch, Peer, first_samples, launching, nchw
from bench.cases.norm.batch_norm import (
    EPS,
    ONE,
    SIZES,
    STEM,
    TYPED,
    WIDE,
    group_of,
    normalizing,
    partial_sums,
    statistics_of,
)
from bench.cases.operands import BF16, F32, U8, Operands, Shape
from tvdnn.kernels.norm.batch_norm_grad import (
    batch_norm_grad_input,
    batch_norm_grad_params,
    batch_norm_grad_sums,
)


def _grad_sums(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    term: bool = False,
    mask: str = "",
    residual: bool = False,
    affine: bool = True,
    bias: bool = True,
    left: bool = False,
    **settings: Any,
) -> Launch:
    """The gradient plus a `term`, masked by an output's "values" or "signs"; it may be `left`."""
    x, dy = (o.randn(*size, dtype=dtype) for _ in range(2))
    more = o.randn(*size, dtype=dtype) if term else None
    statistics, weight, added = statistics_of(o, size)
    output = o.randn(*size, dtype=dtype) if mask == "values" else None
    if mask == "signs":
        output = o.integers(256, *size[:-1], size[-1] // 8, dtype=U8)
    partials = partial_sums(o, size, written=True)
    grad = o.out(*size, dtype=dtype) if left else None
    if residual:
        found = (o.randn(*size, dtype=dtype), statistics_of(o, size)[0])
        settings["residual"] = (*found, partial_sums(o, size, written=True))
    scales = (weight if affine else None, added if bias else None)
    operands = (x, dy, more, statistics, *scales, output, partials, grad)
    return launching(batch_norm_grad_sums, *operands, group=group_of(size), **settings)


def _grad_params(o: Operands, size: Shape) -> Launch:
    partials, statistics = partial_sums(o, size, written=False), statistics_of(o, size)[0]
    operands = (partials, statistics, o.out(size[-1]), o.out(size[-1]))
    return launching(batch_norm_grad_params, *operands)


def _grad_input(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    added: bool = False,
    bias: bool = True,
    sums: bool = True,
    rows: int = 8,
    **settings: Any,
) -> Launch:
    """Without `sums` the statistics are constant, and the map is not read."""
    x = o.randn(*size, dtype=dtype) if sums else None
    dy, (statistics, weight, shift) = o.randn(*size, dtype=dtype), statistics_of(o, size)
    slopes = [o.randn(size[-1]) if sums else None for _ in range(2)]
    if added:
        settings |= {"added": o.randn(*size, dtype=dtype), "rounded_from": size[-1] // 2}
    operands = (x, dy, statistics, weight, shift if bias else None, *slopes)
    dx = o.out(*size, dtype=dtype)
    return launching(batch_norm_grad_input, *operands, dx, rows=rows, **settings)


def _whole(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    """The sums, their merge, and the map, beside torch's."""
    x, dy = (o.randn(*size, dtype=dtype) for _ in range(2))
    dx, partials = o.out(*size, dtype=dtype), partial_sums(o, size, written=True)
    statistics, sums = o.randn(3, size[-1]), (o.out(size[-1]), o.out(size[-1]))
    before = normalizing(size, x, partials, statistics, dx)
    rows, cut = x.numel() // size[-1], {"group": group_of(size)}
    operands = (x, dy, None, statistics, None, None, None, partials, None)
    behind = (x, dy, statistics, None, None, *sums, dx)
    calls = (
        Call(batch_norm_grad_sums, operands, cut),
        Call(batch_norm_grad_params, (partials, statistics, *sums), {}),
        Call(batch_norm_grad_input, behind, {"rows": rows}),
    )
    return Launch(calls, _peer(x, dy, dx), before.calls, (partials,))


def _peer(x: Tensor, dy: Tensor, dx: Tensor) -> Peer:
    """torch's gradient, whose forward pass runs once, before."""
    made: list[Tensor] = []

    def gradient(maps: Tensor, upper: Tensor) -> Tensor:
        leaf = maps.detach().requires_grad_()
        output = functional.batch_norm(leaf, None, None, training=True, eps=EPS)
        made[:] = [leaf, output]
        return torch.autograd.grad(output, leaf, upper, retain_graph=True)[0]

    def run() -> Tensor:
        if not made:
            return gradient(nchw(x), nchw(dy))
        return torch.autograd.grad(made[1], made[0], nchw(dy), retain_graph=True)[0]

    def exact() -> Tensor:
        kept = made[:]
        found = gradient(nchw(x).double(), nchw(dy).double())
        made[:] = kept
        return first_samples(found)

    return Peer(lambda: nchw(dx), run, exact, first_samples)


PLAIN: list[dict[str, Any]] = [
    {"function": ""},
    {"function": "relu"},
    {"function": "relu", "term": True, "mask": "values", "left": True},
    {"function": "silu"},
]
SIGNED: dict[str, Any] = {"function": "relu", "term": True, "mask": "signs", "left": True}
EXACT = {"dtype": F32}
CASES = (
    KernelCase(
        batch_norm_grad_sums,
        _grad_sums,
        {str(each): each for each in PLAIN},
        (
            *(At(size, {**kind, **each}) for size, kind in TYPED for each in PLAIN),
            *(
                At(size, {**kind, **SIGNED, "residual": True})
                for size, kind in TYPED
                if size[-1] % 8 == 0
            ),
            At(ONE, {**EXACT, "affine": False}),
        ),
    ),
    KernelCase(
        batch_norm_grad_sums,
        _grad_sums,
        {"signs": SIGNED, "residual": {**SIGNED, "residual": True}},
        odd=False,
    ),
    KernelCase(batch_norm_grad_params, _grad_params, compiled=at([*SIZES.values(), ONE])),
    KernelCase(
        batch_norm_grad_input,
        _grad_input,
        checked(function=["", "relu", "silu"], added=[False, True]) | {"constant": {"sums": False}},
        (
            *(
                At(size, {**kind, "function": function})
                for size, kind in TYPED
                for function in ("", "relu", "silu")
            ),
            *(At(size, {**kind, "function": "silu", "added": True}) for size, kind in TYPED),
            *(At(ONE, {**EXACT, "bias": False, "rows": 1, "sums": each}) for each in (True, False)),
        ),
        [
            Measured("batch_norm_grad", WIDE, make=_whole),
            Measured("batch_norm_grad", STEM, make=_whole),
        ],
    ),
)
