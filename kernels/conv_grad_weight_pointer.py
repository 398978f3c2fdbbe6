"""The weight-gradient kernel that loads by pointers: any filter, stride, padding and groups.

One sample of a map must hold fewer than 2^31 elements.
"""

import triton
import triton.language as tl

from .conv_pointer import SIZES


@triton.jit(do_not_specialize=[*SIZES, "group_size", "splits"])
def grad_weight_kernel(
    x_ptr, dy_ptr, partials_ptr,
    num_samples, in_h, in_w, out_h, out_w, in_c, out_c, groups, pad_h, pad_w, dil_h, dil_w,
    group_size, splits,
    R: tl.constexpr, S: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    FLATTEN: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
) -> None:  # fmt: skip
    """Partial (g, j): sum over the j-th run of the output pixels of group g's samples, from zero.

    A program takes [BLOCK_K, BLOCK_C] of the gradient: channels of one tap, or with FLATTEN taps
    and channels joined into one axis.
    """
    tiles_k = tl.cdiv(out_c, BLOCK_K)
    tiles_c = tl.cdiv(R * S * in_c, BLOCK_C) if FLATTEN else R * S * tl.cdiv(in_c, BLOCK_C)
    pid = tl.program_id(0)
    pid_c = pid % tiles_c
    pid_k = pid // tiles_c % tiles_k
    part = pid // (tiles_c * tiles_k * groups)
    channel_group = pid // (tiles_c * tiles_k) % groups

    offs_k = pid_k * BLOCK_K + tl.arange(0, BLOCK_K)
    mask_k = offs_k < out_c
    if FLATTEN:
        offs_e = pid_c * BLOCK_C + tl.arange(0, BLOCK_C)
        tap = offs_e // in_c
        offs_c = offs_e % in_c
        mask_c = offs_e < R * S * in_c
    else:
        tap = pid_c % (R * S)
        offs_c = pid_c // (R * S) * BLOCK_C + tl.arange(0, BLOCK_C)
        offs_e = tap * in_c + offs_c
        mask_c = offs_c < in_c
    shift_h = tap // S * dil_h - pad_h
    shift_w = tap % S * dil_w - pad_w

    first_sample = (part // splits).to(tl.int64) * group_size
    samples = tl.minimum(group_size, num_samples - first_sample)
    steps = tl.cdiv(group_size * out_h * out_w, BLOCK_P)
    steps_each = tl.cdiv(steps, splits)
    start = part % splits * steps_each
    stop = tl.minimum(start + steps_each, tl.cdiv(samples * out_h * out_w, BLOCK_P).to(tl.int32))
    x_ptr += first_sample * in_h * in_w * groups * in_c + channel_group * in_c
    dy_ptr += first_sample * out_h * out_w * groups * out_c + channel_group * out_c
    acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    for step in range(start, stop):
        pixel = step * BLOCK_P + tl.arange(0, BLOCK_P)  # of the group
        mask_p = pixel < samples * out_h * out_w
        sample = (pixel // (out_h * out_w)).to(tl.int64)
        h = pixel // out_w % out_h * STRIDE_H
        w = pixel % out_w * STRIDE_W
        dy = tl.load(
            dy_ptr + pixel.to(tl.int64)[:, None] * (groups * out_c) + offs_k[None, :],
            mask=mask_p[:, None] & mask_k[None, :], other=0.0,
        )  # [BLOCK_P, BLOCK_K]  # fmt: skip
        if FLATTEN:
            h = h[:, None] + shift_h[None, :]
            w = w[:, None] + shift_w[None, :]
            mask_x = mask_p[:, None] & (h >= 0) & (h < in_h) & (w >= 0) & (w < in_w)
            offs_x = (sample[:, None] * in_h + h) * in_w + w
        else:
            h += shift_h
            w += shift_w
            mask_x = (mask_p & (h >= 0) & (h < in_h) & (w >= 0) & (w < in_w))[:, None]
            offs_x = ((sample * in_h + h) * in_w + w)[:, None]
        x = tl.load(
            x_ptr + offs_x * (groups * in_c) + offs_c[None, :],
            mask=mask_x & mask_c[None, :], other=0.0,
        )  # [BLOCK_P, BLOCK_C]  # fmt: skip
        acc = tl.dot(dy.T, x, acc, input_precision=PRECISION)
    row = part.to(tl.int64) * groups * out_c + channel_group * out_c + offs_k
    offs = row[:, None] * (R * S * in_c) + offs_e[None, :]
    tl.store(partials_ptr + offs, acc, mask=mask_k[:, None] & mask_c[None, :])
