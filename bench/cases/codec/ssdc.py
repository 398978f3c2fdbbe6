"""Compressed sparse rows, to and from sections of which half the values are zero."""

from dataclasses import replace
from math import prod

import torch

from bench.cases.case import BY_TYPE, TYPES, KernelCase, at, over
from bench.cases.codec.bitmap import CODED, decoding, encoding, halved
from bench.cases.launch import Call, Launch
from bench.cases.operands import BF16, U8, Operands, Shape
from tvdnn.kernels.codec.ssdc import ssdc_decode, ssdc_encode, ssdc_nbytes


def _calls(o: Operands, size: Shape, dtype: torch.dtype) -> list[Call]:
    """Encoding and decoding. The head has room for all values but 8, or for none."""
    raw, out = halved(o, size, dtype), o.out(prod(size), dtype=dtype)
    numel, itemsize = raw.numel(), raw.element_size()
    capacity = max(numel // 2 - 8, 0)
    head = torch.empty(ssdc_nbytes(numel, itemsize, capacity), dtype=U8, device=o.device)
    tail = torch.empty((numel - capacity) * (itemsize + 1), dtype=U8, device=o.device)
    count = o.updated(torch.zeros(1, dtype=torch.int32, device=o.device))
    encode = Call(ssdc_encode, (raw, head, tail, count), {})
    return [encode, Call(ssdc_decode, (head, tail, out), {})]


def _ssdc(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    return Launch(tuple(_calls(o, size, dtype)))


def _encode(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    return encoding(*_calls(o, size, dtype))


def _decode(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    return decoding(*_calls(o, size, dtype))


COMPILED = at([(1 << 22,), (1001,), (1,)], over(dtype=TYPES))
CASES = tuple(
    KernelCase(launcher, _ssdc, BY_TYPE, COMPILED, [replace(CODED, kernel=name, make=make)])
    for name, launcher, make in (
        ("ssdc_encode", ssdc_encode, _encode),
        ("ssdc_decode", ssdc_decode, _decode),
    )
)
