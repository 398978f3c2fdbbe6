"""Bitmap codes, to and from sections of which half the values are zero."""

from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from bench.cases.case import BY_TYPE, TYPES, KernelCase, at, over
from bench.cases.codec.sections import Codec
from bench.cases.launch import Call, Launch
from bench.cases.operands import BF16, U8, Operands, Shape
from tvdnn.kernels.codec.bitmap import bitmap_decode, bitmap_encode, bitmap_nbytes

HALVED = ", half of the values 0"


def halved(o: Operands, numel: int, dtype: torch.dtype) -> Tensor:
    """Values of which every other is zero."""
    raw = o.randn(numel, dtype=dtype)
    raw[::2] = 0
    return raw


def calls(
    o: Operands, raw: Tensor, out: Tensor, count: Tensor, spilled: int = 0
) -> tuple[Call, Call]:
    """Encoding and decoding. The head has room for all values but so many, or for none."""
    numel, itemsize = raw.numel(), raw.element_size()
    capacity = max(numel // 2 - spilled, 0)
    head = torch.empty(bitmap_nbytes(numel, itemsize, capacity), dtype=U8, device=o.device)
    tail = torch.empty((numel - capacity) * itemsize, dtype=U8, device=o.device)
    encode = Call(bitmap_encode, (raw, head, tail, count), {})
    return encode, Call(bitmap_decode, (head, tail, out), {})


def _bitmap(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    return launch_of(partial(calls, spilled=8), o, size, dtype)


def launch_of(make: Any, o: Operands, size: Shape, dtype: torch.dtype) -> Launch:
    """Encoding and decoding of one section."""
    raw, out = halved(o, prod(size), dtype), o.out(prod(size), dtype=dtype)
    count = o.updated(torch.zeros(1, dtype=torch.int32, device=o.device))
    return Launch(make(o, raw, out, count))


COMPILED = at([(1 << 22,), (1001,), (1,)], over(dtype=TYPES))
ENCODES, DECODES = Codec("bitmap", halved, calls, counts=True, title=HALVED).measured()
CASES = (
    KernelCase(bitmap_encode, _bitmap, BY_TYPE, COMPILED, ENCODES),
    KernelCase(bitmap_decode, _bitmap, BY_TYPE, COMPILED, DECODES),
)
