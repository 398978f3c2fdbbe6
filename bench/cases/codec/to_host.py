"""Encoders straight to pinned host memory: the same codes, by few programs."""

from collections.abc import Callable
from math import prod
from typing import Final

import torch

from bench.cases.case import BY_TYPE, TYPES, KernelCase, at, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, U8, Operands, Shape
from tvdnn.kernels.codec.fp10 import fp10_nbytes
from tvdnn.kernels.codec.tf32 import tf32_nbytes
from tvdnn.kernels.codec.to_host import (
    fp8_encode_to_host,
    fp10_encode_to_host,
    fp16_encode_to_host,
    sign_bits_encode_to_host,
    tf32_encode_to_host,
)
from tvdnn.kernels.language.rounding import stored_reference


def _encoding(launcher: Callable[..., None], nbytes: Callable[[int], int]) -> Callable[..., Launch]:
    def make(o: Operands, size: Shape, dtype: torch.dtype = F32) -> Launch:
        coded = o.out(nbytes(prod(size)), dtype=U8)
        return launching(launcher, o.randn(prod(size), dtype=dtype), coded)

    return make


def _tf32(o: Operands, size: Shape) -> Launch:
    raw = stored_reference(o.randn(prod(size)).relu(), F32, "tf32")
    return launching(tf32_encode_to_host, raw, o.out(tf32_nbytes(raw.numel()), dtype=U8))


def _sign_bits(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    raw, coded = o.randn(*size, dtype=dtype), o.out(*size[:-1], size[-1] // 8, dtype=U8)
    return launching(sign_bits_encode_to_host, raw, coded)


SIZES: Final = ((1 << 22,), (1001,), (1,))
COMPILED, TYPED = at(SIZES), at(SIZES, over(dtype=TYPES))
SIGNED = at([(64, 56, 56, 256), (64, 7, 7, 24), (1, 8)], over(dtype=TYPES))
CASES = (
    KernelCase(tf32_encode_to_host, _tf32, compiled=COMPILED),
    KernelCase(
        fp16_encode_to_host,
        _encoding(fp16_encode_to_host, lambda numel: 2 * numel),
        compiled=COMPILED,
    ),
    KernelCase(fp10_encode_to_host, _encoding(fp10_encode_to_host, fp10_nbytes), BY_TYPE, TYPED),
    KernelCase(fp8_encode_to_host, _encoding(fp8_encode_to_host, lambda n: n), BY_TYPE, TYPED),
    KernelCase(sign_bits_encode_to_host, _sign_bits, BY_TYPE, SIGNED, odd=False),
)
