"""A section that is coded by programs in any order, and 1,000 times under random delays.

Tiles append to a code in the order in which their programs reach its cursor.
"""

import random

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder

from tests.kernels.codec.test_packed import Codec, codecs, drawn, dtypes
from tvdnn.kernels.codec.pairs import TILE, bits_of

DECODES = 1000
NUMEL = (1 << 18) + 40  # values; the programs of 65 tiles fit the GPU at once
MOST_PROGRAMS = 4096  # that run beside a codec's
MOST_TURNS = 2000  # of each; about 10 us
MOST_CYCLES = 20_000  # that a launch is held back, about 10 us


@triton.jit
def _busy_kernel(out_ptr, turns) -> None:  # noqa: ANN001
    """A program that takes as long as its number and `turns` tell."""
    x = tl.program_id(0).to(tl.float32)
    for _ in range(turns * (1 + tl.program_id(0) % 7) // 7):
        x = x * 0.999 + 1.0
    tl.store(out_ptr + tl.program_id(0), x)


class Delays:
    """Random delays, on the current stream and by programs of another one beside it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stream = torch.cuda.Stream()
        self.out = torch.empty(MOST_PROGRAMS, device="cuda")

    def add(self) -> None:
        """Start programs beside what follows on the current stream, and hold that back."""
        programs = self.random.randint(1, MOST_PROGRAMS)
        with torch.cuda.stream(self.stream):
            _busy_kernel[(programs,)](self.out, self.random.randint(0, MOST_TURNS))
        torch.cuda._sleep(self.random.randrange(MOST_CYCLES))


@pytest.mark.gpu
@codecs
@dtypes
@pytest.mark.parametrize("room", ["none", "one short", "exact", "all"])
def test_a_section_comes_back_whatever_delays_the_codec(
    room: str, dtype: torch.dtype, codec: Codec, generator: torch.Generator
) -> None:
    raw = drawn(NUMEL, dtype, generator)
    size = int(bits_of(raw).count_nonzero())
    capacity = {"none": 0, "one short": size - 1, "exact": size, "all": NUMEL}[room]
    head, tail, count = codec.room(raw, capacity)
    first, decoded = torch.empty_like(head), torch.empty_like(raw)
    wrong, moved = torch.zeros(2, dtype=torch.int64, device=raw.device)
    delays = Delays(seed=20)
    for turn in range(DECODES):
        for made in (head, tail, bits_of(decoded)):
            made.fill_(0x25)
        count.zero_()
        delays.add()
        codec.call("encode", raw, head, tail, count)
        delays.add()
        codec.call("decode", head, tail, decoded)
        wrong += (bits_of(decoded) != bits_of(raw)).any() | (count[0] != size)
        if turn == 0:
            first.copy_(head)
        moved += (head != first).any()
    assert wrong.item() == 0
    assert moved.item() > 0, "the delays have changed no order of blocks"


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter orders the programs")
@codecs
@dtypes
@pytest.mark.parametrize("seed", range(5))
def test_a_section_comes_back_whatever_order_programs_run_in(
    seed: int,
    dtype: torch.dtype,
    codec: Codec,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = drawn(9 * TILE.value + 40, dtype, generator)
    capacity = int(bits_of(raw).count_nonzero()) - 700
    code, in_order = (codec.room(raw, capacity) for _ in range(2))
    codec.call("encode", raw, *in_order)
    stock, decoded = InterpreterBuilder.set_grid_idx, torch.full_like(raw, 7)

    def shuffled(self: InterpreterBuilder, x: int, y: int, z: int) -> None:
        programs = self.grid_dim[0]
        stock(self, random.Random(seed).sample(range(programs), programs)[x], y, z)

    monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", shuffled)
    codec.call("encode", raw, *code)
    codec.call("decode", *code[:2], decoded)
    assert not torch.equal(code[0], in_order[0])
    assert torch.equal(bits_of(decoded), bits_of(raw))
