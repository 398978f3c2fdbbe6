"""Sign bits of a map, packed by a kernel of their own."""

from typing import Final

import torch
from torch import Tensor

from bench.cases.case import BY_TYPE, TYPES, KernelCase, Measured, at, over
from bench.cases.codec.sections import MIB, SIZES
from bench.cases.launch import Call, Launch, Peer, launching
from bench.cases.operands import BF16, U8, Operands, Shape
from tvdnn.kernels.codec.sign_bits import passes_reference, sign_bits_encode

SHAPES: Final = ((64, 56, 56, 256), (64, 7, 7, 24), (1, 8))
CHANNELS: Final = 16  # of a section


def _encode(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    raw, coded = o.randn(*size, dtype=dtype), o.out(*size[:-1], size[-1] // 8, dtype=U8)
    return launching(sign_bits_encode, raw, coded)


def _sections(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    """Sections of so many bytes, a launch for each. The peer compares each with zero."""
    sections, nbytes = size
    raw = o.randn(sections, nbytes // dtype.itemsize // CHANNELS, CHANNELS, dtype=dtype)
    coded = torch.empty(*raw.shape[:2], CHANNELS // 8, dtype=U8, device=o.device)
    positive = torch.empty(raw.shape, dtype=torch.bool, device=o.device)

    def compared() -> Tensor:
        for values, found in zip(raw, positive, strict=True):
            torch.gt(values, 0, out=found)
        return positive

    peer = Peer(lambda: passes_reference(coded), compared, lambda: (raw > 0).double())
    pairs = zip(raw, coded, strict=True)
    return Launch(tuple(Call(sign_bits_encode, each, {}) for each in pairs), peer, streams=True)


ROWS: Final = [
    Measured(
        "sign_bits_encode", size, make=_sections, small=(3, 2592), set="codecs",
        title=f"{size[0]} sections of {size[1] // MIB} MiB",
    )
    for size in SIZES
]  # fmt: skip
COMPILED = at(SHAPES, over(dtype=TYPES))
CASES = (KernelCase(sign_bits_encode, _encode, BY_TYPE, COMPILED, ROWS, odd=False),)
