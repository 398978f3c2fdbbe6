"""The convolution kernel that loads by tensor descriptors, which is TMA on Hopper.

The loads fill rows and columns outside a map with zeros.
"""

from typing import Final

import triton
import triton.language as tl

from ..language.rounding import stored
from ..norm.normalized_again import normalized_again
from .bands import band_start, first_output, tiles_of
from .epilogue import store_sums
from .remade import gated_again, gates_at, normalizer_at

# None of them makes a load or a store of maps wider: descriptors have strides of their own.
SIZES: Final = (
    "num_samples", "height", "width", "in_c", "out_c", "taps_h", "taps_w", "pad_h", "pad_w",
    "dil_h", "dil_w", "packed_h", "packed_w", "mask_n", "mask_h", "mask_w",
    "in_width", "out_width", "last_band", "sample_pixels", "made_c",
)  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def conv_box_kernel(
    x_desc, packed_desc, bias_ptr, mask, y_desc, codes_ptr, moments_ptr,
    num_samples, height, width, in_c, out_c, taps_h, taps_w, pad_h, pad_w, dil_h, dil_w,
    packed_h, packed_w, mask_n, mask_h, mask_w, in_width, out_width, last_band,
    source, coefficient, sample_pixels, made_c,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, BITS: tl.constexpr,
    RELU: tl.constexpr, POOL: tl.constexpr, PRECISION: tl.constexpr, OUT_PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    PARTS: tl.constexpr, STAGES: tl.constexpr, FLATTEN: tl.constexpr, BANDS: tl.constexpr,
    MAKER: tl.constexpr, FUNCTION: tl.constexpr,
) -> None:  # fmt: skip
    """Stride 1. A tile of outputs is a box of pixels, and each tap reads the same box shifted.

    The taps of a row of weights lie packed_h and packed_w elements apart. With BANDS a tile of
    output channels reads a band of in_c input channels (bands.py), else the first in_c. Where y has
    an axis of groups, a tile lies in one group. The box is operand B of the products. As operand A
    its reshape would go through registers, which gave wrong sums that changed from run to run
    (triton 3.6, error 1.5e-1 with 128x256, H200, 2026-11).

    With a MAKER, for pointwise filters over pixels in one row, of which a sample has
    `sample_pixels`, x is made again from made_c channels (remade.py).
    """
    BY_GROUP: tl.constexpr = len(y_desc.block_shape) == 5
    PIXELS: tl.constexpr = BLOCK_N * BLOCK_H * BLOCK_W
    tiles_h = tl.cdiv(height, BLOCK_H)
    tiles_w = tl.cdiv(width, BLOCK_W)
    tiles_k = tiles_of(out_c, out_width, BLOCK_K, BY_GROUP)
    tiles_c = tl.cdiv(in_c, BLOCK_C)
    num_tiles = tl.cdiv(num_samples, BLOCK_N) * tiles_h * tiles_w * tiles_k
    for tile in tl.range(tl.program_id(0), num_tiles, tl.num_programs(0), flatten=FLATTEN):
        k = first_output(tile % tiles_k, out_width, BLOCK_K, BY_GROUP)
        box = tile // tiles_k
        w = box % tiles_w * BLOCK_W
        h = box // tiles_w % tiles_h * BLOCK_H
        n = box // (tiles_w * tiles_h) * BLOCK_N
        band = band_start(k, in_width, out_width, last_band) if BANDS else 0
        acc = tl.zeros((BLOCK_K, PIXELS), tl.float32)
        r, s, c = 0, 0, 0
        for _ in tl.range(0, taps_h * taps_w * tiles_c, num_stages=STAGES):
            x = x_desc.load([n, h - pad_h + r * dil_h, w - pad_w + s * dil_w, band + c])
            weight = packed_desc.load([k, r * packed_h + s * packed_w + c])
            x = x.reshape(PIXELS, BLOCK_C)
            if MAKER == "normalize":
                at = normalizer_at(source, c, made_c, BLOCK_C)
                x = normalized_again(x, at, coefficient, FUNCTION)
            elif MAKER == "gate":
                samples = (w + tl.arange(0, PIXELS)) // sample_pixels
                last = (width - 1) // sample_pixels
                gates = gates_at(source[0], samples[:, None], c, last + 1, made_c, BLOCK_C)
                x = gated_again(x, gates)
            if MAKER != "":
                x = stored(x, x.dtype, PRECISION)
            acc = tl.dot(weight, x.T, acc, input_precision=PRECISION)
            r += 1
            c = tl.where(r < taps_h, c, c + BLOCK_C)
            r = tl.where(r < taps_h, r, 0)
            s = tl.where(c < in_c, s, s + 1)
            c = tl.where(c < in_c, c, 0)
        store_sums(
            acc, bias_ptr, mask, (mask_n, mask_h, mask_w), y_desc, codes_ptr, moments_ptr,
            n, h, w, k, num_samples, height, width, out_c, out_width,
            HAS_BIAS, HAS_MASK, BITS, RELU, POOL, OUT_PRECISION,
            BLOCK_N, BLOCK_H, BLOCK_W, BLOCK_K, PARTS,
        )  # fmt: skip
