"""Functions of torch that the tracer follows as several calls: `functional.glu` is a product."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .decomposed_arithmetic import addcmul, lerp, normalize, rsub
from .decomposed_pools import (
    adaptive_avg_pool1d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    avg_pool1d,
    lp_pool1d,
    lp_pool2d,
    max_pool1d,
)


def glu(input: Tensor, dim: int = -1) -> Tensor:  # noqa: A002 (torch's name)
    values, gates = input.chunk(2, dim)
    return values * torch.sigmoid(gates)


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    functional.glu: glu,
    functional.normalize: normalize,
    torch.addcmul: addcmul,
    torch.rsub: rsub,
    torch.lerp: lerp,
    functional.max_pool1d: max_pool1d,
    torch.max_pool1d: max_pool1d,
    functional.avg_pool1d: avg_pool1d,
    functional.adaptive_avg_pool1d: adaptive_avg_pool1d,
    functional.adaptive_max_pool1d: adaptive_max_pool1d,
    functional.adaptive_max_pool2d: adaptive_max_pool2d,
    functional.lp_pool1d: lp_pool1d,
    functional.lp_pool2d: lp_pool2d,
}
