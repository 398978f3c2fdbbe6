"""Bitmap codes and compressed rows: every bit comes back, at any capacity and in any order."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tvdnn.kernels.codec import bitmap, ssdc
from tvdnn.kernels.codec.pairs import TILE, bits_of, num_tiles

SPECIAL = [0, -(1 << 31), 1, 0x7F800000, -0x800000, 0x7FC00000, 0x7F800001, -1, 0x00800000]
SIZES = [1, 7, 1000, 4096, 8197, 3 * 4096 + 8]
LARGE = 1 << 24  # values that a GPU codes at once


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec's module, its name, and the bytes that a packed value takes beside itself."""

    module: ModuleType
    name: str
    index_nbytes: int

    def call(self, verb: str, *operands: Any) -> None:
        getattr(self.module, f"{self.name}_{verb}")(*operands)

    def room(self, raw: Tensor, capacity: int) -> tuple[Tensor, Tensor, Tensor]:
        """A poisoned head with this capacity, a tail for the other values, and a count of 0."""
        numel, itemsize = raw.numel(), raw.element_size()
        nbytes = getattr(self.module, f"{self.name}_nbytes")(numel, itemsize, capacity)
        spilled = (numel - capacity) * (itemsize + self.index_nbytes)
        head, tail = (
            torch.full((size,), 0xA5, dtype=torch.uint8, device=raw.device)
            for size in (nbytes, spilled)
        )
        return head, tail, torch.zeros(1, dtype=torch.int32, device=raw.device)


CODECS = [Codec(bitmap, "bitmap", 0), Codec(ssdc, "ssdc", 1)]
codecs = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])


def drawn(numel: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Values of which about half are zero, among them NaNs, infinities and -0.0."""
    device = generator.device
    raw = torch.randn(numel, generator=generator, device=device).to(dtype)
    special = torch.tensor(SPECIAL, dtype=torch.int32, device=device).view(torch.float32).to(dtype)
    raw[: len(special)] = special[:numel]
    zero = torch.rand(numel, generator=generator, device=device) < 0.5
    return raw.masked_fill_(zero, 0)


def assert_comes_back(
    codec: Codec, code: tuple[Tensor, Tensor, Tensor], raw: Tensor, suffix: str = ""
) -> None:
    decoded = torch.full_like(raw, 7)
    codec.call("decode" + suffix, *code[:2], decoded)
    assert torch.equal(bits_of(decoded), bits_of(raw))


@codecs
@dtypes
@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("room", ["none", "half", "one short", "exact", "all"])
def test_every_capacity_keeps_every_value(
    room: str, numel: int, dtype: torch.dtype, codec: Codec, generator: torch.Generator
) -> None:
    raw = drawn(numel, dtype, generator)
    size = int(bits_of(raw).count_nonzero())
    capacity = {"none": 0, "half": size // 2, "one short": max(size - 1, 0), "exact": size}
    code, expected = (codec.room(raw, capacity.get(room, numel)) for _ in range(2))
    codec.call("encode", raw, *code)
    codec.call("encode_reference", raw, *expected)
    assert code[2].item() == size
    if generator.device.type == "cpu":  # where programs run in order
        assert all(map(torch.equal, code, expected))
    assert_comes_back(codec, code, raw)
    assert_comes_back(codec, code, raw, "_reference")
    assert_comes_back(codec, expected, raw)


@codecs
@dtypes
@pytest.mark.parametrize("seed", range(4))
def test_tiles_append_in_any_order(
    seed: int, dtype: torch.dtype, codec: Codec, generator: torch.Generator
) -> None:
    raw = drawn(6 * TILE.value + 40, dtype, generator)
    capacity = int(bits_of(raw).count_nonzero()) - 999
    order = torch.randperm(num_tiles(raw.numel()), generator=generator, device=generator.device)
    code, in_order = (codec.room(raw, capacity) for _ in range(2))
    encode: Callable[..., None] = codec.module.encode_in_order
    encode(raw, *code, order.roll(seed))
    codec.call("encode_reference", raw, *in_order)
    assert not torch.equal(code[0], in_order[0])
    assert_comes_back(codec, code, raw)
    assert_comes_back(codec, code, raw, "_reference")


@codecs
@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_every_bfloat16_comes_back(codec: Codec, suffix: str, device: torch.device) -> None:
    bits = torch.arange(1 << 16, dtype=torch.int32, device=device).to(torch.int16)
    raw = bits.view(torch.bfloat16)
    code = codec.room(raw, 40_000)
    codec.call("encode" + suffix, raw, *code)
    assert code[2].item() == (1 << 16) - 1
    assert_comes_back(codec, code, raw, suffix)


@codecs
def test_nothing_beside_a_code_is_written(codec: Codec, generator: torch.Generator) -> None:
    """Head and tail are ranges of one arena. A cursor that was not cleared changes neither."""
    raw = drawn(2500, torch.float32, generator)
    head, tail, count = codec.room(raw, 300)
    arena = torch.full((head.numel() + tail.numel() + 192,), 0xA5, dtype=torch.uint8).to(raw.device)
    start = 64 + head.numel() + 64
    start -= start % 16
    parts = arena[64 : 64 + head.numel()], arena[start : start + tail.numel()]
    for _ in range(2):
        codec.call("encode", raw, *parts, count)
        outside = torch.ones_like(arena, dtype=torch.bool)
        outside[64 : 64 + head.numel()] = outside[start : start + tail.numel()] = False
        assert (arena[outside] == 0xA5).all()


@codecs
def test_an_empty_section_has_no_values(codec: Codec, device: torch.device) -> None:
    raw = torch.empty(0, dtype=torch.bfloat16, device=device)
    for suffix in ("", "_reference"):
        code = codec.room(raw, 0)
        codec.call("encode" + suffix, raw, *code)
        assert code[2].item() == 0
        assert_comes_back(codec, code, raw, suffix)


@pytest.mark.gpu
@codecs
def test_every_float32_comes_back(codec: Codec, device: torch.device) -> None:
    for first in range(-(1 << 31), 1 << 31, LARGE):
        bits = torch.arange(first, first + LARGE, device=device).to(torch.int32)
        raw = bits.view(torch.float32)
        code = codec.room(raw, LARGE // 2)
        codec.call("encode", raw, *code)
        assert_comes_back(codec, code, raw)


@pytest.mark.gpu
@codecs
@dtypes
def test_a_tail_may_lie_in_pinned_memory(
    codec: Codec, dtype: torch.dtype, generator: torch.Generator
) -> None:
    raw = drawn(1 << 20, dtype, generator)
    head, tail, count = codec.room(raw, 100_000)
    code = (head, tail.cpu().pin_memory(), count)
    codec.call("encode", raw, *code)
    assert_comes_back(codec, code, raw)


@codecs
@dtypes
@pytest.mark.parametrize("room", [0, 1000, 2049])
def test_decoding_any_bytes_touches_no_others(
    room: int, dtype: torch.dtype, codec: Codec, generator: torch.Generator
) -> None:
    """A rehearsal of a step decodes heads that parameters were written over."""
    numel, beside = 2049, 4096
    memory = torch.zeros(numel + 2 * beside, dtype=dtype, device=generator.device)
    raw = memory[beside : beside + numel]
    head, tail, _ = codec.room(raw, room)
    for each in (head, tail):
        each.random_(256, generator=generator)
    codec.call("decode", head, tail, raw)
    assert not bits_of(memory[:beside]).any()
    assert not bits_of(memory[beside + numel :]).any()
