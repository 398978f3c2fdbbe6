"""Maps that a weight gradient makes again as it loads what they were made of.

A pointwise convolution reads each element of its input once for a block of output channels. Where
its input is a normalized or a gated map, the map is made again between load and product, to the
bits that its own kernel stored, and need not be kept until then.
"""

from typing import Any, NamedTuple, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...language.rounding import as_stored
from ...norm.batch_norm import batch_norm_reference, function_of
from ...norm.batch_norm_tiles import normalized, normalizer
from ...pointwise.channel_broadcast import gate_reference


class Normalized(NamedTuple):
    """function((x - mean) / sqrt(variance + eps) * weight + bias), as `batch_norm` stores it."""

    statistics: Tensor  # float32 [3, C]
    weight: Tensor | None
    bias: Tensor | None
    function: str = ""
    coefficient: float = 0.0


class Gated(NamedTuple):
    """x times a gate for each sample and channel, as `gate` stores it."""

    gates: Tensor  # [N, C] of x's type and contiguous, C a multiple of 8


MadeBy: TypeAlias = Normalized | Gated


@triton.jit
def normalizer_at(source, c, channels, BLOCK_C: tl.constexpr) -> tl.tuple:
    """`normalizer` of BLOCK_C channels from c on."""
    c += tl.arange(0, BLOCK_C)
    return normalizer(source[0], source[1], source[2], c, c < channels, channels)


@triton.jit
def normalized_again(x, at, coefficient, FUNCTION: tl.constexpr) -> tl.tensor:
    """The normalized map of x [rows, BLOCK_C] by the values `at`, in x's type."""
    dtype: tl.constexpr = x.dtype
    y = as_stored(normalized(x.to(tl.float32), at[0], at[1], at[2]), dtype)
    if FUNCTION != "":
        y = function_of(y, coefficient, FUNCTION)
    return y.to(dtype)


@triton.jit
def gates_at(source, n, c, num_samples, channels, BLOCK_C: tl.constexpr) -> tl.tensor:
    """Gates of BLOCK_C channels from c on, of a sample or of samples [rows, 1]; 0 behind all."""
    c += tl.arange(0, BLOCK_C)[None, :]
    channels = channels // 8 * 8
    return tl.load(source[0] + n * channels + c, mask=(c < channels) & (n < num_samples), other=0.0)


@triton.jit
def gated_again(x, gates) -> tl.tensor:
    """x [rows, BLOCK_C] times the gates, in x's type."""
    return (x.to(tl.float32) * gates.to(tl.float32)).to(x.dtype)


def settings_of_maker(made_by: MadeBy | None) -> dict[str, Any]:
    """The arguments of a kernel that say by what it makes its map."""
    if made_by is None:
        return {"source": None, "coefficient": 0.0, "MAKER": "", "FUNCTION": ""}
    if isinstance(made_by, Gated):
        return {"source": tuple(made_by), "coefficient": 0.0, "MAKER": "gate", "FUNCTION": ""}
    *source, function, coefficient = made_by
    found = {"source": tuple(source), "coefficient": float(coefficient)}
    return found | {"MAKER": "normalize", "FUNCTION": function}


def remade_reference(x: Tensor, made_by: MadeBy | None) -> Tensor:
    """The map that was made of x [N, H, W, C], in torch."""
    if made_by is None:
        return x
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if isinstance(made_by, Gated):
        gate_reference(x.flatten(1, 2), made_by.gates, y.flatten(1, 2))
    else:
        *normalizer, function, coefficient = made_by
        batch_norm_reference(
            x, *normalizer, None, y, function=function, coefficient=coefficient
        )  # fmt: skip
    return y
