"""TF32 products with a float32 weight that is not rounded, for Hopper.

The kernel computes the transpose of the product. The weight is its left operand, which passes
through registers and is rounded to TF32 there. No rounded copy of the weight is made. The input
gradient, which reads the weight by columns, has warpgroup products too. VGG-16's 25088 -> 4096
layer takes 148 us and its input gradient 179 us; mma.sync took 182 us and 327 us, and a copy for
each some 200 us more (H200, 2026-11-21). One warp loads and eight compute. The kernel is written in
Gluon, which the interpreter does not run.
"""

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.gluon import (
    available,
    gl,
    gluon,
    load_box,
    mbarrier,
    swizzled,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from ..language.hopper import barriers, buffers, rounded
from .gemm import DESCRIPTOR_ALIGNMENT, LinearEpilogue, describable, share_of, sum_shares

FEATURES: Final = tl.constexpr(64)  # features of a group of warps: 128 registers of sums a thread
GROUPS: Final = tl.constexpr(2)  # groups of four warps that compute
PART: Final = tl.constexpr(32)  # samples whose addresses are in registers at once
COLUMNS: Final = GROUPS.value * FEATURES.value
BLOCK_S: Final = 256  # samples of a program
BLOCK_K: Final = 32
STAGES: Final = 4


@gluon.jit
def _load(weight_desc, x_desc, weights, xs, full, empty, start, end, f, s, BY_K: gl.constexpr):
    """Fill the ring of stages of weight and x."""
    STAGES: gl.constexpr = xs.shape[0]
    BLOCK_K: gl.constexpr = xs.shape[2]
    NBYTES: gl.constexpr = GROUPS * weight_desc.block_type.nbytes + x_desc.block_type.nbytes
    stage = 0
    phase = 1
    for k in range(start, end, BLOCK_K):
        mbarrier.wait(empty.index(stage), phase)
        bar = full.index(stage)
        mbarrier.expect(bar, NBYTES)
        load_box(x_desc, [s, k], bar, xs.index(stage))
        for i in gl.static_range(GROUPS):
            if BY_K:
                load_box(weight_desc, [k, f + i * FEATURES], bar, weights.index(stage * GROUPS + i))
            else:
                load_box(weight_desc, [f + i * FEATURES, k], bar, weights.index(stage * GROUPS + i))
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1


@gluon.jit
def _compute(
    bias_ptr, mask_ptr, out_ptr, weights, xs, full, empty, start, end, f, s, num_samples,
    features, row_stride, scale,
    GROUP: gl.constexpr, BY_K: gl.constexpr, RELU: gl.constexpr, ROUND: gl.constexpr,
):  # fmt: skip
    """Sum the products of the stages for one group's features, and store them."""
    STAGES: gl.constexpr = xs.shape[0]
    SAMPLES: gl.constexpr = xs.shape[1]
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SAMPLES, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 1)
    acc = gl.zeros([FEATURES, SAMPLES], gl.float32, SUMS)
    stage = 0
    phase = 0
    for _ in range(start, end, xs.shape[2]):
        mbarrier.wait(full.index(stage), phase)
        kept = weights.index(stage * GROUPS + GROUP)
        if BY_K:  # noqa: SIM108 (the layouts differ)
            left = kept.permute([1, 0]).load(LEFT)
        else:
            left = kept.load(LEFT)
        right = xs.index(stage).permute([1, 0])
        acc = warpgroup_mma(rounded(left), right, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(stage))
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1
    offs_f = f + GROUP * FEATURES + gl.arange(0, FEATURES, gl.SliceLayout(1, SUMS))
    if bias_ptr is not None:
        bias = gl.load(bias_ptr + offs_f, mask=offs_f < features, other=0.0)
        acc += gl.expand_dims(bias, 1)
    _store_halves(
        acc, mask_ptr, out_ptr, f + GROUP * FEATURES, s, num_samples, features, row_stride, scale,
        RELU, ROUND,
    )  # fmt: skip


@gluon.jit
def _store_halves(
    acc, mask_ptr, out_ptr, f, s, num_samples, features, row_stride, scale,
    RELU: gl.constexpr, ROUND: gl.constexpr,
):  # fmt: skip
    """Store a tile [features, samples] in halves of PART samples, whose addresses fit registers."""
    SAMPLES: gl.constexpr = acc.shape[1]
    if SAMPLES > PART:
        halves = acc.reshape([acc.shape[0], 2, SAMPLES // 2]).permute([0, 2, 1])
        first, second = gl.split(halves)
        _store_halves(
            first, mask_ptr, out_ptr, f, s, num_samples, features, row_stride, scale, RELU, ROUND
        )
        _store_halves(
            second, mask_ptr, out_ptr, f, s + SAMPLES // 2, num_samples, features, row_stride,
            scale, RELU, ROUND,
        )  # fmt: skip
    else:
        _store(acc, mask_ptr, out_ptr, f, s, num_samples, features, row_stride, scale, RELU, ROUND)


@gluon.jit
def _store(
    acc, mask_ptr, out_ptr, f, s, num_samples, features, row_stride, scale,
    RELU: gl.constexpr, ROUND: gl.constexpr,
):  # fmt: skip
    if RELU:
        acc = gl.where(acc <= 0, 0.0, acc)
    if ROUND and mask_ptr is None:
        acc = rounded(acc)
    offs_f = f + gl.arange(0, acc.shape[0], gl.SliceLayout(1, acc.type.layout))
    offs_s = s + gl.arange(0, acc.shape[1], gl.SliceLayout(0, acc.type.layout))
    inside = gl.expand_dims(offs_f < features, 1) & gl.expand_dims(offs_s < num_samples, 0)
    offs = gl.expand_dims(offs_s.to(gl.int64) * row_stride, 0) + gl.expand_dims(offs_f, 1)
    if mask_ptr is not None:
        kept = gl.load(mask_ptr + offs, mask=inside, other=0.0)
        acc = gl.where(kept <= 0, 0.0, acc * scale)
        if ROUND:
            acc = rounded(acc)
    gl.store(out_ptr + offs, acc, mask=inside)


@gluon.jit
def _weight_kernel(
    weight_desc, x_desc, bias_ptr, mask_ptr, out_ptr, num_samples, features, terms, group,
    row_stride, share_stride, scale,
    BY_K: gl.constexpr, RELU: gl.constexpr, ROUND: gl.constexpr, STAGES: gl.constexpr,
) -> None:  # fmt: skip
    """A program computes a tile of out = x weight^T over a share of terms, the third grid axis."""
    f = gl.program_id(0) * (GROUPS * FEATURES)
    s = gl.program_id(1) * x_desc.block_type.shape[0]
    start = gl.program_id(2) * group
    end = gl.minimum(start + group, terms)
    out_ptr += gl.program_id(2).to(gl.int64) * share_stride
    weights = buffers(weight_desc, STAGES * GROUPS)
    xs = buffers(x_desc, STAGES)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, GROUPS)
    gl.warp_specialize(
        [
            (_compute, (
                bias_ptr, mask_ptr, out_ptr, weights, xs, full, empty, start, end, f, s,
                num_samples, features, row_stride, scale, 0, BY_K, RELU, ROUND,
            )),
            (_compute, (
                bias_ptr, mask_ptr, out_ptr, weights, xs, full, empty, start, end, f, s,
                num_samples, features, row_stride, scale, 1, BY_K, RELU, ROUND,
            )),
            (_load, (weight_desc, x_desc, weights, xs, full, empty, start, end, f, s, BY_K)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip


def suits_weight(x: Tensor, weight: Tensor, precision: str) -> bool:
    """Whether this kernel computes the products of x with the weight."""
    return keeps_weight(weight.shape, x.dtype, precision) and describable(x) and describable(weight)


def keeps_weight(shape: Sequence[int], dtype: torch.dtype, precision: str) -> bool:
    """Whether no product with a weight of `shape` [O, F] needs a rounded copy of the weight.

    That holds for TF32 where Gluon runs, if both sizes are multiples of 16 bytes.
    """
    sizes = all(size * dtype.itemsize % DESCRIPTOR_ALIGNMENT == 0 for size in shape)
    return precision == "tf32" and dtype == torch.float32 and sizes and available()


def multiply_weight(
    x: Tensor, weight: Tensor, partials: Tensor | None, out: Tensor, epilogue: LinearEpilogue, *,
    by_k: bool,
) -> None:  # fmt: skip
    """out [N, M] = x [N, K] weight, float32, stored [K, M] where `by_k`, else [M, K]; epilogue.

    Where float32 `partials` [N, shares, M] are given, they get the sums of shares, which are added.
    """
    if partials is None:
        _launch(x, weight, out, by_k, x.shape[1], epilogue)
        return
    _launch(x, weight, partials, by_k, share_of(x.shape[1], partials.shape[1]), LinearEpilogue())
    sum_shares(partials, out, epilogue)


def _launch(
    x: Tensor, weight: Tensor, out: Tensor, by_k: bool, group: int, epilogue: LinearEpilogue
) -> None:
    samples, terms = x.shape
    features = out.shape[-1]
    block = [BLOCK_K, FEATURES.value] if by_k else [FEATURES.value, BLOCK_K]
    tiles, shares = triton.cdiv(features, COLUMNS), triton.cdiv(terms, group)
    _weight_kernel[(tiles, triton.cdiv(samples, BLOCK_S), shares)](
        swizzled(weight, block), swizzled(x, [BLOCK_S, BLOCK_K]), epilogue.bias, epilogue.mask, out,
        samples, features, terms, group, shares * features, features, epilogue.scale,
        BY_K=by_k, RELU=epilogue.relu, ROUND=epilogue.out_precision == "tf32",
        STAGES=STAGES, num_warps=4,
    )  # fmt: skip
