"""Codes of small floats, to and from sections of values that every format holds."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Final

import torch
from torch import Tensor

from bench.cases.case import Measured
from bench.cases.codec.bitmap import CODED, decoding
from bench.cases.launch import Call, Launch, beside_copy
from bench.cases.operands import BF16, F32, U8, Operands, Shape

BITS: Final = {F32: torch.int32, BF16: torch.int16}  # of values, as some codes are of NaN
EXACT: Final = 16  # the whole numbers below are values of every format
Launcher = Callable[..., None]


def measured(
    encode: Launcher, decode: Launcher, nbytes: Callable[[int], int], *, typed: bool = True
) -> tuple[Measured, Measured]:
    """The rows of a codec's encoding and of its decoding."""
    row = replace(CODED, title="2^25 values", typed=typed)
    name = encode.__name__.removesuffix("_encode")
    calls = partial(_calls, encode, decode, nbytes, BF16 if typed else F32)
    return (
        replace(row, kernel=f"{name}_encode", make=partial(_encode, calls)),
        replace(row, kernel=f"{name}_decode", make=partial(_decode, calls)),
    )


def _calls(
    encode: Launcher, decode: Launcher, nbytes: Callable[[int], int], by_default: torch.dtype,
    o: Operands, size: Shape, dtype: torch.dtype | None = None,
) -> list[Call]:  # fmt: skip
    raw = o.integers(EXACT, prod(size)).to(dtype or by_default)
    coded = torch.empty(nbytes(raw.numel()), dtype=U8, device=o.device)
    return [Call(encode, (raw, coded), {}), Call(decode, (coded, torch.empty_like(raw)), {})]


def _encode(
    calls: Callable[..., list[Call]], o: Operands, size: Shape, dtype: torch.dtype | None = None
) -> Launch:
    encode, decode = calls(o, size, dtype)
    raw, out = encode.operands[0], decode.operands[1]

    def decoded() -> Tensor:
        decode.run_reference()
        return out

    return Launch((encode,), beside_copy(raw, decoded))


def _decode(
    calls: Callable[..., list[Call]], o: Operands, size: Shape, dtype: torch.dtype | None = None
) -> Launch:
    return decoding(*calls(o, size, dtype))
