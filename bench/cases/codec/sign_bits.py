"""Sign bits of a map, packed by a kernel of their own."""

from typing import Final

import torch

from bench.cases.case import BY_TYPE, TYPES, KernelCase, Measured, at, over
from bench.cases.launch import Launch, Peer, first_samples, launching
from bench.cases.operands import BF16, U8, Operands, Shape
from tvdnn.kernels.codec.sign_bits import passes_reference, sign_bits_encode

SIZES: Final = ((64, 56, 56, 256), (64, 7, 7, 24), (1, 8))


def _encode(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    raw, coded = o.randn(*size, dtype=dtype), o.out(*size[:-1], size[-1] // 8, dtype=U8)
    peer = Peer(
        lambda: passes_reference(coded),
        lambda: raw > 0,
        lambda: (first_samples(raw) > 0).double(),
        first_samples,
    )
    return launching(sign_bits_encode, raw, coded, peer=peer)


ROW = Measured("sign_bits_encode", (128, 32, 32, 256), set="codecs")
COMPILED = at(SIZES, over(dtype=TYPES))
CASES = (KernelCase(sign_bits_encode, _encode, BY_TYPE, COMPILED, [ROW], odd=False),)
