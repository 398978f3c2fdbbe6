"""Weight-gradient kernels that load by tensor descriptors: TMA on Hopper.

Rows and columns outside a map are filled with zeros by the loads themselves.
"""

from typing import Final

import triton
import triton.language as tl

SIZES: Final = (
    "num_samples", "height", "width", "in_h", "in_w", "out_h", "out_w", "group_size", "splits",
    "pad_h", "pad_w", "dil_h", "dil_w",
)  # fmt: skip


@triton.jit
def _part_of(
    pid, tiles_k, tiles_c,
    NUM_TAPS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """First output channel, first input channel, tap and partial of a weight gradient's program."""
    tap = pid % NUM_TAPS
    c = pid // NUM_TAPS % tiles_c * BLOCK_C
    k = pid // (NUM_TAPS * tiles_c) % tiles_k * BLOCK_K
    return k, c, tap, pid // (NUM_TAPS * tiles_c * tiles_k)


@triton.jit
def _slice_of(num_steps, part, splits):
    """The equal share of steps that slice `part % splits` takes."""
    share = tl.cdiv(num_steps, splits)
    start = part % splits * share
    return start, tl.minimum(start + share, num_steps)


@triton.jit
def _store_partial(
    partials_ptr, acc, part, k, c, tap, in_c, out_c,
    NUM_TAPS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    offs_k = k + tl.arange(0, BLOCK_K)
    offs_c = c + tl.arange(0, BLOCK_C)
    row = (part.to(tl.int64) * out_c + offs_k) * NUM_TAPS + tap  # [BLOCK_K]
    mask = (offs_k < out_c)[:, None] & (offs_c < in_c)[None, :]
    tl.store(partials_ptr + row[:, None] * in_c + offs_c[None, :], acc, mask=mask)


@triton.jit(do_not_specialize=SIZES)
def grad_weight_flat_kernel(
    x_desc, dy_desc, x_edge_desc, dy_edge_desc, partials_ptr,
    num_samples, height, width, in_c, out_c, group_size, splits, pad_h, pad_w, dil_h, dil_w,
    R: tl.constexpr, S: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Stride 1, x and dy of one size: each sample is a flat row of pixels, and a tap is an offset.

    Where a tap moves a pixel over the left or right edge, its flat neighbour lies in the row above
    or below. Those products are computed first, from runs down the map's edge columns, and taken
    off: acc = -wrapped + all.
    """
    k, c, tap, part = _part_of(
        tl.program_id(0), tl.cdiv(out_c, BLOCK_K), tl.cdiv(in_c, BLOCK_C), R * S, BLOCK_K, BLOCK_C
    )
    shift_h = tap // S * dil_h - pad_h
    shift_w = tap % S * dil_w - pad_w
    first = part // splits * group_size
    samples = tl.minimum(group_size, num_samples - first)

    acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    wrapped = tl.abs(shift_w)
    turn = tl.where(shift_w < 0, 1, -1)  # columns a wrapped product's x lies to the right, in maps
    edge = tl.where(shift_w < 0, 0, width - wrapped)
    runs = tl.cdiv(height, BLOCK_E)
    start, stop = _slice_of(group_size * wrapped * runs, part, splits)
    stop = tl.minimum(stop, samples * wrapped * runs)
    for step in tl.range(start, stop, num_stages=STAGES):
        n = first + step // (wrapped * runs)
        column = edge + step // runs % wrapped
        h = step % runs * BLOCK_E
        dy = dy_edge_desc.load([n, h, column * out_c + k]).reshape(BLOCK_E, BLOCK_K)
        x_column = column + shift_w + turn * width
        x = x_edge_desc.load([n, h + shift_h - turn, x_column * in_c + c]).reshape(BLOCK_E, BLOCK_C)
        acc = tl.dot(dy.T, x, acc, input_precision=PRECISION)
    acc = -acc

    runs = tl.cdiv(height * width, BLOCK_P)
    start, stop = _slice_of(group_size * runs, part, splits)
    stop = tl.minimum(stop, samples * runs)
    for step in tl.range(start, stop, num_stages=STAGES):
        n = first + step // runs
        pixel = step % runs * BLOCK_P
        dy = dy_desc.load([n, pixel, k]).reshape(BLOCK_P, BLOCK_K)
        x = x_desc.load([n, pixel + shift_h * width + shift_w, c]).reshape(BLOCK_P, BLOCK_C)
        acc = tl.dot(dy.T, x, acc, input_precision=PRECISION)
    _store_partial(partials_ptr, acc, part, k, c, tap, in_c, out_c, R * S, BLOCK_K, BLOCK_C)


@triton.jit
def _valid_outputs(shift, in_size, out_size, STRIDE: tl.constexpr):
    """Range of outputs whose input `output * STRIDE + shift` lies in the map."""
    start = tl.maximum(0, tl.cdiv(-shift, STRIDE))
    stop = tl.minimum(out_size, tl.cdiv(in_size - shift, STRIDE))
    return start, tl.maximum(start, stop)


@triton.jit(do_not_specialize=SIZES)
def grad_weight_samples_kernel(
    x_desc, dy_desc, partials_ptr,
    num_samples, in_h, in_w, out_h, out_w, in_c, out_c, group_size, splits,
    pad_h, pad_w, dil_h, dil_w,
    R: tl.constexpr, S: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Small maps, many samples: a step is one pixel of BLOCK_N samples; none is padding."""
    k, c, tap, part = _part_of(
        tl.program_id(0), tl.cdiv(out_c, BLOCK_K), tl.cdiv(in_c, BLOCK_C), R * S, BLOCK_K, BLOCK_C
    )
    shift_h = tap // S * dil_h - pad_h
    shift_w = tap % S * dil_w - pad_w
    first_h, stop_h = _valid_outputs(shift_h, in_h, out_h, STRIDE_H)
    first_w, stop_w = _valid_outputs(shift_w, in_w, out_w, STRIDE_W)
    num_h = stop_h - first_h
    num_w = stop_w - first_w

    first = part // splits * group_size
    samples = tl.minimum(group_size, num_samples - first)
    start, stop = _slice_of(tl.cdiv(group_size, BLOCK_N) * num_h * num_w, part, splits)
    stop = tl.minimum(stop, tl.cdiv(samples, BLOCK_N) * num_h * num_w)
    acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    for step in tl.range(start, stop, num_stages=STAGES):
        n = first + step // (num_h * num_w) * BLOCK_N
        h = first_h + step // num_w % num_h
        w = first_w + step % num_w
        x_pixel = (h * STRIDE_H + shift_h) * in_w + w * STRIDE_W + shift_w
        dy = dy_desc.load([n, (h * out_w + w) * out_c + k])
        x = x_desc.load([n, x_pixel * in_c + c])
        acc = tl.dot(dy.T, x, acc, input_precision=PRECISION)
    _store_partial(partials_ptr, acc, part, k, c, tap, in_c, out_c, R * S, BLOCK_K, BLOCK_C)
