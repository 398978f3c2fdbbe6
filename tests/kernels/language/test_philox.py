"""Random words: the reference's are those of Triton's own generator."""

import torch
import triton
import triton.language as tl

from tests.kernels.numerics import poisoned
from tvdnn.kernels.language.philox import ROUNDS, random_words_reference


@triton.jit
def _draw_kernel(seed_ptr, counter_ptr, out_ptr, ROUNDS: tl.constexpr):  # noqa: ANN001, ANN202
    offs = tl.arange(0, 8)
    words = tl.randint(tl.load(seed_ptr), tl.load(counter_ptr + offs), ROUNDS)
    tl.store(out_ptr + offs, words.to(tl.int64))


def test_reference_draws_as_triton_does(device: torch.device) -> None:
    counter = torch.tensor([0, 1, 2**31, 2**32 + 7, 2**40 + 1, 5, 6, 7], device=device)
    seed, drawn = torch.tensor([123456789123], device=device), poisoned((8,), torch.int64, device)
    _draw_kernel[(1,)](seed, counter, drawn, ROUNDS=ROUNDS)
    assert torch.equal(drawn, random_words_reference(counter, 0, seed)[0])
