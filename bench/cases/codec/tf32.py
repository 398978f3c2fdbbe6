"""TF32 codes, to and from sections of rounded values behind a ReLU."""

from math import prod

import torch

from bench.cases.case import KernelCase, at
from bench.cases.launch import Launch, launching
from bench.cases.operands import F32, U8, Operands, Shape
from tvdnn.kernels.codec.tf32 import tf32_decode, tf32_encode, tf32_nbytes
from tvdnn.kernels.language.rounding import stored_reference


def _encode(o: Operands, size: Shape) -> Launch:
    raw = stored_reference(o.randn(prod(size)).relu(), F32, "tf32")
    return launching(tf32_encode, raw, o.out(tf32_nbytes(raw.numel()), dtype=U8))


def _decode(o: Operands, size: Shape) -> Launch:
    coded = o.integers(256, tf32_nbytes(prod(size)), dtype=U8)
    out = o.out(prod(size), dtype=torch.int32)  # some codes are of NaN
    return launching(tf32_decode, coded, out)


COMPILED = at([(1 << 22,), (1001,), (1,)])
CASES = (
    KernelCase(tf32_encode, _encode, compiled=COMPILED),
    KernelCase(tf32_decode, _decode, compiled=COMPILED),
)
