"""FP10 codes of sections of any values."""

from math import prod

import torch

from bench.cases.case import BY_TYPE, TYPES, KernelCase, at, over
from bench.cases.codec.small_floats import BITS, measured
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, U8, Operands, Shape
from tvdnn.kernels.codec.fp10 import fp10_decode, fp10_encode, fp10_nbytes


def _encode(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    coded = o.out(fp10_nbytes(prod(size)), dtype=U8)
    return launching(fp10_encode, o.randn(prod(size), dtype=dtype), coded)


def _decode(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    coded = o.integers(256, fp10_nbytes(prod(size)), dtype=U8)
    return launching(fp10_decode, coded, o.out(prod(size), dtype=BITS[dtype]))


COMPILED = at([(1 << 22,), (1001,), (1,)], over(dtype=TYPES))
ENCODES, DECODES = measured(fp10_encode, fp10_decode, fp10_nbytes)
CASES = (
    KernelCase(fp10_encode, _encode, BY_TYPE, COMPILED, ENCODES),
    KernelCase(fp10_decode, _decode, BY_TYPE, COMPILED, DECODES),
)
