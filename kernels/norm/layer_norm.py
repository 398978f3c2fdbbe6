"""Layer normalization of rows, the last dimension of maps (Ba, Kiros and Hinton 2016).

y = (x - mean) / sqrt(variance + eps) * weight + bias. The gradient computes the mean and variance
of a row again. Storing them would add 4% to the bytes of a map of 96 bfloat16 channels. A program
holds whole rows. It reads a row longer than LONGEST piece by piece.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from ..language.rounding import stored, stored_reference

LONGEST: Final = 4096  # elements of a row that a program holds
TILE: Final = 4096  # elements of a program that normalizes
GRAD_TILE: Final = 2048  # elements of a step of a gradient
CHUNK: Final = 32768  # elements of a chunk: a program sums the parameters' gradients over a chunk


@triton.jit
def _load(ptrs, mask):
    return tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _affine(weight_ptr, bias_ptr, c, columns):
    """Weight and bias of columns c, float32 [1, C]; 1 and 0 where there is none."""
    weight = tl.full(c.shape, 1.0, tl.float32)
    bias = tl.zeros(c.shape, tl.float32)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + c, mask=c < columns, other=0.0)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + c, mask=c < columns, other=0.0)
    return weight, bias


@triton.jit
def _normed(x, c, columns, eps):
    """Rows x [R, C] normalized, 0 beyond their ends, and their inverse deviations [R, 1]."""
    mean = tl.sum(x, 1, keep_dims=True) / columns
    centred = tl.where(c < columns, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, 1, keep_dims=True) / columns + eps)
    return centred * rstd, rstd


@triton.jit
def _long_moments(x_ptrs, columns, eps, COLUMNS: tl.constexpr):
    """Mean and inverse deviation [1, 1] of a row, which is read twice."""
    c = tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((1, COLUMNS), tl.float32)
    for first in range(0, columns, COLUMNS):
        total += _load(x_ptrs + first + c, first + c < columns)
    mean = tl.sum(total, 1, keep_dims=True) / columns
    squares = tl.zeros((1, COLUMNS), tl.float32)
    for first in range(0, columns, COLUMNS):
        x = _load(x_ptrs + first + c, first + c < columns)
        centred = tl.where(first + c < columns, x - mean, 0.0)
        squares += centred * centred
    return mean, tl.rsqrt(tl.sum(squares, 1, keep_dims=True) / columns + eps)


@triton.jit(do_not_specialize=["num_rows"])
def _layer_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, num_rows, columns, eps,
    WHOLE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, COLUMNS)[None, :]
    x_ptrs, y_ptrs = x_ptr + row * columns, y_ptr + row * columns
    if WHOLE:
        mask = (row < num_rows) & (c < columns)
        weight, bias = _affine(weight_ptr, bias_ptr, c, columns)
        normed, _ = _normed(_load(x_ptrs + c, mask), c, columns, eps)
        y = stored(normed * weight + bias, y_ptr.dtype.element_ty, PRECISION)
        tl.store(y_ptrs + c, y, mask=mask)
    else:
        mean, rstd = _long_moments(x_ptrs, columns, eps, COLUMNS)
        for first in range(0, columns, COLUMNS):
            mask = first + c < columns
            weight, bias = _affine(weight_ptr, bias_ptr, first + c, columns)
            normed = (_load(x_ptrs + first + c, mask) - mean) * rstd
            y = stored(normed * weight + bias, y_ptr.dtype.element_ty, PRECISION)
            tl.store(y_ptrs + first + c, y, mask=mask)


@triton.jit(do_not_specialize=["rows", "chunks", "chunk"])
def _layer_norm_grad_kernel(
    x_ptr, dy_ptr, weight_ptr, dx_ptr, sums_ptr, rows, columns, chunks, chunk, eps,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program computes dx for a chunk of a sample's rows, and sums dy * normed and dy over it."""
    pid = tl.program_id(0).to(tl.int64)
    start = (pid % chunks * chunk).to(tl.int32)
    stop = tl.minimum(start + chunk, rows)
    c = tl.arange(0, COLUMNS)[None, :]
    weight, _ = _affine(weight_ptr, None, c, columns)
    sum_weight = tl.zeros((ROWS, COLUMNS), tl.float32)
    sum_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(start, stop, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        mask = (row < stop) & (c < columns)
        offs = (pid // chunks * rows + row) * columns + c
        dy = _load(dy_ptr + offs, mask)
        normed, rstd = _normed(_load(x_ptr + offs, mask), c, columns, eps)
        if sums_ptr is not None:
            sum_weight += dy * normed
            sum_bias += dy
        if dx_ptr is not None:
            upper = dy * weight
            mean = tl.sum(upper, 1, keep_dims=True) / columns
            slope = tl.sum(upper * normed, 1, keep_dims=True) / columns
            dx = stored((upper - mean - normed * slope) * rstd, dx_ptr.dtype.element_ty, PRECISION)
            tl.store(dx_ptr + offs, dx, mask=mask)
    if sums_ptr is not None:
        sums_ptrs = sums_ptr + pid * 2 * columns + tl.arange(0, COLUMNS)
        in_row = tl.arange(0, COLUMNS) < columns
        tl.store(sums_ptrs, tl.sum(sum_weight, 0), mask=in_row)
        tl.store(sums_ptrs + columns, tl.sum(sum_bias, 0), mask=in_row)


@triton.jit
def _long_grad_kernel(
    x_ptr, dy_ptr, weight_ptr, dx_ptr, sums_ptr, columns, eps,
    PRECISION: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program computes dx for one long row, which is a chunk of its own."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, COLUMNS)[None, :]
    x_ptrs, dy_ptrs = x_ptr + row * columns, dy_ptr + row * columns
    mean, rstd = _long_moments(x_ptrs, columns, eps, COLUMNS)
    total = tl.zeros((1, COLUMNS), tl.float32)
    products = tl.zeros((1, COLUMNS), tl.float32)
    for first in range(0, columns, COLUMNS):
        mask = first + c < columns
        dy = _load(dy_ptrs + first + c, mask)
        normed = (_load(x_ptrs + first + c, mask) - mean) * rstd
        weight, _ = _affine(weight_ptr, None, first + c, columns)
        total += dy * weight
        products += dy * weight * normed
        if sums_ptr is not None:
            sums_ptrs = sums_ptr + row * 2 * columns + first + c
            tl.store(sums_ptrs, dy * normed, mask=mask)
            tl.store(sums_ptrs + columns, dy, mask=mask)
    if dx_ptr is not None:
        upper_mean = tl.sum(total, 1, keep_dims=True) / columns
        slope = tl.sum(products, 1, keep_dims=True) / columns
        for first in range(0, columns, COLUMNS):
            mask = first + c < columns
            dy = _load(dy_ptrs + first + c, mask)
            normed = (_load(x_ptrs + first + c, mask) - mean) * rstd
            weight, _ = _affine(weight_ptr, None, first + c, columns)
            dx = (dy * weight - upper_mean - normed * slope) * rstd
            dx = stored(dx, dx_ptr.dtype.element_ty, PRECISION)
            tl.store(dx_ptr + row * columns + first + c, dx, mask=mask)


def layer_norm_chunks(rows: int, columns: int) -> int:
    """Number of chunks of a sample [rows, columns] in the sums of `layer_norm_grad`."""
    return triton.cdiv(rows, _chunk_of(columns))


def _chunk_of(columns: int) -> int:
    """Rows of a chunk."""
    return 1 if columns > LONGEST else max(1, CHUNK // triton.next_power_of_2(columns))


def _tile_of(rows: int, columns: int, elements: int) -> tuple[int, int]:
    """Rows and columns of a program's tile."""
    block = min(triton.next_power_of_2(columns), LONGEST)
    return min(triton.next_power_of_2(rows), max(1, elements // block)), block


def layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, y: Tensor, *,
    eps: float, precision: str = "ieee",
) -> None:  # fmt: skip
    """y = x [..., F] normalized over F, times weight, plus bias, float32 [F].

    Maps are contiguous. y may be x.
    """
    if x.numel() == 0:
        return
    columns = x.shape[-1]
    num_rows = x.numel() // columns
    block_r, block_c = _tile_of(TILE, columns, TILE)
    _layer_norm_kernel[(triton.cdiv(num_rows, block_r),)](
        x, weight, bias, y, num_rows, columns, eps, WHOLE=columns <= LONGEST, PRECISION=precision,
        ROWS=block_r, COLUMNS=block_c, num_warps=max(4, block_r * block_c // 1024),
    )  # fmt: skip


def layer_norm_grad(
    x: Tensor, dy: Tensor, weight: Tensor | None, dx: Tensor | None, sums: Tensor | None, *,
    eps: float, precision: str = "ieee",
) -> None:  # fmt: skip
    """The gradient dx of `layer_norm` from x and dy, and sums by chunk of parameter gradients.

    x is [N, ..., F]. sums are float32 [N, `layer_norm_chunks`, 2, F], the weight's first. dx may be
    dy. Either output may be None.
    """
    if x.numel() == 0:
        return
    samples, columns = x.shape[0], x.shape[-1]
    rows = x.numel() // (samples * columns)
    if columns > LONGEST:
        _long_grad_kernel[(samples * rows,)](
            x, dy, weight, dx, sums, columns, eps,
            PRECISION=precision, COLUMNS=LONGEST, num_warps=8,
        )  # fmt: skip
        return
    chunk, chunks = _chunk_of(columns), layer_norm_chunks(rows, columns)
    block_r, block_c = _tile_of(min(rows, chunk), columns, GRAD_TILE)
    _layer_norm_grad_kernel[(samples * chunks,)](
        x, dy, weight, dx, sums, rows, columns, chunks, chunk, eps, PRECISION=precision,
        ROWS=block_r, COLUMNS=block_c, num_warps=max(4, block_r * block_c // 512),
    )  # fmt: skip


def layer_norm_reference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, y: Tensor, *,
    eps: float, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `layer_norm` in float64."""
    wide = [None if param is None else param.double() for param in (weight, bias)]
    exact = functional.layer_norm(x.double(), x.shape[-1:], *wide, eps)
    y.copy_(stored_reference(exact.float(), y.dtype, precision))


def layer_norm_grad_reference(
    x: Tensor, dy: Tensor, weight: Tensor | None, dx: Tensor | None, sums: Tensor | None, *,
    eps: float, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `layer_norm_grad` in float64."""
    if x.numel() == 0:
        return
    rows, upper = x.double(), dy.double()
    centred = rows - rows.mean(-1, keepdim=True)
    rstd = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    normed = centred * rstd
    if sums is not None:
        _sum_chunks(upper * normed, sums[:, :, 0])
        _sum_chunks(upper, sums[:, :, 1])
    if dx is not None:
        upper = upper if weight is None else upper * weight.double()
        slope = (upper * normed).mean(-1, keepdim=True)
        exact = (upper - upper.mean(-1, keepdim=True) - normed * slope) * rstd
        dx.copy_(stored_reference(exact.float(), dx.dtype, precision))


def _sum_chunks(values: Tensor, sums: Tensor) -> None:
    columns = values.shape[-1]
    pieces = values.flatten(1).view(len(values), -1, columns).split(_chunk_of(columns), 1)
    for chunk, piece in enumerate(pieces):
        sums[:, chunk] = piece.sum(1)
