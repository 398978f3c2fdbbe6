"""Codes of small floats, to and from sections of values that every format holds."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from bench.cases.case import Measured
from bench.cases.codec.sections import Codec
from bench.cases.launch import Call
from bench.cases.operands import BF16, F32, U8, Operands

BITS: Final = {F32: torch.int32, BF16: torch.int16}  # of values, as some codes are of NaN
EXACT: Final = 16  # the whole numbers below are values of every format
Launcher = Callable[..., None]


def measured(
    encode: Launcher, decode: Launcher, nbytes: Callable[[int], int], *, typed: bool = True
) -> tuple[list[Measured], list[Measured]]:
    """The rows of a codec's encoding and of its decoding."""

    def values(o: Operands, numel: int, dtype: torch.dtype) -> Tensor:
        return o.integers(EXACT, numel).to(dtype)

    def calls(o: Operands, raw: Tensor, out: Tensor, _: Tensor) -> tuple[Call, Call]:
        coded = torch.empty(nbytes(raw.numel()), dtype=U8, device=o.device)
        return Call(encode, (raw, coded), {}), Call(decode, (coded, out), {})

    name = encode.__name__.removesuffix("_encode")
    return Codec(name, values, calls, dtype=None if typed else F32).measured()
