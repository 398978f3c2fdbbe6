"""FP16 codes of float32 maps of any values."""

from math import prod

from bench.cases.case import KernelCase, at
from bench.cases.codec.small_floats import BITS, measured
from bench.cases.launch import Launch, launching
from bench.cases.operands import F32, U8, Operands, Shape
from tvdnn.kernels.codec.fp16 import fp16_decode, fp16_encode


def _encode(o: Operands, size: Shape) -> Launch:
    return launching(fp16_encode, o.randn(prod(size)), o.out(2 * prod(size), dtype=U8))


def _decode(o: Operands, size: Shape) -> Launch:
    codes = o.integers(256, 2 * prod(size), dtype=U8)
    return launching(fp16_decode, codes, o.out(prod(size), dtype=BITS[F32]))


COMPILED = at([(1 << 22,), (1001,), (1,)])
ENCODES, DECODES = measured(fp16_encode, fp16_decode, lambda numel: 2 * numel, typed=False)
CASES = (
    KernelCase(fp16_encode, _encode, compiled=COMPILED, measured=ENCODES),
    KernelCase(fp16_decode, _decode, compiled=COMPILED, measured=DECODES),
)
