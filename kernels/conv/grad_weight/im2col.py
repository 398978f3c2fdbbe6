"""Weight gradients of layers with few input channels: taps and channels are one axis."""

from typing import Final

import triton
import triton.language as tl

from .program_steps import first_run, next_run

SIZES: Final = (
    "num_samples", "in_h", "in_w", "out_h", "out_w", "out_c", "unit", "splits",
    "range_start", "pad_h", "pad_w", "dil_h", "dil_w",
)  # fmt: skip


@triton.jit
def _gathered(
    x_ptr, n, pixel, tap_h, tap_w, offs_e, mask_e, in_h, in_w, out_h, out_w,
    PITCH: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """The elements of x that a run of output pixels reads: [BLOCK_P, BLOCK_E]."""
    offs_p = pixel + tl.arange(0, BLOCK_P)
    h = offs_p // out_w * STRIDE_H
    w = offs_p % out_w * STRIDE_W
    inside_h = (h[:, None] + tap_h[None, :]).to(tl.uint32) < in_h.to(tl.uint32)
    inside_w = (w[:, None] + tap_w[None, :]).to(tl.uint32) < in_w.to(tl.uint32)
    mask = inside_h & inside_w & mask_e[None, :] & (offs_p < out_h * out_w)[:, None]
    pixel_ptrs = x_ptr + n.to(tl.int64) * in_h * in_w * PITCH + (h * in_w + w) * PITCH
    return tl.load(pixel_ptrs[:, None] + offs_e[None, :], mask, other=0.0)


@triton.jit(do_not_specialize=SIZES)
def grad_weight_im2col_kernel(
    x_ptr, dy_desc, partials_ptr,
    num_samples, in_h, in_w, out_h, out_w, out_c, unit, splits, range_start,
    pad_h, pad_w, dil_h, dil_w,
    FIRST: tl.constexpr, R: tl.constexpr, S: tl.constexpr, C: tl.constexpr,
    PITCH: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """A step is a run of output pixels of one sample. x is loaded to registers one step ahead."""
    tiles_e = tl.cdiv(R * S * C, BLOCK_E)
    e = tl.program_id(0) % tiles_e * BLOCK_E + tl.arange(0, BLOCK_E)
    k = tl.program_id(0) // tiles_e % tl.cdiv(out_c, BLOCK_K) * BLOCK_K
    split = tl.program_id(0) // tiles_e // tl.cdiv(out_c, BLOCK_K)
    offs_k = k + tl.arange(0, BLOCK_K)
    row = split.to(tl.int64) * out_c + offs_k
    sum_ptrs = partials_ptr + row[:, None] * (R * S * C) + e[None, :]
    mask_e = e < R * S * C
    mask = (offs_k < out_c)[:, None] & mask_e[None, :]
    if FIRST:
        acc = tl.zeros((BLOCK_K, BLOCK_E), tl.float32)
    else:
        acc = tl.load(sum_ptrs, mask=mask, other=0.0)

    tap_h = e // (S * C) * dil_h - pad_h
    tap_w = e // C % S * dil_w - pad_w
    offs_e = (tap_h * in_w + tap_w) * PITCH + e % C
    pixels = out_h * out_w
    first_n, first_pixel, share, steps = first_run(
        range_start + split, splits, unit, num_samples, pixels, BLOCK_P
    )
    n, pixel, home, left = first_n, first_pixel, first_n, share
    x = _gathered(
        x_ptr, n, pixel, tap_h, tap_w, offs_e, mask_e & (steps > 0), in_h, in_w, out_h, out_w,
        PITCH, STRIDE_H, STRIDE_W, BLOCK_P,
    )  # fmt: skip
    for i in tl.range(0, steps, num_stages=STAGES):
        dy = dy_desc.load([n, pixel, k]).reshape(BLOCK_P, BLOCK_K)
        n, pixel, home, left = next_run(
            n, pixel, home, left, pixels, first_n, first_pixel, unit, share, BLOCK_P
        )
        ahead = _gathered(
            x_ptr, n, pixel, tap_h, tap_w, offs_e, mask_e & (i + 1 < steps),
            in_h, in_w, out_h, out_w, PITCH, STRIDE_H, STRIDE_W, BLOCK_P,
        )  # fmt: skip
        acc = tl.dot(dy.T, x, acc, input_precision=PRECISION)
        x = ahead
    tl.store(sum_ptrs, acc, mask=mask)
