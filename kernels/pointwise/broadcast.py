"""Sums, products, quotients, maxima and minima of two operands that broadcast together.

Every operand is a view of the result's shape [N, A, B, C] with stride 0 along the dimensions in
which it is repeated. The gradient of a repeated operand is a sum in a fixed order. A program writes
the sum over one slice of a sample's repeated elements. The slices are then summed sample by sample.
"""

from collections.abc import Callable, Mapping
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.rounding import stored, stored_reference

FUNCTIONS: Final = ("add", "multiply", "divide", "maximum", "minimum")
BLOCK: Final = 1024  # elements of a program
NUM_WARPS: Final = 4
TILE: Final = 2048  # elements of a step of a sum
COLUMNS: Final = 64  # sums of a program, at most
STEPS: Final = 8  # steps of a slice, at least
MOST_SLICES: Final = 256  # slices of a sample, at most
NARROW: Final = 1 << 31  # elements of a sample from which indices have 64 bits

Flags = tuple[bool, bool, bool]  # for the dimensions A, B and C


@triton.jit
def _value(a, b, scale, FUNCTION: tl.constexpr):
    if FUNCTION == "add":
        y = tl.fma(b, scale, a)
    elif FUNCTION == "multiply":
        y = a * b
    elif FUNCTION == "divide":
        y = a / b
    elif FUNCTION == "maximum":
        y = tl.where((a > b) | (a != a), a, b)  # NaN of either operand stays
    else:
        tl.static_assert(FUNCTION == "minimum")
        y = tl.where((a < b) | (a != a), a, b)
    return y


@triton.jit
def _term(dy, a, b, scale, FUNCTION: tl.constexpr, FIRST: tl.constexpr):
    """The gradient of the first or of the second operand. Equal extremes get half of dy each."""
    if FUNCTION == "add":
        term = dy if FIRST else dy * scale
    elif FUNCTION == "multiply":
        term = dy * b if FIRST else dy * a
    elif FUNCTION == "divide":
        term = dy / b if FIRST else -dy * (a / b) / b
    else:
        ahead = a > b if FUNCTION == "maximum" else a < b
        behind = a < b if FUNCTION == "maximum" else a > b
        one, other = (ahead, behind) if FIRST else (behind, ahead)
        term = tl.where(one, dy, tl.where(other, 0.0, 0.5 * dy))
    return term


@triton.jit
def _load(ptr, offs, mask):
    """The values in float32, or zeros where the operand is None."""
    if ptr is None:
        values = tl.zeros(offs.shape, tl.float32)
    else:
        values = tl.load(ptr + offs, mask=mask, other=0.0).to(tl.float32)
    return values


@triton.jit
def _offsets(row, i1, i2, d0, s_n, s0, s1, s2):
    return row // d0 * s_n + row % d0 * s0 + i1 * s1 + i2 * s2


@triton.jit(do_not_specialize=["blocks"])
def _broadcast_kernel(
    dy_ptr, a_ptr, b_ptr, y_ptr, scale, blocks, d0, d1, d2,
    dy_n, dy_0, dy_1, dy_2, a_n, a_0, a_1, a_2, b_n, b_0, b_1, b_2, y_n, y_0, y_1, y_2,
    FUNCTION: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = the function of a and b, or with dy the gradient of the first or the second of them."""
    pid = tl.program_id(0).to(tl.int64)
    row, start = pid // blocks, pid % blocks * BLOCK  # a row is [B, C] of a sample
    inner = (start % d2).to(tl.int32) + tl.arange(0, BLOCK)
    i1, i2 = start // d2 + inner // d2, inner % d2
    mask = i1 < d1
    a = _load(a_ptr, _offsets(row, i1, i2, d0, a_n, a_0, a_1, a_2), mask)
    b = _load(b_ptr, _offsets(row, i1, i2, d0, b_n, b_0, b_1, b_2), mask)
    if dy_ptr is None:
        y = _value(a, b, scale, FUNCTION)
    else:
        dy = _load(dy_ptr, _offsets(row, i1, i2, d0, dy_n, dy_0, dy_1, dy_2), mask)
        y = _term(dy, a, b, scale, FUNCTION, FIRST)
    ptrs = y_ptr + _offsets(row, i1, i2, d0, y_n, y_0, y_1, y_2)
    tl.store(ptrs, stored(y, y_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=["column_blocks", "columns", "repeats", "length", "slices"])
def _broadcast_sums_kernel(
    dy_ptr, a_ptr, b_ptr, sums_ptr, scale, column_blocks, columns, repeats, length, slices,
    d0, d1, d2, dy_n, dy_0, dy_1, dy_2, a_n, a_0, a_1, a_2, b_n, b_0, b_1, b_2,
    KEPT_0: tl.constexpr, KEPT_1: tl.constexpr, KEPT_2: tl.constexpr, WIDE: tl.constexpr,
    FUNCTION: tl.constexpr, FIRST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program sums a slice of the dimensions that are not kept, for COLUMNS kept elements."""
    pid = tl.program_id(0).to(tl.int64)
    sample = pid // column_blocks
    k = pid % column_blocks * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1).to(tl.int64) * length
    stop = tl.minimum(start + length, repeats)
    if KEPT_2:  # the elements that lie side by side are those of a tile's last axis
        k, r = k[None, :], tl.arange(0, ROWS)[:, None]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
    else:
        k, r = k[:, None], tl.arange(0, ROWS)[None, :]
        total = tl.zeros((COLUMNS, ROWS), tl.float32)
    if not WIDE:
        k = k.to(tl.int32)
    for first in range(start, stop, ROWS):
        mask = (first + r < stop) & (k < columns)
        rest_k, rest_r = k, first + r
        if not WIDE:
            rest_r = rest_r.to(tl.int32)
        if KEPT_2:
            i2, rest_k = rest_k % d2, rest_k // d2
        else:
            i2, rest_r = rest_r % d2, rest_r // d2
        if KEPT_1:
            i1, rest_k = rest_k % d1, rest_k // d1
        else:
            i1, rest_r = rest_r % d1, rest_r // d1
        i0 = rest_k if KEPT_0 else rest_r
        i0, i1, i2 = i0.to(tl.int64), i1.to(tl.int64), i2.to(tl.int64)
        dy = _load(dy_ptr, sample * dy_n + i0 * dy_0 + i1 * dy_1 + i2 * dy_2, mask)
        a = _load(a_ptr, sample * a_n + i0 * a_0 + i1 * a_1 + i2 * a_2, mask)
        b = _load(b_ptr, sample * b_n + i0 * b_0 + i1 * b_1 + i2 * b_2, mask)
        total += tl.where(mask, _term(dy, a, b, scale, FUNCTION, FIRST), 0.0)
    out = sums_ptr + (sample * slices + tl.program_id(1)) * columns
    if KEPT_2:
        tl.store(out + k, tl.sum(total, 0, keep_dims=True), mask=k < columns)
    else:
        tl.store(out + k, tl.sum(total, 1, keep_dims=True), mask=k < columns)


def broadcast(
    a: Tensor, b: Tensor, y: Tensor, *,
    function: str, scale: float = 1.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """y = a + scale * b ("add"), a * b, a / b, or the maximum or minimum of both.

    All are [N, A, B, C] of any strides. y may be an operand that is not repeated. y is rounded
    once, as products of `precision` read it.
    """
    _launch(None, a, b, y, function, True, scale, precision)


def broadcast_grad(
    dy: Tensor, a: Tensor | None, b: Tensor | None, grad: Tensor, *,
    function: str, first: bool, scale: float = 1.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """The gradient of an operand of `broadcast` that is not repeated: a where `first`, else b.

    Operands that the gradient does not depend on may be None. grad may be dy.
    """
    _launch(dy, a, b, grad, function, first, scale, precision)


def broadcast_grad_sums(
    dy: Tensor, a: Tensor | None, b: Tensor | None, sums: Tensor, *,
    function: str, first: bool, kept: Flags, scale: float = 1.0,
) -> None:  # fmt: skip
    """Sums by slice of the gradient of an operand that is repeated in the dimensions not `kept`.

    sums are float32 [N, slices, columns]. The columns are the elements of the kept dimensions in
    their order, the number of slices is `sum_slices_of`(A * B * C / columns, columns).
    """
    if not dy.numel():
        return
    columns, repeats = _kept_and_repeated(dy, kept)
    length, slices = _slices(repeats, columns)
    width = _width(columns)
    column_blocks = triton.cdiv(columns, width)
    sizes, strides, flags = _collapsed((dy, a, b), kept)
    _broadcast_sums_kernel[(len(dy) * column_blocks, slices)](
        dy, a, b, sums, float(scale), column_blocks, columns, repeats, length, slices,
        *sizes, *strides, *flags, WIDE=columns * repeats >= NARROW,
        FUNCTION=function, FIRST=first, ROWS=TILE // width, COLUMNS=width, num_warps=NUM_WARPS,
    )  # fmt: skip


def sum_slices_of(repeats: int, columns: int) -> int:
    """Number of slices of a sample whose `columns` sums have `repeats` elements each."""
    return _slices(repeats, columns)[1]


def _slices(repeats: int, columns: int) -> tuple[int, int]:
    """Elements of a slice, and the number of slices."""
    rows = TILE // _width(columns)
    steps = max(STEPS, triton.next_power_of_2(triton.cdiv(repeats, rows * MOST_SLICES)))
    return rows * steps, triton.cdiv(repeats, rows * steps)


def _width(columns: int) -> int:
    """Columns of a tile."""
    return min(triton.next_power_of_2(columns), COLUMNS)


def _kept_and_repeated(dy: Tensor, kept: Flags) -> tuple[int, int]:
    """Elements of a sample along the kept dimensions, and along the other dimensions."""
    counts = [1, 1]
    for size, is_kept in zip(dy.shape[1:], kept, strict=True):
        counts[not is_kept] *= size
    return counts[0], counts[1]


def _launch(
    dy: Tensor | None, a: Tensor | None, b: Tensor | None, y: Tensor,
    function: str, first: bool, scale: float, precision: str,
) -> None:  # fmt: skip
    if not y.numel():
        return
    sizes, strides, _ = _collapsed((dy, a, b, y), (True, True, True))
    block = min(BLOCK, triton.next_power_of_2(sizes[1] * sizes[2]))
    blocks = triton.cdiv(sizes[1] * sizes[2], block)
    _broadcast_kernel[(len(y) * sizes[0] * blocks,)](
        dy, a, b, y, float(scale), blocks, *sizes, *strides,
        FUNCTION=function, FIRST=first, PRECISION=precision, BLOCK=block, num_warps=NUM_WARPS,
    )  # fmt: skip


def _collapsed(
    tensors: tuple[Tensor | None, ...], kept: Flags
) -> tuple[list[int], list[int], list[bool]]:
    """Sizes of three merged dimensions, all tensors' strides, and which dimensions are kept.

    Two adjacent dimensions are merged where both are kept, or neither is, and every tensor has one
    stride through both.
    """
    given = [each for each in tensors if each is not None]
    dims = [
        (size, is_kept, [each.stride(axis) for each in given])
        for axis, (size, is_kept) in enumerate(zip(given[0].shape[1:], kept, strict=True), 1)
        if size > 1
    ]
    merged: list[tuple[int, bool, list[int]]] = []
    for size, is_kept, strides in dims:
        if merged and merged[-1][1] == is_kept:
            outer, _, outer_strides = merged[-1]
            if all(o == size * s for o, s in zip(outer_strides, strides, strict=True)):
                merged[-1] = (outer * size, is_kept, strides)
                continue
        merged.append((size, is_kept, strides))
    last = merged[0][1] if merged else True
    merged = [(1, last, [0] * len(given))] * (3 - len(merged)) + merged
    numbers: list[int] = []
    found = iter(range(len(given)))
    for each in tensors:
        place = None if each is None else next(found)
        numbers.append(0 if each is None else each.stride(0))
        numbers += [0 if place is None else strides[place] for _, _, strides in merged]
    return [size for size, *_ in merged], numbers, [is_kept for _, is_kept, _ in merged]


_VALUES: Final[Mapping[str, Callable[[Tensor, Tensor, float], Tensor]]] = {
    "add": lambda a, b, scale: a + scale * b,
    "multiply": lambda a, b, _: a * b,
    "divide": lambda a, b, _: a / b,
    "maximum": lambda a, b, _: torch.maximum(a, b),
    "minimum": lambda a, b, _: torch.minimum(a, b),
}


def broadcast_reference(
    a: Tensor, b: Tensor, y: Tensor, *,
    function: str, scale: float = 1.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `broadcast` in float64."""
    exact = _VALUES[function](a.double(), b.double(), scale)
    y.copy_(stored_reference(exact.float(), y.dtype, precision))


def broadcast_grad_reference(
    dy: Tensor, a: Tensor | None, b: Tensor | None, grad: Tensor, *,
    function: str, first: bool, scale: float = 1.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `broadcast_grad` in float64."""
    exact = _terms(dy, a, b, function, first, scale)
    grad.copy_(stored_reference(exact.float(), grad.dtype, precision))


def broadcast_grad_sums_reference(
    dy: Tensor, a: Tensor | None, b: Tensor | None, sums: Tensor, *,
    function: str, first: bool, kept: Flags, scale: float = 1.0,
) -> None:  # fmt: skip
    """Computes `broadcast_grad_sums`."""
    if not dy.numel():
        return
    columns, repeats = _kept_and_repeated(dy, kept)
    order = sorted(range(1, 4), key=lambda axis: not kept[axis - 1])
    terms = _terms(dy, a, b, function, first, scale).permute(0, *order)
    slices = terms.reshape(len(dy), columns, repeats).split(_slices(repeats, columns)[0], 2)
    sums.copy_(torch.stack([each.sum(2) for each in slices], 1).view(sums.shape))


def _terms(
    dy: Tensor, a: Tensor | None, b: Tensor | None, function: str, first: bool, scale: float
) -> Tensor:
    dy = dy.double()
    values = [dy if each is None else each.double() for each in (a, b)]
    leaves = [each.detach().requires_grad_() for each in values]
    with torch.enable_grad():
        y = _VALUES[function](leaves[0], leaves[1], scale)
    return torch.autograd.grad(y, leaves[not first], dy)[0]
