"""Compressed sparse rows, to and from sections of which half the values are zero."""

from functools import partial

import torch
from torch import Tensor

from bench.cases.case import BY_TYPE, TYPES, KernelCase, at, over
from bench.cases.codec.bitmap import HALVED, halved, launch_of
from bench.cases.codec.sections import Codec
from bench.cases.launch import Call, Launch
from bench.cases.operands import BF16, U8, Operands, Shape
from tvdnn.kernels.codec.ssdc import ssdc_decode, ssdc_encode, ssdc_nbytes


def _calls(
    o: Operands, raw: Tensor, out: Tensor, count: Tensor, spilled: int = 0
) -> tuple[Call, Call]:
    """Encoding and decoding. The head has room for all values but so many, or for none."""
    numel, itemsize = raw.numel(), raw.element_size()
    capacity = max(numel // 2 - spilled, 0)
    head = torch.empty(ssdc_nbytes(numel, itemsize, capacity), dtype=U8, device=o.device)
    tail = torch.empty((numel - capacity) * (itemsize + 1), dtype=U8, device=o.device)
    encode = Call(ssdc_encode, (raw, head, tail, count), {})
    return encode, Call(ssdc_decode, (head, tail, out), {})


def _ssdc(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    return launch_of(partial(_calls, spilled=8), o, size, dtype)


COMPILED = at([(1 << 22,), (1001,), (1,)], over(dtype=TYPES))
ENCODES, DECODES = Codec("ssdc", halved, _calls, counts=True, title=HALVED).measured()
CASES = (
    KernelCase(ssdc_encode, _ssdc, BY_TYPE, COMPILED, ENCODES),
    KernelCase(ssdc_decode, _ssdc, BY_TYPE, COMPILED, DECODES),
)
