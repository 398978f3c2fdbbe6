"""Sums of rows, and of the partial sums of parameters' gradients."""

from math import prod

from torch import Tensor

from bench.cases.case import At, KernelCase, Measured, checked
from bench.cases.launch import Launch, Peer, launching
from bench.cases.operands import Operands, Shape
from bench.cases.shapes import PARTIALS
from tvdnn.kernels.reduce.partials import sum_partials, sum_rows


def _sum_rows(o: Operands, size: Shape, groups: int = 0) -> Launch:
    """`groups`: by default one for each sample."""
    rows = o.randn(prod(size[:-1]), size[-1])
    partials = o.out(groups or size[0], size[-1])
    return launching(sum_rows, rows, partials, group=-(-len(rows) // len(partials)))


def _sum_partials(o: Operands, size: Shape, first: bool = True, flat: bool = True) -> Launch:
    """Partials [splits, K, R, S, C] into a gradient [K, C, R, S]; or `flat` ones."""
    partials = o.randn(size[0], prod(size[1:])) if flat else o.randn(*size)
    start = o.randn(*size[1:]) if flat else o.randn(size[1], size[-1], *size[2:-1])
    grad = o.out(*start.shape) if first else o.updated(start)

    def total(values: Tensor) -> Tensor:
        return values.sum(0).permute(0, 3, 1, 2)

    peer = Peer(lambda: grad, lambda: total(partials), lambda: total(partials.double()))
    return launching(sum_partials, partials, grad, first=first, peer=peer)


CASES = (
    KernelCase(sum_rows, _sum_rows, compiled=[At((4096, 64), {"groups": 16})]),
    KernelCase(
        sum_partials,
        _sum_partials,
        checked(first=[True, False], flat=[True, False]),
        [At((8, 512, 512, 3, 3), {"first": False}), At((8, 1000))],
        [Measured("sum_partials", PARTIALS, {"flat": False}, (3, 8, 3, 3, 4), typed=False)],
    ),
)
