"""Bitmap codes, to and from sections of which half the values are zero."""

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from bench.cases.case import BY_TYPE, TYPES, KernelCase, Measured, at, over
from bench.cases.launch import Call, Launch, beside_copy
from bench.cases.operands import BF16, U8, Operands, Shape
from bench.cases.shapes import SECTION
from tvdnn.kernels.codec.bitmap import bitmap_decode, bitmap_encode, bitmap_nbytes
from tvdnn.kernels.copy.channels import zero_channels


def halved(o: Operands, size: Shape, dtype: torch.dtype) -> Tensor:
    """Values of which every other is zero."""
    raw = o.randn(prod(size), dtype=dtype)
    raw[::2] = 0
    return raw


def _calls(o: Operands, size: Shape, dtype: torch.dtype) -> list[Call]:
    """Encoding and decoding. The head has room for all values but 8, or for none."""
    raw, out = halved(o, size, dtype), o.out(prod(size), dtype=dtype)
    numel, itemsize = raw.numel(), raw.element_size()
    capacity = max(numel // 2 - 8, 0)
    head = torch.empty(bitmap_nbytes(numel, itemsize, capacity), dtype=U8, device=o.device)
    tail = torch.empty((numel - capacity) * itemsize, dtype=U8, device=o.device)
    count = o.updated(torch.zeros(1, dtype=torch.int32, device=o.device))
    encode = Call(bitmap_encode, (raw, head, tail, count), {})
    return [encode, Call(bitmap_decode, (head, tail, out), {})]


def _bitmap(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    return Launch(tuple(_calls(o, size, dtype)))


def encoding(encode: Call, decode: Call) -> Launch:
    """The first of two calls, which appends to a count that a kernel clears before it."""
    raw, count, out = encode.operands[0], encode.operands[-1], decode.operands[-1]
    clear = Call(zero_channels, (count.view(1, 1),), {})

    def decoded() -> Tensor:
        decode.run_reference()
        return out

    return Launch((clear, encode), beside_copy(raw, decoded))


def decoding(encode: Call, decode: Call) -> Launch:
    """The second of two calls, of what the first has made."""
    out = decode.operands[-1]
    return Launch((decode,), beside_copy(encode.operands[0], lambda: out), before=(encode,))


def _encode(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    return encoding(*_calls(o, size, dtype))


def _decode(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    return decoding(*_calls(o, size, dtype))


COMPILED = at([(1 << 22,), (1001,), (1,)], over(dtype=TYPES))
CODED = Measured("", SECTION, set="codecs", title="2^25 values, half of them 0", peer="a copy")
CASES = tuple(
    KernelCase(launcher, _bitmap, BY_TYPE, COMPILED, [replace(CODED, kernel=name, make=make)])
    for name, launcher, make in (
        ("bitmap_encode", bitmap_encode, _encode),
        ("bitmap_decode", bitmap_decode, _decode),
    )
)
