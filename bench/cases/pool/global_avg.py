"""Averages of whole maps that are normalized as they are loaded."""

from typing import Final

import torch

from bench.cases.case import TYPES, KernelCase, at, checked, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, Operands, Shape
from bench.cases.pointwise.channel_broadcast import MAKERS, made_by
from tvdnn.kernels.pool.global_avg import normalized_avg


def _avg(o: Operands, size: Shape, maker: str = "", dtype: torch.dtype = BF16) -> Launch:
    x, y = o.randn(*size, dtype=dtype), o.out(size[0], 1, 1, size[-1], dtype=dtype)
    return launching(normalized_avg, x, y, **made_by(o, size, maker))


SIZES: Final = [(2, 56, 56, 144), (2, 112, 112, 24), (2, 14, 14, 1024), (2, 7, 7, 120)]
HOW: Final = {"maker": MAKERS, "dtype": TYPES}
CASES = (KernelCase(normalized_avg, _avg, checked(**HOW), at(SIZES, over(**HOW))),)
