"""Moments of the cells of a depthwise convolution's output."""

from bench.cases.case import At, KernelCase
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, Operands, Shape
from tvdnn.kernels.conv.depthwise_moments import cells_of, strip_moments


def _moments(o: Operands, size: Shape) -> Launch:
    cells = cells_of((size[1], size[2]))
    maps, moments = o.randn(*size, dtype=BF16), o.out(*cells.shape(size[0], size[3]))
    return launching(strip_moments, maps, moments, cells=cells)


CASES = (
    KernelCase(
        strip_moments, _moments, {"bf16": {}}, [At((2, 56, 56, 144)), At((2, 7, 7, 960))], odd=False
    ),
)
