"""Independent random numbers by Philox (Salmon et al. 2011), the same again from seed and place.

The counter is a number's place in the whole batch, as for dropout (dropout.py). A map of noise
therefore does not depend on which samples a launch covers, and backward may make it again. One
Philox call gives the four words of four numbers that lie together.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.elementwise import store_values
from ..language.philox import ROUNDS, random_words, random_words_reference
from ..language.rounding import stored_reference
from .dropout import first_element

DISTRIBUTIONS: Final = ("normal", "uniform", "exponential", "bernoulli")
DRAWS: Final = 4  # numbers of one Philox call
LANES: Final = 256  # calls of a program
NUM_WARPS: Final = 4
UNIT: Final = tl.constexpr(2.0**-32)  # of a word
TURN: Final = tl.constexpr(2.0 * math.pi * 2.0**-32)  # the angle of a word
BELOW_ONE: Final = tl.constexpr(1.0 - 2.0**-24)
PROBABILITY_BITS: Final = tl.constexpr(24)  # of a share of ones


@triton.jit
def _radius(word):
    """The distance from the middle of a pair of normal numbers: Box and Muller, 1958."""
    return tl.sqrt_rn(-2.0 * tl.log(_inside(word)))


@triton.jit
def _inside(word):
    """Uniform in (0, 1): the largest words are rounded to 1, whose logarithm would be zero."""
    return tl.minimum((word.to(tl.float32) + 0.5) * UNIT, BELOW_ONE)


@triton.jit
def _in_order(a, b, c, d):
    """Four vectors [LANES] as one, the four of a lane together."""
    return tl.join(tl.join(a, c), tl.join(b, d)).reshape(4 * a.shape[0])


@triton.jit
def _numbers(words, least, DISTRIBUTION: tl.constexpr, BITS: tl.constexpr):
    """Float32 numbers of four words [LANES]."""
    a, b, c, d = words
    if DISTRIBUTION == "normal":
        first, second = b.to(tl.float32) * TURN, d.to(tl.float32) * TURN
        near, far = _radius(a), _radius(c)
        numbers = _in_order(
            near * tl.cos(first), near * tl.sin(first), far * tl.cos(second), far * tl.sin(second)
        )
    else:
        word = _in_order(a, b, c, d)
        if DISTRIBUTION == "uniform":
            numbers = (word >> (32 - BITS)).to(tl.float32) * (1.0 / (1 << BITS))
        elif DISTRIBUTION == "exponential":
            numbers = -tl.log(_inside(word))
        else:
            tl.static_assert(DISTRIBUTION == "bernoulli")
            numbers = ((word >> (32 - PROBABILITY_BITS)).to(tl.int32) >= least).to(tl.float32)
    return numbers


@triton.jit(do_not_specialize=["numel", "op_id", "least", "scale", "shift"])
def _noise_kernel(
    y_ptr, seed_ptr, numel, first, op_id, least, scale, shift,
    DISTRIBUTION: tl.constexpr, BITS: tl.constexpr, PRECISION: tl.constexpr,
    LANES: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    SPAN: tl.constexpr = 4 * LANES
    span = first // SPAN + tl.program_id(0).to(tl.int64)
    counter = span * LANES + tl.arange(0, LANES)
    words = random_words(seed_ptr, counter, op_id, ROUNDS)
    y = tl.fma(_numbers(words, least, DISTRIBUTION, BITS), scale, shift)
    start = span * SPAN - first
    offs = start + tl.arange(0, SPAN)
    mask, is_whole = (offs >= 0) & (offs < numel), (start >= 0) & (start + SPAN <= numel)
    store_values(y_ptr + offs, y, mask, is_whole, PRECISION)


def bits_of(dtype: torch.dtype, precision: str) -> int:
    """The bits of uniform numbers, all of which the type holds: one would else round to 1."""
    return 8 if dtype == torch.bfloat16 else 11 if precision == "tf32" else 24


def _least(p: float) -> int:
    """The least draw of 24 bits that is a one."""
    return round((1.0 - p) * (1 << PROBABILITY_BITS.value))


def noise(
    y: Tensor, seed: Tensor, *,
    distribution: str, op_id: int, first_sample: int,
    p: float = 0.5, scale: float = 1.0, shift: float = 0.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """y = `shift` + `scale` times independent numbers of one of DISTRIBUTIONS.

    Normal numbers have mean 0 and variance 1. Uniform ones lie in [0, 1). Exponential ones are
    above 0 and have mean 1. Of Bernoulli's a share `p` is one, and the others are zero. `seed` is
    int64 [1] on the device. `op_id`, below 2**31, gives each op its own numbers. `first_sample` is
    the index in the batch of the first sample of y, which is contiguous. y is rounded as products
    of `precision` read it.
    """
    numel = y.numel()
    if numel == 0:
        return
    first, span = first_element(y, first_sample), DRAWS * LANES
    grid = (triton.cdiv(first + numel, span) - first // span,)
    _noise_kernel[grid](
        y, seed, numel, first, op_id, _least(p), float(scale), float(shift),
        DISTRIBUTION=distribution, BITS=bits_of(y.dtype, precision), PRECISION=precision,
        LANES=LANES, ROUNDS=ROUNDS, num_warps=NUM_WARPS,
    )  # fmt: skip


def _normal_reference(words: Tensor) -> Tensor:
    radius = (-2.0 * _inside_reference(words[0::2]).log()).sqrt()
    angle = words[1::2].double() * TURN.value
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1).flatten(0, 1)


def _inside_reference(words: Tensor) -> Tensor:
    return ((words.double() + 0.5) * UNIT.value).clamp(max=BELOW_ONE.value)


_OF_WORDS: Final[Mapping[str, Callable[[Tensor, int, int], Tensor]]] = {
    "normal": lambda words, least, bits: _normal_reference(words),
    "uniform": lambda words, least, bits: (words >> (32 - bits)).double() / (1 << bits),
    "exponential": lambda words, least, bits: -_inside_reference(words).log(),
    "bernoulli": lambda words, least, bits: (
        (words >> (32 - PROBABILITY_BITS.value)) >= least
    ).double(),
}


def noise_reference(
    y: Tensor, seed: Tensor, *,
    distribution: str, op_id: int, first_sample: int,
    p: float = 0.5, scale: float = 1.0, shift: float = 0.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `noise` in float64, of the same words."""
    first = first_element(y, first_sample)
    place = torch.arange(first, first + y.numel(), dtype=torch.int64, device=y.device)
    calls, number = (place // DRAWS).unique_consecutive(), place - place[:1] // DRAWS * DRAWS
    words = random_words_reference(calls, op_id, seed)
    numbers = _OF_WORDS[distribution](words, _least(p), bits_of(y.dtype, precision))
    exact = numbers.t().flatten()[number] * scale + shift
    y.copy_(stored_reference(exact.view_as(y), y.dtype, precision))
