"""TF32 codes, to and from sections of rounded values behind a ReLU."""

from math import prod

import torch
from torch import Tensor

from bench.cases.case import KernelCase, at
from bench.cases.codec.sections import Codec
from bench.cases.launch import Call, Launch, launching
from bench.cases.operands import F32, U8, Operands, Shape
from tvdnn.kernels.codec.tf32 import tf32_decode, tf32_encode, tf32_nbytes
from tvdnn.kernels.language.rounding import stored_reference


def _values(o: Operands, numel: int, dtype: torch.dtype = F32) -> Tensor:
    return stored_reference(o.randn(numel).relu(), dtype, "tf32")


def _calls(o: Operands, raw: Tensor, out: Tensor, _: Tensor) -> tuple[Call, Call]:
    coded = torch.empty(tf32_nbytes(raw.numel()), dtype=U8, device=o.device)
    return Call(tf32_encode, (raw, coded), {}), Call(tf32_decode, (coded, out), {})


def _encode(o: Operands, size: Shape) -> Launch:
    raw = _values(o, prod(size))
    return launching(tf32_encode, raw, o.out(tf32_nbytes(raw.numel()), dtype=U8))


def _decode(o: Operands, size: Shape) -> Launch:
    coded = o.integers(256, tf32_nbytes(prod(size)), dtype=U8)
    out = o.out(prod(size), dtype=torch.int32)  # some codes are of NaN
    return launching(tf32_decode, coded, out)


COMPILED = at([(1 << 22,), (1001,), (1,)])
ENCODES, DECODES = Codec("tf32", _values, _calls, dtype=F32).measured()
CASES = (
    KernelCase(tf32_encode, _encode, compiled=COMPILED, measured=ENCODES),
    KernelCase(tf32_decode, _decode, compiled=COMPILED, measured=DECODES),
)
