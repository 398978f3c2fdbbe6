"""Functions of torch that the tracer follows as several calls: `functional.glu` is a product."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def glu(input: Tensor, dim: int = -1) -> Tensor:  # noqa: A002 (torch's name)
    values, gates = input.chunk(2, dim)
    return values * torch.sigmoid(gates)


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {functional.glu: glu}
