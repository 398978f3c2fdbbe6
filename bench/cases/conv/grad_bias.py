"""Gradients of biases: sums over maps, and over cells of maps."""

from typing import Final

import torch

from bench.cases.case import TYPES, At, KernelCase, Measured, checked
from bench.cases.launch import Call, Launch, Peer, Settings, launching
from bench.cases.operands import BF16, Operands, Shape
from bench.cases.shapes import VGG16_MAP
from tvdnn.kernels.conv.grad_bias import conv2d_grad_bias, grad_bias_plan, sum_cells
from tvdnn.kernels.reduce.partials import sum_partials


def _cells(size: Shape, cell: int) -> Shape:
    return (size[0], size[1] // cell, size[2] // cell, size[3])


def _sum_cells(o: Operands, size: Shape, cell: int = 4, dtype: torch.dtype = BF16) -> Launch:
    maps, sums = o.randn(*size, dtype=dtype), o.out(*_cells(size, cell))
    return launching(sum_cells, maps, sums)


def _grad_bias(
    o: Operands, size: Shape, cell: int = 1, dtype: torch.dtype = BF16, splits: int = 0
) -> Launch:
    """Sums of maps, or of sums over their cells. `splits` is by default the plan's."""
    rows = o.randn(*size, dtype=dtype) if cell == 1 else o.randn(*_cells(size, cell))
    splits = splits or grad_bias_plan(size[1:3], size[3]).splits
    partials = o.out(splits, size[3], compared=lambda sums: sums.sum(0))
    return launching(conv2d_grad_bias, rows, partials, first=True, cell=cell)


def _whole(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    """The sums over cells, over maps and over the partials."""
    dy, plan = o.randn(*size, dtype=dtype), grad_bias_plan(size[1:3], size[3])
    partials, sums, cells = o.out(plan.splits, size[3]), o.out(size[3]), dy
    calls: list[Call] = []
    if plan.cell > 1:
        cells = o.out(*_cells(size, plan.cell))
        calls.append(Call(sum_cells, (dy, cells), {}))
    calls.append(Call(conv2d_grad_bias, (cells, partials), {"first": True, "cell": plan.cell}))
    calls.append(Call(sum_partials, (partials, sums), {"first": True}))
    rows = dy.view(-1, size[3])
    peer = Peer(lambda: sums, lambda: rows.sum(0), lambda: rows.sum(0, dtype=torch.float64))
    return Launch(tuple(calls), peer, scratch=(partials, *([] if cells is dy else [cells])))


MAPS: Final = (8, 56, 56, 64)
COMPILED: Final = [
    At(MAPS, {"cell": cell, "dtype": dtype, "splits": 4})
    for cell in (1, 2, 4, 8)
    for dtype in TYPES
]
CELLS: Final[dict[str, Settings]] = checked(cell=[2, 4, 8], dtype=TYPES)
CASES = (
    KernelCase(
        sum_cells,
        _sum_cells,
        CELLS,
        [At(MAPS, {"cell": cell, "dtype": dtype}) for cell in (2, 4, 8) for dtype in TYPES],
        odd=False,
    ),
    KernelCase(
        conv2d_grad_bias,
        _grad_bias,
        checked(cell=[1, 4], dtype=TYPES),
        COMPILED,
        [Measured("conv2d_grad_bias", VGG16_MAP, make=_whole)],
        odd=False,
    ),
)
