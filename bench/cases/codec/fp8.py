"""FP8 codes of maps of any values."""

from math import prod

import torch

from bench.cases.case import BY_TYPE, TYPES, KernelCase, at, over
from bench.cases.codec.small_floats import BITS, measured
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, U8, Operands, Shape
from tvdnn.kernels.codec.fp8 import fp8_decode, fp8_encode


def _encode(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    return launching(fp8_encode, o.randn(prod(size), dtype=dtype), o.out(prod(size), dtype=U8))


def _decode(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    codes = o.integers(256, prod(size), dtype=U8)
    return launching(fp8_decode, codes, o.out(prod(size), dtype=BITS[dtype]))


COMPILED = at([(1 << 22,), (1001,), (1,)], over(dtype=TYPES))
ENCODES, DECODES = measured(fp8_encode, fp8_decode, lambda numel: numel)
CASES = (
    KernelCase(fp8_encode, _encode, BY_TYPE, COMPILED, ENCODES),
    KernelCase(fp8_decode, _decode, BY_TYPE, COMPILED, DECODES),
)
