"""TF32 codes, to and from sections of rounded values behind a ReLU."""

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from bench.cases.case import KernelCase, at
from bench.cases.codec.bitmap import CODED, decoding
from bench.cases.launch import Call, Launch, beside_copy, launching
from bench.cases.operands import F32, U8, Operands, Shape
from tvdnn.kernels.codec.tf32 import tf32_decode, tf32_encode, tf32_nbytes
from tvdnn.kernels.language.rounding import stored_reference


def _encode(o: Operands, size: Shape) -> Launch:
    raw = stored_reference(o.randn(prod(size)).relu(), F32, "tf32")
    coded, out = o.out(tf32_nbytes(raw.numel()), dtype=U8), torch.empty_like(raw)

    def decoded() -> Tensor:
        Call(tf32_decode, (coded, out), {}).run_reference()
        return out

    return launching(tf32_encode, raw, coded, peer=beside_copy(raw, decoded))


def _decode(o: Operands, size: Shape) -> Launch:
    coded = o.integers(256, tf32_nbytes(prod(size)), dtype=U8)
    out = o.out(prod(size), dtype=torch.int32)  # some codes are of NaN
    return launching(tf32_decode, coded, out)


def _decode_encoded(o: Operands, size: Shape) -> Launch:
    (encode,) = _encode(o, size).calls
    raw, coded = encode.operands
    return decoding(encode, Call(tf32_decode, (coded, torch.empty_like(raw)), {}))


COMPILED = at([(1 << 22,), (1001,), (1,)])
ENCODE = replace(CODED, kernel="tf32_encode", typed=False)
DECODE = replace(CODED, kernel="tf32_decode", typed=False, make=_decode_encoded)
CASES = (
    KernelCase(tf32_encode, _encode, compiled=COMPILED, measured=[ENCODE]),
    KernelCase(tf32_decode, _decode, compiled=COMPILED, measured=[DECODE]),
)
