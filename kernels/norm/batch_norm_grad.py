"""Gradients of batch normalization, in two passes over its maps.

With xhat = (x - mean) rstd of N rows, the gradients of bias and weight are the sums of dy and of dy
xhat over the rows, and dx = weight rstd (dy - dbias / N - xhat dweight / N). Where a ReLU or
another function follows, dy is first multiplied by the function's derivative. Its argument is
computed again from x by the arithmetic of the forward pass. Where a residual was added before a
ReLU, the ReLU's output or its sign bits mask dy instead; the masked gradient is also the
residual's, and is written while it is summed. So is the sum of a gradient that comes in two terms.
"""

from typing import TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..codec.sign_bits import passes, passes_reference, words_of
from ..language.rounding import as_stored, rounded_alone, stored, stored_reference
from ..pointwise.activation import (
    BY_EXACT_OUTPUT,
    BY_OUTPUT,
    activate_grad_reference,
    activate_reference,
)
from ..pointwise.activation_math import activated, grad_by_input, grad_by_output
from . import batch_norm_tiles as tiles
from .batch_norm import normalized_reference
from .batch_norm_tiles import in_tile, normalized, normalizer, offsets, place_of, slice_at, words_at
from .written_tiles import columns_at, mask_at, written_tiles

# The input of the residual's own batch normalization, its statistics, and its partial sums.
ResidualSums: TypeAlias = tuple[Tensor, Tensor, Tensor]


@triton.jit
def _through_function(
    x, dy, mean, scale, shift, coefficient, dtype: tl.constexpr, FUNCTION: tl.constexpr,
    BY_OUTPUT: tl.constexpr, OUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the normalized x, rounded to `dtype`, from dy of the function's output."""
    z = normalized(x, mean, scale, shift)
    if FUNCTION == "relu":
        dz = tl.where(z.to(dtype).to(tl.float32) <= 0, 0.0, dy).to(dtype).to(tl.float32)
    elif BY_OUTPUT:
        y = activated(as_stored(z, dtype), coefficient, FUNCTION)
        y = as_stored(stored(y, tl.float32, OUT_PRECISION), dtype)
        dz = as_stored(grad_by_output(y, dy, coefficient, FUNCTION), dtype)
    else:
        dz = as_stored(grad_by_input(as_stored(z, dtype), dy, coefficient, FUNCTION), dtype)
    return rounded_alone(dz)


@triton.jit(do_not_specialize=["num_rows", "group_rows", "slice_rows", "splits"])
def _sums_kernel(
    x_ptr, dy_ptr, term_ptr, statistics_ptr, weight_ptr, bias_ptr, y_ptr, signs_ptr, partials_ptr,
    grad_ptr, residual_ptr, residual_statistics_ptr, residual_partials_ptr, num_rows, channels,
    x_pitch, dy_pitch, term_pitch, y_pitch, grad_pitch, residual_pitch, signs_pitch,
    group_rows, slice_rows, splits, coefficient,
    FUNCTION: tl.constexpr, BY_OUTPUT: tl.constexpr, OUT_PRECISION: tl.constexpr,
    PRECISION: tl.constexpr, ALIGN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A program sums dy and dy (x - mean) of BLOCK_C channels of a slice, also for the residual."""
    part, c, mask_c = place_of(tl.program_id(0), channels, ALIGN, BLOCK_C)
    start, count = slice_at(part, num_rows, group_rows, slice_rows, splits)
    mean, scale, shift = normalizer(statistics_ptr, weight_ptr, bias_ptr, c, mask_c, channels)
    sums = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    products = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    if residual_ptr is not None:
        residual_products = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
        residual_mean = tl.load(residual_statistics_ptr + c, mask=mask_c, other=0.0)[None, :]
    for first in tl.range(0, count, BLOCK_R, num_stages=STAGES):
        mask = in_tile(count - first, mask_c, BLOCK_R)
        ptrs = x_ptr + offsets(start + first, c, x_pitch, ALIGN, BLOCK_R)
        x = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        ptrs = dy_ptr + offsets(start + first, c, dy_pitch, ALIGN, BLOCK_R)
        dy = tl.load(ptrs, mask=mask, other=0.0)
        if term_ptr is not None:
            ptrs = term_ptr + offsets(start + first, c, term_pitch, ALIGN, BLOCK_R)
            total = dy.to(tl.float32) + tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
            dy = total.to(dy_ptr.dtype.element_ty)
        dy = dy.to(tl.float32)
        if signs_ptr is not None:
            dtype: tl.constexpr = signs_ptr.dtype.element_ty
            offs, mask_w = words_at(
                start + first, count - first, channels, signs_pitch, dtype, BLOCK_R, BLOCK_C
            )  # fmt: skip
            dy = tl.where(passes(tl.load(signs_ptr + offs, mask=mask_w, other=0)), dy, 0.0)
        elif y_ptr is not None:
            ptrs = y_ptr + offsets(start + first, c, y_pitch, ALIGN, BLOCK_R)
            dy = tl.where(tl.load(ptrs, mask=mask, other=0.0) <= 0, 0.0, dy)
        elif FUNCTION != "":
            dy = _through_function(
                x, dy, mean, scale, shift, coefficient, x_ptr.dtype.element_ty,
                FUNCTION, BY_OUTPUT, OUT_PRECISION,
            )  # fmt: skip
        if grad_ptr is not None:
            dy = stored(dy, tl.float32, PRECISION)
            ptrs = grad_ptr + offsets(start + first, c, grad_pitch, ALIGN, BLOCK_R)
            tl.store(ptrs, dy.to(grad_ptr.dtype.element_ty), mask=mask)
        sums += dy
        products = tl.fma(dy, x - mean, products)
        if residual_ptr is not None:
            ptrs = residual_ptr + offsets(start + first, c, residual_pitch, ALIGN, BLOCK_R)
            value = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
            residual_products = tl.fma(dy, value - residual_mean, residual_products)
    ptrs = partials_ptr + part * 2 * channels + c
    tl.store(ptrs, tl.sum(sums, 0), mask=mask_c)
    tl.store(ptrs + channels, tl.sum(products, 0), mask=mask_c)
    if residual_ptr is not None:
        ptrs = residual_partials_ptr + part * 2 * channels + c
        tl.store(ptrs, tl.sum(sums, 0), mask=mask_c)
        tl.store(ptrs + channels, tl.sum(residual_products, 0), mask=mask_c)


@triton.jit(do_not_specialize=["count"])
def _params_kernel(
    partials_ptr, statistics_ptr, dweight_ptr, dbias_ptr, count, channels,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c = c < channels
    sums = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    products = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for first in tl.range(0, count, BLOCK_P, num_stages=STAGES):
        p = first + tl.arange(0, BLOCK_P)
        mask = (p < count)[:, None] & mask_c[None, :]
        ptrs = partials_ptr + p[:, None] * 2 * channels + c[None, :]
        sums += tl.load(ptrs, mask=mask, other=0.0)
        products += tl.load(ptrs + channels, mask=mask, other=0.0)
    rstd = tl.load(statistics_ptr + channels + c, mask=mask_c, other=0.0)
    tl.store(dbias_ptr + c, tl.sum(sums, 0), mask=mask_c)
    tl.store(dweight_ptr + c, tl.sum(products, 0) * rstd, mask=mask_c)


@triton.jit(do_not_specialize=["num_rows", "steps", "rounded_from"])
def _grad_input_kernel(
    x_ptr, dy_ptr, statistics_ptr, weight_ptr, bias_ptr, dweight_ptr, dbias_ptr, added_ptr, dx_ptr,
    num_rows, channels, width, steps, dx_pitch, x_pitch, dy_pitch, added_pitch, rounded_from, share,
    coefficient, FUNCTION: tl.constexpr, BY_OUTPUT: tl.constexpr, OUT_PRECISION: tl.constexpr,
    PRECISION: tl.constexpr, C_ALIGN: tl.constexpr, RUNS: tl.constexpr,
    ALIGN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    channels = channels // C_ALIGN * C_ALIGN
    number, column, c, mask_c = columns_at(channels, width, C_ALIGN, RUNS, ALIGN, BLOCK_C)
    mean, scale, shift = normalizer(statistics_ptr, weight_ptr, bias_ptr, c, mask_c, channels)
    if dbias_ptr is not None:
        rstd = tl.load(statistics_ptr + channels + c, mask=mask_c, other=0.0)
        dbias = tl.load(dbias_ptr + c, mask=mask_c, other=0.0) * share
        slope = tl.load(dweight_ptr + c, mask=mask_c, other=0.0) * rstd * share
    for step in range(steps):
        start = (number * steps + step) * BLOCK_R
        mask = mask_at(
            start, column, mask_c, num_rows, channels, width, RUNS, ALIGN, BLOCK_R, BLOCK_C
        )
        ptrs = dy_ptr + offsets(start, column, dy_pitch, ALIGN, BLOCK_R)
        dx = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        if (FUNCTION != "") or (dbias_ptr is not None):
            ptrs = x_ptr + offsets(start, column, x_pitch, ALIGN, BLOCK_R)
            x = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
            if FUNCTION != "":
                dx = _through_function(
                    x, dx, mean, scale, shift, coefficient, x_ptr.dtype.element_ty,
                    FUNCTION, BY_OUTPUT, OUT_PRECISION,
                )  # fmt: skip
            if dbias_ptr is not None:
                dx = tl.fma(mean - x, slope[None, :], dx - dbias[None, :])
        dx = (dx * scale).to(dx_ptr.dtype.element_ty)
        if added_ptr is not None:
            ptrs = added_ptr + offsets(start, column, added_pitch, ALIGN, BLOCK_R)
            total = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
            total += rounded_alone(dx.to(tl.float32))
            dx = total.to(dx_ptr.dtype.element_ty)
        last = stored(dx, dx_ptr.dtype.element_ty, PRECISION)
        if rounded_from is not None:
            last = tl.where((c >= rounded_from)[None, :], last, dx)
        tl.store(dx_ptr + offsets(start, column, dx_pitch, ALIGN, BLOCK_R), last, mask=mask)


def batch_norm_grad_sums(
    x: Tensor, dy: Tensor, term: Tensor | None, statistics: Tensor,
    weight: Tensor | None, bias: Tensor | None, y: Tensor | None,
    partials: Tensor, grad: Tensor | None, *, group: int, residual: ResidualSums | None = None,
    function: str = "", coefficient: float = 0.0, out_precision: str = "ieee",
    precision: str = "ieee",
) -> None:  # fmt: skip
    """Sums of g and of g (x - mean) over each slice of `batch_norm_moments`, into partials.

    g is the gradient of the normalized x: dy, or dy + term rounded to dy's type, taken through the
    function that follows. Given y, the output of a ReLU or its sign bits uint8 [..., C / 8], g is 0
    where y is not above zero. Without y, `function` and `coefficient` are those of `batch_norm`,
    whose output was stored with `out_precision`. `grad`, which may be dy, gets g, rounded as
    products of `precision` read it. `residual` gets the same sums for a residual that was
    normalized too. Each map is moved once.
    """
    cut = tiles.slices_of(x.shape, partials, group)
    channels = x.shape[-1]
    signs = None
    if y is not None and y.dtype == torch.uint8:
        y, signs = None, words_of(y, channels)
    given = (None, None, None) if residual is None else residual
    tile = tiles.summing(x, dy, term, y, grad, given[0])
    grid = (cut.count * triton.cdiv(channels, tile["BLOCK_C"]),)
    _sums_kernel[grid](
        x, dy, term, statistics, weight, bias, y, signs, partials, grad, *given,
        cut.rows, channels,
        *map(tiles.pitch_of, (x, dy, term, y, grad, given[0], signs)),
        cut.group_rows, cut.slice_rows, cut.splits, float(coefficient),
        **_function_constants(function, out_precision), PRECISION=precision, **tile,
    )  # fmt: skip


def _function_constants(function: str, out_precision: str) -> dict[str, str | bool]:
    """Compile-time arguments of `_through_function`. Few gradients need a precision."""
    by_output = function in BY_OUTPUT
    rounded = out_precision if by_output and function not in BY_EXACT_OUTPUT else "ieee"
    return {"FUNCTION": function, "BY_OUTPUT": by_output, "OUT_PRECISION": rounded}


def batch_norm_grad_params(
    partials: Tensor, statistics: Tensor, dweight: Tensor, dbias: Tensor
) -> None:
    """The gradients of weight and bias, float32 [C], from the sums of `batch_norm_grad_sums`."""
    channels = statistics.shape[1]
    _params_kernel[(triton.cdiv(channels, tiles.MERGED["BLOCK_C"]),)](
        partials, statistics, dweight, dbias, partials.shape[0] * partials.shape[1], channels,
        **tiles.MERGED,
    )  # fmt: skip


def batch_norm_grad_input(
    x: Tensor | None, dy: Tensor, statistics: Tensor, weight: Tensor | None, bias: Tensor | None,
    dweight: Tensor | None, dbias: Tensor | None, dx: Tensor, *,
    rows: int, added: Tensor | None = None, rounded_from: int | None = None,
    function: str = "", coefficient: float = 0.0, out_precision: str = "ieee",
    precision: str = "ieee",
) -> None:  # fmt: skip
    """The gradient dx of batch normalization from dy, which may be dx.

    dweight and dbias are given where x was normalized by its own batch's statistics. `rows` is the
    number of rows of the whole batch. `function` is that of `batch_norm_grad_sums`. Without a
    function, dweight and dbias, x is not needed. `added`, which may be dx, is added to dx. dx, or
    its channels from `rounded_from` on, are rounded as products of `precision` read them. Each map
    is moved once.
    """
    if dx.numel() == 0:
        return
    channels = dx.shape[-1]
    tile = written_tiles(dx, x, dy, added)
    _grad_input_kernel[tile.grid](
        x, dy, statistics, weight, bias, dweight, dbias, added, dx,
        dx.numel() // channels, channels, tile.width, tile.steps, *tile.pitches, rounded_from,
        1.0 / rows, float(coefficient),
        **_function_constants(function, out_precision), PRECISION=precision, **tile.constants,
    )  # fmt: skip


def batch_norm_grad_sums_reference(
    x: Tensor, dy: Tensor, term: Tensor | None, statistics: Tensor,
    weight: Tensor | None, bias: Tensor | None, y: Tensor | None,
    partials: Tensor, grad: Tensor | None, *, group: int, residual: ResidualSums | None = None,
    function: str = "", coefficient: float = 0.0, out_precision: str = "ieee",
    precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `batch_norm_grad_sums` in torch."""
    if term is not None:
        dy = (dy.float() + term.float()).to(dy.dtype)
    if y is not None:
        dy = dy.masked_fill(~passes_reference(y) if y.dtype == torch.uint8 else y <= 0, 0.0)
    elif function:
        settings = {"function": function, "coefficient": coefficient, "precision": out_precision}
        dy = _through_function_reference(x, dy, statistics, weight, bias, **settings)
    if grad is not None:
        dy = stored_reference(dy, grad.dtype, precision)
        grad.copy_(dy)
    channels = x.shape[-1]
    off, terms = ((t.reshape(-1, channels).double()) for t in (x - statistics[0].double(), dy))
    found = partials.view(-1, *partials.shape[2:])
    for (start, stop), (total, product) in zip(
        tiles.slice_ranges(x.shape, partials, group), found, strict=True
    ):
        total.copy_(terms[start:stop].sum(0))
        product.copy_((terms[start:stop] * off[start:stop]).sum(0))
    if residual is not None:
        operands = (residual[0], dy, None, residual[1], None, None, None, residual[2], None)
        batch_norm_grad_sums_reference(*operands, group=group)


def batch_norm_grad_params_reference(
    partials: Tensor, statistics: Tensor, dweight: Tensor, dbias: Tensor
) -> None:
    """Computes `batch_norm_grad_params` in torch."""
    totals = partials.double().sum((0, 1))
    dbias.copy_(totals[0])
    dweight.copy_(totals[1] * statistics[1])


def batch_norm_grad_input_reference(
    x: Tensor | None, dy: Tensor, statistics: Tensor, weight: Tensor | None, bias: Tensor | None,
    dweight: Tensor | None, dbias: Tensor | None, dx: Tensor, *,
    rows: int, added: Tensor | None = None, rounded_from: int | None = None,
    function: str = "", coefficient: float = 0.0, out_precision: str = "ieee",
    precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `batch_norm_grad_input` in torch."""
    grad = dy.double()
    if function and x is not None:
        settings = {"function": function, "coefficient": coefficient, "precision": out_precision}
        grad = _through_function_reference(x, dy, statistics, weight, bias, **settings).double()
    mean, rstd = statistics[0].double(), statistics[1].double()
    if dbias is not None and dweight is not None and x is not None:
        grad = grad - (dbias + (x.double() - mean) * rstd * dweight) / rows
    grad = grad * (rstd if weight is None else rstd * weight)
    total = grad.float().to(dx.dtype)
    if added is not None:
        total = (added.float() + total.float()).to(dx.dtype)
    dx.copy_(total)
    last = slice(rounded_from, None)
    dx[..., last] = stored_reference(total[..., last], dx.dtype, precision)


def _through_function_reference(
    x: Tensor, dy: Tensor, statistics: Tensor, weight: Tensor | None, bias: Tensor | None, *,
    function: str, coefficient: float, precision: str,
) -> Tensor:  # fmt: skip
    z = normalized_reference(x, statistics, weight, bias, x.dtype)
    if function == "relu":
        return dy.masked_fill(z <= 0, 0.0)
    settings = {"function": function, "coefficient": coefficient}
    if function in BY_OUTPUT:
        stored_as = "ieee" if function in BY_EXACT_OUTPUT else precision
        activate_reference(z, z, **settings, precision=stored_as)
    dz = torch.empty_like(z)
    activate_grad_reference(z, dy, dz, **settings)
    return dz
