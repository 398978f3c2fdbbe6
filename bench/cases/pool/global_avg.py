"""Averages of whole maps that are normalized as they are loaded."""

from typing import Final

from bench.cases.case import KernelCase, at, checked, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, Operands, Shape
from bench.cases.pointwise.channel_broadcast import MAKERS, made_by
from tvdnn.kernels.pool.global_avg import normalized_avg


def _avg(o: Operands, size: Shape, maker: str = "") -> Launch:
    x, y = o.randn(*size, dtype=BF16), o.out(size[0], 1, 1, size[-1], dtype=BF16)
    return launching(normalized_avg, x, y, **made_by(o, size, maker))


SIZES: Final = [(2, 56, 56, 144), (2, 112, 112, 24), (2, 14, 14, 1024), (2, 7, 7, 120)]
CASES = (KernelCase(normalized_avg, _avg, checked(maker=MAKERS), at(SIZES, over(maker=MAKERS))),)
