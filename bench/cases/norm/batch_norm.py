"""Batch normalization: moments, statistics and the normalized map."""

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import BY_TYPE, KINDS, At, KernelCase, Measured, at, checked, over
from bench.cases.launch import Call, Launch, Peer, first_samples, launching, nchw
from bench.cases.operands import BF16, F32, U8, Operands, Shape
from tvdnn.kernels.norm.batch_norm import (
    batch_norm,
    batch_norm_moments,
    batch_norm_recall,
    batch_norm_statistics,
)
from tvdnn.kernels.norm.batch_norm_tiles import batch_norm_plan

WIDE: Final = (256, 56, 56, 256)  # ResNet-50's widest map, and its first
STEM: Final = (256, 112, 112, 64)
EPS: Final = 1e-5


def group_of(size: Shape) -> int:
    """Samples whose moments are found together."""
    return batch_norm_plan(size).group


def partial_sums(o: Operands, size: Shape, *, written: bool) -> Tensor:
    shape = batch_norm_plan(size).partials_shape(size[0], size[-1])
    return o.out(*shape) if written else o.randn(*shape).abs_()


def statistics_of(o: Operands, size: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Statistics, weight and bias."""
    statistics = o.randn(3, size[-1])
    statistics[1:].abs_()
    return statistics, o.randn(size[-1]), o.randn(size[-1])


def _moments(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    x, partials = o.randn(*size, dtype=dtype), partial_sums(o, size, written=True)
    return launching(batch_norm_moments, x, partials, group=group_of(size))


def _statistics(
    o: Operands, size: Shape, momentum: float | None = 0.1, running: bool = True, **settings: Any
) -> Launch:
    """`running`: with running statistics and their count."""
    partials, statistics = partial_sums(o, size, written=False), o.out(3, size[-1])
    kept: list[Tensor | None] = [None, None, None]
    if running:
        kept = [o.updated(o.randn(size[-1]).abs_()) for _ in range(2)]
        kept.append(o.updated(o.full(1, 1, dtype=torch.int64)))
    settings = {"shape": size, "group": group_of(size), "eps": EPS, **settings}
    return launching(
        batch_norm_statistics, partials, statistics, *kept, momentum=momentum, **settings
    )


def _recall(o: Operands, size: Shape) -> Launch:
    mean, variance = o.randn(size[-1]), o.randn(size[-1]).abs_()
    return launching(batch_norm_recall, mean, variance, o.out(3, size[-1]), eps=EPS)


def _batch_norm(
    o: Operands,
    size: Shape,
    dtype: torch.dtype = BF16,
    residual: bool = False,
    signs: bool = False,
    by: bool = False,
    bias: bool = True,
    **settings: Any,
) -> Launch:
    """`by`: the residual is normalized by statistics of its own. `signs`: signs are packed."""
    x, (statistics, weight, added) = o.randn(*size, dtype=dtype), statistics_of(o, size)
    other = o.randn(*size, dtype=dtype) if residual else None
    y = o.out(*size, dtype=dtype)
    packed = o.out(*size[:-1], size[-1] // 8, dtype=U8) if signs else None
    if by:
        settings["residual_by"] = statistics_of(o, size)
    operands = (weight, added if bias else None, other, y, packed)
    return launching(batch_norm, x, statistics, *operands, **settings)


def normalizing(size: Shape, x: Tensor, partials: Tensor, statistics: Tensor, y: Tensor) -> Launch:
    """Moments, their merge, and the map."""
    cut = {"group": group_of(size)}
    settings = {"shape": size, "momentum": 0.1, "eps": EPS, **cut}
    return Launch(
        (
            Call(batch_norm_moments, (x, partials), cut),
            Call(batch_norm_statistics, (partials, statistics, None, None, None), settings),
            Call(batch_norm, (x, statistics, None, None, None, y), {}),
        )
    )


def _whole(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    """All of the forward pass beside torch's."""
    x, y = o.randn(*size, dtype=dtype), o.out(*size, dtype=dtype)
    partials = partial_sums(o, size, written=True)
    own = normalizing(size, x, partials, o.out(3, size[-1]), y)
    normalized = partial(
        functional.batch_norm, running_mean=None, running_var=None, training=True, eps=EPS
    )

    def exact() -> Tensor:
        return first_samples(normalized(nchw(x).double()))

    peer = Peer(lambda: nchw(y), lambda: normalized(nchw(x)), exact, first_samples)
    return Launch(own.calls, peer, scratch=(partials,))


def _variants() -> list[dict[str, Any]]:
    """Outputs and residuals that networks ask for."""
    plain = [{"function": ""}, {"function": "relu"}, {"function": "silu"}]
    return [*plain, {"function": "relu", "residual": True}]


SIZES = {"wide": (64, 56, 56, 256), "odd": (64, 7, 7, 17), "features": (64, 1000)}
ONE = (1, 1, 1, 1)
SIGNED = {"function": "relu", "residual": True, "signs": True, "by": True}
EXACT = {"dtype": F32, "precision": "ieee"}
TYPED = (
    *((SIZES["wide"], each) for each in KINDS),
    (SIZES["odd"], EXACT),
    (SIZES["features"], KINDS[0]),
    ((64, 56, 56, 72), KINDS[0]),
    ((64, 28, 28, 122), KINDS[0]),
)
CASES = (
    KernelCase(
        batch_norm_moments,
        _moments,
        BY_TYPE,
        [At(size, {"dtype": each["dtype"]}) for size, each in (*TYPED, (ONE, EXACT))],
        [
            Measured("batch_norm", WIDE, make=_whole),
            Measured("batch_norm", STEM, make=_whole),
        ],
    ),
    KernelCase(
        batch_norm_statistics,
        _statistics,
        checked(momentum=[0.1, None]) | {"without running": {"running": False}},
        (
            *at(SIZES.values(), over(momentum=[0.1, None])),
            At(ONE, {"momentum": 1.0, "eps": 1.0}),
            At(ONE, {"momentum": 1.0, "eps": 1.0, "running": False}),
        ),
    ),
    KernelCase(batch_norm_recall, _recall, compiled=at([*SIZES.values(), ONE])),
    KernelCase(
        batch_norm,
        _batch_norm,
        {str(each): each for each in _variants()},
        (
            *(At(size, {**kind, **each}) for size, kind in TYPED for each in _variants()),
            *(At(size, {**kind, **SIGNED}) for size, kind in TYPED if size[-1] % 8 == 0),
            At(ONE, {"dtype": F32, "bias": False}),
        ),
    ),
    KernelCase(
        batch_norm, _batch_norm, {"signs": {**SIGNED, "by": False}, "by": SIGNED}, odd=False
    ),
)
