"""Normalized maps that a kernel makes again as it loads what they were made of.

The values have the bits that `batch_norm` stores. Nothing then needs to keep the map.
"""

from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.rounding import as_stored, clamped_as_stored, narrowed, rectified_as_stored
from ..pointwise.activation_math import activated
from .batch_norm import batch_norm_reference
from .batch_norm_tiles import factors_of, normalized

CHEAP: Final = ("", "relu", "relu6", "leaky_relu", "hardswish")  # functions without exponentials


class Normalized(NamedTuple):
    """function((x - mean) / sqrt(variance + eps) * weight + bias), as `batch_norm` stores it."""

    statistics: Tensor  # float32 [3, C]
    weight: Tensor | None
    bias: Tensor | None
    function: str = ""
    coefficient: float = 0.0


@triton.jit
def normalizer_of(source, c, mask, channels) -> tl.tuple:
    """Mean, factor and summand of channels c, of c's shape; `source` is that of the settings."""
    return factors_of(source[0], source[1], source[2], c, mask, channels)


@triton.jit
def normalized_again(x, at, coefficient, FUNCTION: tl.constexpr) -> tl.tensor:
    """The normalized map of x by the values `at`, in x's type."""
    dtype: tl.constexpr = x.dtype
    y = normalized(x.to(tl.float32), at[0], at[1], at[2])
    if FUNCTION == "relu":
        y = rectified_as_stored(y, dtype)
    elif FUNCTION == "relu6":
        y = clamped_as_stored(y, dtype)
    elif FUNCTION == "":
        y = narrowed(y, dtype)
    else:
        y = narrowed(activated(as_stored(y, dtype), coefficient, FUNCTION), dtype)
    return y


def settings_of_normalizer(made_by: Normalized | None) -> dict[str, Any]:
    """The arguments of a kernel that say how it normalizes its map, if it does."""
    if made_by is None:
        return {"source": None, "coefficient": 0.0, "FUNCTION": ""}
    *source, function, coefficient = made_by
    return {"source": tuple(source), "coefficient": float(coefficient), "FUNCTION": function}


def normalized_again_reference(x: Tensor, made_by: Normalized | None) -> Tensor:
    """The map that was made of x [..., C], in torch; x itself without a way to normalize it."""
    if made_by is None:
        return x
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    *normalizer, function, coefficient = made_by
    batch_norm_reference(x, *normalizer, None, y, function=function, coefficient=coefficient)
    return y
