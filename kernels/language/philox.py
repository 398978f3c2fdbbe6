"""Random words by Philox 4x32 (Salmon et al. 2011), of a counter, an op and a seed."""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

ROUNDS: Final = 7  # the fewest that pass BigCrush, by the paper
UINT32: Final = 0xFFFFFFFF
ROUND_A: Final = 0xD2511F53
ROUND_B: Final = 0xCD9E8D57
KEY_A: Final = 0x9E3779B9
KEY_B: Final = 0xBB67AE85


@triton.jit
def random_words(seed_ptr, counter, op_id, ROUNDS: tl.constexpr) -> tuple[tl.tensor, ...]:
    """Four uint32 words for each counter, int64, of an op. The seed in memory is int64."""
    low, high = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    stream = tl.full(counter.shape, op_id, tl.uint32)
    zero = tl.zeros(counter.shape, tl.uint32)
    return tl.philox(tl.load(seed_ptr), low, high, stream, zero, ROUNDS)


def random_words_reference(counter: Tensor, op_id: int, seed: Tensor) -> Tensor:
    """Computes `random_words` in torch: int64 [4, *counter.shape], each below 2**32."""
    c0, c1 = counter & UINT32, counter >> 32
    c2, c3 = torch.full_like(counter, op_id), torch.zeros_like(counter)
    k0, k1 = seed & UINT32, (seed >> 32) & UINT32
    for _ in range(ROUNDS):
        high_a, low_a = _product(c0, ROUND_A)
        high_b, low_b = _product(c2, ROUND_B)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + KEY_A) & UINT32, (k1 + KEY_B) & UINT32
    return torch.stack([c0, c1, c2, c3])


def _product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low words of the 64-bit product of 32-bit words, without unsigned 64-bit types."""
    middle = a * (b >> 16) + ((a * (b & 0xFFFF)) >> 16)
    return middle >> 16, (a * b) & UINT32
