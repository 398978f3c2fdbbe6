"""Small floats: values rounded to floats of fewer bits, as Gist's delayed precision reduction does.

A format has a sign, E bits of exponent with a bias of 2^(E - 1) - 1, and M bits of mantissa.
Rounding is to the nearest, ties to even. Small values become subnormal or zero and keep their sign.
NaN has the code of all ones behind a sign of 0, and no code is infinite: infinities and what is too
large become the largest value. Decoding gives every NaN the bits of NAN, and so keeps the facts of
the values.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.rounding import NAN

MANTISSA: Final = tl.constexpr(23)  # bits of a float32
BIAS: Final = tl.constexpr(127)  # of the exponents of float32
MAGNITUDE: Final = tl.constexpr(0x7FFFFFFF)  # bits of a float32 but the sign
INFINITE: Final = tl.constexpr(0x7F800000)  # bits of infinity


@triton.jit
def wide_bits(bits) -> tl.tensor:
    """The bits int32 of values as float32, given those of float32 or bfloat16."""
    return bits.to(tl.int32) << (32 - bits.dtype.primitive_bitwidth)


@triton.jit
def small_codes(bits, E: tl.constexpr, M: tl.constexpr) -> tl.tensor:
    """Codes int32 of float32 values, given their bits int32."""
    ONES: tl.constexpr = 2 ** (E + M) - 1
    DROPPED: tl.constexpr = MANTISSA - M
    REBIAS: tl.constexpr = (BIAS + 1 - 2 ** (E - 1)) << MANTISSA
    NORMAL: tl.constexpr = REBIAS + 2**MANTISSA  # bits of the least normal value
    LARGEST: tl.constexpr = REBIAS + ((ONES - 1) << DROPPED)
    # Beside this power of two, float32 addition rounds to multiples of the least subnormal.
    UNIT: tl.constexpr = NORMAL + (DROPPED << MANTISSA)
    magnitude = bits & MAGNITUDE
    near = tl.minimum(magnitude, LARGEST)
    normal = (near + ((near >> DROPPED) & 1) + (2 ** (DROPPED - 1) - 1 - REBIAS)) >> DROPPED
    unit = tl.full((1,), UNIT, tl.int32).to(tl.float32, bitcast=True)
    small = (near.to(tl.float32, bitcast=True) + unit).to(tl.int32, bitcast=True) - UNIT
    codes = tl.where(near < NORMAL, small, normal)
    codes |= (bits >> 31) & (ONES + 1)
    return tl.where(magnitude > INFINITE, ONES, codes)


@triton.jit
def small_bits(codes, E: tl.constexpr, M: tl.constexpr) -> tl.tensor:
    """The bits int32 as float32 of codes int32, which have no bits beside their own."""
    ONES: tl.constexpr = 2 ** (E + M) - 1
    SCALE: tl.constexpr = (2 * BIAS + 1 - 2 ** (E - 1)) << MANTISSA  # 2 ^ difference of biases
    scale = tl.full((1,), SCALE, tl.int32).to(tl.float32, bitcast=True)
    magnitude = codes & ONES
    scaled = (magnitude << (MANTISSA - M)).to(tl.float32, bitcast=True) * scale
    bits = scaled.to(tl.int32, bitcast=True) | ((codes & (ONES + 1)) << (31 - E - M))
    return tl.where(magnitude == ONES, NAN, bits)


@triton.jit
def narrow_bits(bits, dtype: tl.constexpr) -> tl.tensor:
    """The bits of values in `dtype`, int32 or int16, given those as float32."""
    return (bits >> (32 - dtype.primitive_bitwidth)).to(dtype)


def bits_of(raw: Tensor) -> Tensor:
    """The bits of a contiguous map of float32 or bfloat16, int32 or int16 [values]."""
    return raw.view(torch.int32 if raw.element_size() == 4 else torch.int16).view(-1)


def small_codes_reference(raw: Tensor, exponent: int, mantissa: int) -> Tensor:
    """Codes int64 [values] of a map, computed in float64."""
    values, ones = raw.reshape(-1).double(), (1 << (exponent + mantissa)) - 1
    least = 2 - (1 << (exponent - 1))  # exponent of normal values
    places = (torch.frexp(values).exponent - 1).clamp(min=least)
    places[values == 0] = least
    steps = torch.ldexp(values.abs(), mantissa - places).round()
    codes = (steps + (places - least) * (1 << mantissa)).clamp(max=ones - 1)
    codes = codes.long() | values.signbit().long() << (exponent + mantissa)
    return torch.where(values.isnan(), ones, codes)


def small_bits_reference(codes: Tensor, exponent: int, mantissa: int) -> Tensor:
    """The bits int32 as float32 of codes int64, computed in float64."""
    ones, least = (1 << (exponent + mantissa)) - 1, 2 - (1 << (exponent - 1))
    magnitudes = codes & ones
    fields = magnitudes >> mantissa
    steps = (magnitudes & ((1 << mantissa) - 1)) + (fields.clamp(max=1) << mantissa)
    values = torch.ldexp(steps.double(), fields.clamp(min=1) - 1 + least - mantissa)
    signed = torch.where(codes > ones, -values, values)
    bits = signed.float().view(torch.int32)
    return torch.where(magnitudes == ones, NAN.value, bits)


def narrow_bits_reference(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits of values in `dtype`, int32 or int16, given those as float32."""
    return bits if dtype == torch.int32 else (bits >> 16).to(dtype)
