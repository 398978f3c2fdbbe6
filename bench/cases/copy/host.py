"""Copies of bytes between the device and the host."""

from math import prod

from bench.cases.case import KernelCase, at
from bench.cases.launch import Launch, launching
from bench.cases.operands import U8, Operands, Shape
from tvdnn.kernels.copy.host import transfer


def _transfer(o: Operands, size: Shape) -> Launch:
    source = o.integers(256, prod(size), dtype=U8)
    return launching(transfer, source, o.out(*source.shape, dtype=U8))


CASES = (KernelCase(transfer, _transfer, compiled=at([(2**24,), (1001,)])),)
