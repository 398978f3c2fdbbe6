"""A kernel beside torch's own on one shape: what is compared, and how."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Calls:
    """Both sides' launches on the same operands; each returns what it computed, in one layout.

    `exact` computes in float64 the part of a result that `part` cuts out. The first call's result
    is compared: later ones may go on from it. Random numbers are not the `same_numbers` for both.
    """

    own: Callable[[], Tensor]
    peer: Callable[[], Tensor]
    exact: Callable[[], Tensor]
    part: Callable[[Tensor], Tensor] = lambda result: result
    same_numbers: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel on one shape, which a network has `count` times.

    `nbytes` counts every operand once; `make` allocates the operands for a number of samples.
    """

    kernel: str
    shape: str
    dtype: str
    flops: float
    nbytes: float
    make: Callable[[int], Calls]
    samples: int
    count: int = 1
    peer: str = "torch"
