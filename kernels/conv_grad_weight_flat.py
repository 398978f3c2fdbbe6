"""Weight gradients of convolutions that keep the map's sides: a tap is an offset in the flat map.

Where a tap moves a pixel over the left or right edge, its flat neighbour lies in the row above or
below. The splits sum those products too; one split more, the last, sums them alone, negated.
"""

from typing import Final

import triton
import triton.language as tl

from .conv_grad_weight_parts import load_sum, part_of, share_of, store_sum, turns_of

SIZES: Final = (
    "first", "num_samples", "height", "width", "in_c", "out_c", "unit", "splits",
    "pad_h", "pad_w", "dil_h", "dil_w",
)  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def grad_weight_flat_kernel(
    x_desc, dy_desc, x_edge_desc, dy_edge_desc, sums_desc, first,
    num_samples, height, width, in_c, out_c, unit, splits, pad_h, pad_w, dil_h, dil_w,
    R: tl.constexpr, S: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Stride 1. A step is a run of pixels of one sample; rows outside the map are loaded as zero.

    The last split's steps are runs down the map's edge columns.
    """
    k, c, tap, split = part_of(
        tl.program_id(0), tl.cdiv(out_c, BLOCK_K), tl.cdiv(in_c, BLOCK_C), R * S, BLOCK_K, BLOCK_C
    )
    shift_h = tap // S * dil_h - pad_h
    shift_w = tap % S * dil_w - pad_w
    acc = load_sum(sums_desc, split, k, tap, c, first, BLOCK_K, BLOCK_C)
    if split == splits:
        acc = -acc
        wrapped = tl.abs(shift_w)
        turn = tl.where(shift_w < 0, 1, -1)  # columns a wrapped x lies to the right, in maps
        edge = tl.where(shift_w < 0, 0, width - wrapped)
        runs = tl.cdiv(height, BLOCK_E)
        for step in tl.range(0, num_samples * wrapped * runs, num_stages=STAGES):
            n = step // (wrapped * runs)
            column = edge + step // runs % wrapped
            h = step % runs * BLOCK_E
            dy = dy_edge_desc.load([n, h, column * out_c + k]).reshape(BLOCK_E, BLOCK_K)
            x_column = (column + shift_w + turn * width) * in_c + c
            x = x_edge_desc.load([n, h + shift_h - turn, x_column]).reshape(BLOCK_E, BLOCK_C)
            acc = tl.dot(dy.T, x, acc, input_precision=PRECISION)
        store_sum(sums_desc, -acc, split, k, tap, c, BLOCK_K, BLOCK_C)
    else:
        runs = tl.cdiv(height * width, BLOCK_P)
        start, share = share_of(split, splits, unit * runs)
        turns = turns_of(start, share, unit, num_samples, num_samples % unit * runs)
        for turn in tl.range(0, turns, num_stages=STAGES):
            step = start + turn % share
            n = turn // share * unit + step // runs
            pixel = step % runs * BLOCK_P
            dy = dy_desc.load([n, pixel, k]).reshape(BLOCK_P, BLOCK_K)
            x = x_desc.load([n, pixel + shift_h * width + shift_w, c]).reshape(BLOCK_P, BLOCK_C)
            acc = tl.dot(dy.T, x, acc, input_precision=PRECISION)
        store_sum(sums_desc, acc, split, k, tap, c, BLOCK_K, BLOCK_C)
