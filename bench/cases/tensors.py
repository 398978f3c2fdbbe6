"""Random and poisoned tensors, and torch's operations in float64 on the first samples."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from bench.cases.case import Calls

EXACT_SAMPLES: Final = 2
Shape = tuple[int, ...]


def per_sample(
    launch: Callable[[], None], out: Tensor, peer: Callable[..., Tensor], *inputs: Tensor
) -> Calls:
    """A launch that leaves `out`, and torch's operation, in float64 on the first samples."""

    def own() -> Tensor:
        launch()
        return out

    def exact() -> Tensor:
        return peer(*(tensor[:EXACT_SAMPLES].double() for tensor in inputs))

    return Calls(own, lambda: peer(*inputs), exact, few)


def few(result: Tensor) -> Tensor:
    return result[:EXACT_SAMPLES]


def randn(shape: Shape, kind: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=kind)


def poisoned(shape: Shape, kind: torch.dtype) -> Tensor:
    return torch.full(shape, torch.nan, dtype=kind)


def nchw(nhwc: Tensor) -> Tensor:
    return nhwc.permute(0, 3, 1, 2)
