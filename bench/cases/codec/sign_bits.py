"""Sign bits of a map, packed by a kernel of their own."""

from typing import Final

import torch

from bench.cases.case import BY_TYPE, TYPES, KernelCase, at, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, U8, Operands, Shape
from tvdnn.kernels.codec.sign_bits import sign_bits_encode

SIZES: Final = ((64, 56, 56, 256), (64, 7, 7, 24), (1, 8))


def _encode(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    raw, coded = o.randn(*size, dtype=dtype), o.out(*size[:-1], size[-1] // 8, dtype=U8)
    return launching(sign_bits_encode, raw, coded)


CASES = (KernelCase(sign_bits_encode, _encode, BY_TYPE, at(SIZES, over(dtype=TYPES)), odd=False),)
