"""Sign bits of maps."""

from math import prod

import torch

from bench.cases.case import BY_TYPE, TYPES, KernelCase, at, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, U8, Operands, Shape
from tvdnn.kernels.codec.sign_bits import sign_bits_encode


def _encode(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    raw = o.randn(prod(size[:-1]), size[-1], dtype=dtype)
    return launching(sign_bits_encode, raw, o.out(len(raw), size[-1] // 8, dtype=U8))


COMPILED = at([(65536, 64), (1, 8)], over(dtype=TYPES))
CASES = (KernelCase(sign_bits_encode, _encode, BY_TYPE, COMPILED, odd=False),)
