"""Sums, means, extremes, norms and variances over axes of maps, with their gradients.

Adjacent axes that are kept, or reduced, count as one: [2 kept, 3 reduced, 5 kept]. A program
computes some results of one sample. The order of their sums depends on the sizes alone, and results
have the same bits in any launch.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.rounding import stored, stored_reference

# The gradients of "amax" and "amin" are divided among all elements equal to the extreme. Those of
# "max" and "min" go to the first such element.
FUNCTIONS: Final = ("sum", "mean", "amax", "amin", "max", "min", "norm", "var", "std")
READS_INPUT: Final = frozenset(FUNCTIONS) - {"sum", "mean"}  # functions whose gradient reads x
MOST_GROUPS: Final = 2  # kept axes, and reduced axes, at most
TILE: Final = 4096  # elements of a tile
KEPT_TILE: Final = 64  # results of a program, at most
NUM_WARPS: Final = 8
SIZES: Final = ["kept", "reduced", "kept_inner", "reduced_inner", "tiles"]


@triton.jit
def _offsets(i, inner, outer_stride, inner_stride, SPLIT: tl.constexpr):
    """Offsets in a sample of elements i of the kept or of the reduced axes."""
    if SPLIT:
        return (i // inner).to(tl.int64) * outer_stride + (i % inner).to(tl.int64) * inner_stride
    return i.to(tl.int64) * inner_stride


@triton.jit
def _total(
    x_ptr, places, mask_k, mean, reduced, reduced_inner, outer_stride, inner_stride,
    KIND: tl.constexpr, SPLIT: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """The sum, the sum of squares about `mean`, or the maximum for kept elements: [BLOCK_K, 1]."""
    total = tl.zeros((BLOCK_K, BLOCK_R), tl.float32)
    if KIND == "largest":
        total = total - float("inf")
    for start in range(0, reduced, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)[None, :]
        mask = mask_k & (r < reduced)
        ptrs = x_ptr + places + _offsets(r, reduced_inner, outer_stride, inner_stride, SPLIT)
        x = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        if KIND == "largest":
            larger = mask & ((x > total) | (x != x))
            total = tl.where(larger, x, total)
        elif KIND == "squares":
            x = tl.where(mask, x - mean, 0.0)
            total = tl.fma(x, x, total)
        else:
            total += x
    if KIND == "largest":
        invalid = tl.max((total != total).to(tl.int32), 1)[:, None]
        return tl.where(invalid > 0, float("nan"), tl.max(total, 1)[:, None])
    return tl.sum(total, 1)[:, None]


@triton.jit
def _smallest(
    x_ptr, places, mask_k, reduced, reduced_inner, outer_stride, inner_stride,
    SPLIT: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((BLOCK_K, BLOCK_R), tl.float32) + float("inf")
    for start in range(0, reduced, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)[None, :]
        mask = mask_k & (r < reduced)
        ptrs = x_ptr + places + _offsets(r, reduced_inner, outer_stride, inner_stride, SPLIT)
        x = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        total = tl.where(mask & ((x < total) | (x != x)), x, total)
    invalid = tl.max((total != total).to(tl.int32), 1)[:, None]
    return tl.where(invalid > 0, float("nan"), tl.min(total, 1)[:, None])


@triton.jit
def _first_and_count(
    x_ptr, places, mask_k, value, reduced, reduced_inner, outer_stride, inner_stride,
    SPLIT: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Index of the first reduced element that equals `value`, and the number of such elements."""
    first = tl.zeros((BLOCK_K, BLOCK_R), tl.int32) + reduced
    count = tl.zeros((BLOCK_K, BLOCK_R), tl.int32)
    for start in range(0, reduced, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)[None, :]
        mask = mask_k & (r < reduced)
        ptrs = x_ptr + places + _offsets(r, reduced_inner, outer_stride, inner_stride, SPLIT)
        x = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        alike = mask & (x == value)
        first = tl.where(alike & (r < first), r, first)
        count += alike.to(tl.int32)
    return tl.min(first, 1)[:, None], tl.sum(count, 1)[:, None]


@triton.jit
def _place(tiles, kept, kept_inner, outer_stride, inner_stride, SPLIT: tl.constexpr,
           BLOCK_K: tl.constexpr):  # fmt: skip
    """This program's sample (int64), kept elements [BLOCK_K, 1], their offsets and their mask."""
    pid = tl.program_id(0)
    k = pid % tiles * BLOCK_K + tl.arange(0, BLOCK_K)[:, None]
    places = _offsets(k, kept_inner, outer_stride, inner_stride, SPLIT)
    return (pid // tiles).to(tl.int64), k, places, k < kept


@triton.jit(do_not_specialize=SIZES)
def _reduce_kernel(
    x_ptr, y_ptr, kept, reduced, kept_inner, reduced_inner, tiles, divisor,
    kept_outer_stride, kept_stride, reduced_outer_stride, reduced_stride,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr, SPLIT_K: tl.constexpr, SPLIT_R: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    sample, k, places, mask = _place(
        tiles, kept, kept_inner, kept_outer_stride, kept_stride, SPLIT_K, BLOCK_K
    )
    x_ptr += sample * kept * reduced
    if FUNCTION == "amax" or FUNCTION == "max":
        y = _total(x_ptr, places, mask, 0.0, reduced, reduced_inner, reduced_outer_stride,
                   reduced_stride, "largest", SPLIT_R, BLOCK_K, BLOCK_R)  # fmt: skip
    elif FUNCTION == "amin" or FUNCTION == "min":
        y = _smallest(x_ptr, places, mask, reduced, reduced_inner, reduced_outer_stride,
                      reduced_stride, SPLIT_R, BLOCK_K, BLOCK_R)  # fmt: skip
    elif FUNCTION == "norm":
        y = tl.sqrt_rn(_total(
            x_ptr, places, mask, 0.0, reduced, reduced_inner, reduced_outer_stride,
            reduced_stride, "squares", SPLIT_R, BLOCK_K, BLOCK_R,
        ))  # fmt: skip
    else:
        y = _total(x_ptr, places, mask, 0.0, reduced, reduced_inner, reduced_outer_stride,
                   reduced_stride, "sum", SPLIT_R, BLOCK_K, BLOCK_R)  # fmt: skip
        if FUNCTION == "mean":
            y = y / divisor
        elif FUNCTION != "sum":
            y = _total(
                x_ptr, places, mask, y / reduced, reduced, reduced_inner, reduced_outer_stride,
                reduced_stride, "squares", SPLIT_R, BLOCK_K, BLOCK_R,
            ) / divisor  # fmt: skip
            if FUNCTION == "std":
                y = tl.sqrt_rn(y)
    tl.store(y_ptr + sample * kept + k, stored(y, y_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def _reduce_grad_kernel(
    x_ptr, dy_ptr, dx_ptr, kept, reduced, kept_inner, reduced_inner, tiles, divisor,
    kept_outer_stride, kept_stride, reduced_outer_stride, reduced_stride,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr, SPLIT_K: tl.constexpr, SPLIT_R: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    sample, k, places, mask_k = _place(
        tiles, kept, kept_inner, kept_outer_stride, kept_stride, SPLIT_K, BLOCK_K
    )
    if x_ptr is not None:
        x_ptr += sample * kept * reduced
    dx_ptr += sample * kept * reduced
    dy = tl.load(dy_ptr + sample * kept + k, mask=mask_k, other=0.0).to(tl.float32)
    value = dy * 0.0
    first = k * 0
    if FUNCTION == "mean":
        dy = dy / divisor
    elif FUNCTION == "norm":
        value = tl.sqrt_rn(_total(
            x_ptr, places, mask_k, 0.0, reduced, reduced_inner, reduced_outer_stride,
            reduced_stride, "squares", SPLIT_R, BLOCK_K, BLOCK_R,
        ))  # fmt: skip
        dy = tl.where(value == 0.0, 0.0, dy / value)
        value = value * 0.0
    elif FUNCTION == "var" or FUNCTION == "std":
        value = _total(
            x_ptr, places, mask_k, 0.0, reduced, reduced_inner, reduced_outer_stride,
            reduced_stride, "sum", SPLIT_R, BLOCK_K, BLOCK_R,
        ) / reduced  # fmt: skip
        if FUNCTION == "std":
            squares = _total(
                x_ptr, places, mask_k, value, reduced, reduced_inner, reduced_outer_stride,
                reduced_stride, "squares", SPLIT_R, BLOCK_K, BLOCK_R,
            )  # fmt: skip
            deviation = tl.sqrt_rn(squares / divisor)
            dy = tl.where(deviation == 0.0, 0.0, dy / (deviation * divisor))
        else:
            dy = dy * 2.0 / divisor
    elif FUNCTION != "sum":
        if FUNCTION == "amax" or FUNCTION == "max":
            value = _total(
                x_ptr, places, mask_k, 0.0, reduced, reduced_inner, reduced_outer_stride,
                reduced_stride, "largest", SPLIT_R, BLOCK_K, BLOCK_R,
            )  # fmt: skip
        else:
            value = _smallest(
                x_ptr, places, mask_k, reduced, reduced_inner, reduced_outer_stride,
                reduced_stride, SPLIT_R, BLOCK_K, BLOCK_R,
            )  # fmt: skip
        first, count = _first_and_count(
            x_ptr, places, mask_k, value, reduced, reduced_inner, reduced_outer_stride,
            reduced_stride, SPLIT_R, BLOCK_K, BLOCK_R,
        )  # fmt: skip
        if FUNCTION == "amax" or FUNCTION == "amin":
            dy = dy / count.to(tl.float32)
    for start in range(0, reduced, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)[None, :]
        mask = mask_k & (r < reduced)
        offs = places + _offsets(r, reduced_inner, reduced_outer_stride, reduced_stride, SPLIT_R)
        dx = dy + tl.zeros((BLOCK_K, BLOCK_R), tl.float32)
        if FUNCTION == "max" or FUNCTION == "min":
            dx = tl.where(r == first, dx, 0.0)
        elif FUNCTION != "sum" and FUNCTION != "mean":
            x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
            if FUNCTION == "amax" or FUNCTION == "amin":
                dx = tl.where(x == value, dx, 0.0)
            else:
                dx = dx * (x - value)
        tl.store(dx_ptr + offs, stored(dx, dx_ptr.dtype.element_ty, PRECISION), mask=mask)


def reduce_axes(
    x: Tensor, y: Tensor, *, sizes: Sequence[int], reduced: Sequence[bool], function: str,
    correction: float = 0.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """y [N, K] = one of FUNCTIONS over the `reduced` axes of x [N, *sizes]. Both are contiguous.

    Kept and reduced axes alternate, at most MOST_GROUPS of each. "var" and "std" divide by the
    number of reduced elements less the `correction`.
    """
    if y.numel():
        grid, settings = _launch(len(x), sizes, reduced, function, correction)
        _reduce_kernel[grid](x, y, **settings, FUNCTION=function, PRECISION=precision)


def reduce_axes_grad(
    x: Tensor | None, dy: Tensor, dx: Tensor, *, sizes: Sequence[int], reduced: Sequence[bool],
    function: str, correction: float = 0.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """The gradient dx [N, *sizes] of `reduce_axes` from dy [N, K]. Only READS_INPUT need x."""
    if dx.numel():
        grid, settings = _launch(len(dx), sizes, reduced, function, correction)
        _reduce_grad_kernel[grid](x, dy, dx, **settings, FUNCTION=function, PRECISION=precision)


def _launch(
    samples: int, sizes: Sequence[int], reduced: Sequence[bool], function: str, correction: float
) -> tuple[tuple[int], dict[str, Any]]:
    """The grid, and the arguments of a launch that depend on sizes."""
    kept, reduction = (
        [i for i, each in enumerate(reduced) if each is flag] for flag in (False, True)
    )
    count_k, count_r = (prod(sizes[i] for i in axes) for axes in (kept, reduction))
    found: dict[str, Any] = {}
    for name, axes in (("kept", kept), ("reduced", reduction)):
        strides = [prod(sizes[i + 1 :]) for i in axes]
        found[f"{name}_inner"] = sizes[axes[-1]] if axes else 1
        found[f"{name}_stride"] = strides[-1] if axes else 0
        found[f"{name}_outer_stride"] = strides[0] if len(axes) == MOST_GROUPS else 0
    block_k = min(triton.next_power_of_2(count_k), KEPT_TILE)
    block_r = min(triton.next_power_of_2(count_r), TILE // block_k)
    tiles = triton.cdiv(count_k, block_k)
    divisor = (
        float(max(count_r - correction, 0.0)) if function in ("var", "std") else float(count_r)
    )
    return (samples * tiles,), {
        "kept": count_k, "reduced": count_r, "tiles": tiles, "divisor": divisor, **found,
        "SPLIT_K": len(kept) == MOST_GROUPS, "SPLIT_R": len(reduction) == MOST_GROUPS,
        "BLOCK_K": block_k, "BLOCK_R": block_r,
        "num_warps": max(1, min(block_k * block_r // 512, NUM_WARPS)),
    }  # fmt: skip


def reduce_axes_reference(
    x: Tensor, y: Tensor, *, sizes: Sequence[int], reduced: Sequence[bool], function: str,
    correction: float = 0.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `reduce_axes` in torch."""
    if y.numel():
        rows = _rows(x.double(), sizes, reduced)
        y.copy_(stored_reference(_reduced(rows, function, correction).float(), y.dtype, precision))


def reduce_axes_grad_reference(
    x: Tensor | None, dy: Tensor, dx: Tensor, *, sizes: Sequence[int], reduced: Sequence[bool],
    function: str, correction: float = 0.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `reduce_axes_grad` in torch."""
    if not dx.numel():
        return
    wide, target = dy.double()[..., None], _rows(dx, sizes, reduced, copies=False)
    count = prod(size for size, flag in zip(sizes, reduced, strict=True) if flag)
    if x is None:
        exact = wide / (count if function == "mean" else 1)
    else:
        exact = _grad(_rows(x.double(), sizes, reduced), wide, function, count - correction)
    kept = [size for size, flag in zip(sizes, reduced, strict=True) if not flag]
    exact = exact.expand(-1, -1, count).unflatten(1, kept or [1])
    exact = exact.reshape(target.shape)
    target.copy_(stored_reference(exact.float(), dx.dtype, precision))


def _rows(
    x: Tensor, sizes: Sequence[int], reduced: Sequence[bool], *, copies: bool = True
) -> Tensor:
    """x as [N, kept elements, reduced elements], or without `copies` a view with all axes."""
    axes = [1 + i for flag in (False, True) for i, each in enumerate(reduced) if each is flag]
    view = x.view(len(x), *sizes).permute(0, *axes)
    if not copies:
        return view
    count = prod(size for size, flag in zip(sizes, reduced, strict=True) if flag)
    return view.reshape(len(x), -1, count)


def _reduced(rows: Tensor, function: str, correction: float) -> Tensor:
    """The function over the last axis."""
    if function in ("sum", "mean", "amax", "amin"):
        return torch.__dict__[function](rows, -1)  # type: ignore[no-any-return]
    if function in ("max", "min"):
        return torch.__dict__[function](rows, -1).values  # type: ignore[no-any-return]
    if function == "norm":
        return rows.square().sum(-1).sqrt()
    squares = (rows - rows.mean(-1, keepdim=True)).square().sum(-1)
    variance = squares / max(rows.shape[-1] - correction, 0.0)
    return variance.sqrt() if function == "std" else variance


def _grad(rows: Tensor, dy: Tensor, function: str, divisor: float) -> Tensor:
    """The gradient of rows [N, K, R] from the gradient dy [N, K, 1] of their function."""
    if function in ("max", "min"):
        first = torch.__dict__["arg" + function](rows, -1, keepdim=True)
        return torch.zeros_like(rows).scatter(-1, first, dy)
    if function in ("amax", "amin"):
        alike = rows == torch.__dict__[function](rows, -1, keepdim=True)
        return dy * alike / alike.sum(-1, keepdim=True)
    if function == "norm":
        norm = rows.square().sum(-1, keepdim=True).sqrt()
        return torch.where(norm == 0, 0.0, dy * rows / norm)
    below = rows - rows.mean(-1, keepdim=True)
    divisor = max(divisor, 0.0)
    if function == "var":
        return dy * 2 * below / divisor
    deviation = (below.square().sum(-1, keepdim=True) / divisor).sqrt()
    return torch.where(deviation == 0, 0.0, dy * below / (deviation * divisor))
