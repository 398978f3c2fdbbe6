"""Launches of the convolution kernel that sums windows of rows."""

from math import prod

import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..language.channel_ranges import pitch_of
from ..language.device import num_sms
from .launch import Epilogue
from .row_windows import geometry_of
from .tiles import Filter, has_descriptors
from .windows import conv_windows_kernel
from .windows_tile import WindowsTile


def launch_windows(
    x: Tensor, packed: Tensor, y: Tensor, taps: Filter, epilogue: Epilogue, tile: WindowsTile
) -> bool:
    """Launch windows.py. Returns whether it stores the epilogue's moments."""
    pooled = epilogue.codes is not None
    scale = 2 if pooled else 1
    sides = y.shape[0], scale * y.shape[1], scale * y.shape[2]
    box = tile.box(*sides[1:], pooled=pooled)
    pixels = tile.pixels(box)
    stored = [box[0], pixels[1] // scale, pixels[2] // scale, tile.out_channels]
    masked = epilogue.mask is not None and not epilogue.bits
    is_box = has_descriptors(y) and not (masked and not has_descriptors(epilogue.mask))
    moments = epilogue.moments_by(pixels) if is_box else None
    num_boxes = prod(triton.cdiv(side, step) for side, step in zip(sides, pixels, strict=True))
    grid = (
        min(num_boxes, tile.residents * num_sms()),
        triton.cdiv(taps.out_channels, tile.out_channels),
    )
    conv_windows_kernel[grid](
        x, packed, epilogue.bias,
        epilogue.mask_in(stored, taps, gluon=False) if is_box else epilogue.mask,
        epilogue.mask_strides(taps) if is_box else (0, 0, 0),
        TensorDescriptor.from_tensor(y, stored) if is_box else y,
        epilogue.codes, moments, geometry_of(x, taps, tile.window), *sides,
        **tile.window.constants(taps), OUT_C=taps.out_channels,
        PITCH=pitch_of(x), Y_PITCH=pitch_of(y),
        MASK_PITCH=0 if epilogue.mask is None else pitch_of(epilogue.mask), Y_IS_BOX=is_box,
        HAS_BIAS=epilogue.bias is not None, HAS_MASK=epilogue.mask is not None,
        BITS=epilogue.bits, RELU=epilogue.relu, POOL=pooled, OUT_PRECISION=epilogue.out_precision,
        BLOCK_N=box[0], BLOCK_H=box[1], BLOCK_W=box[2], BLOCK_K=tile.out_channels,
        BLOCK_E=tile.elements, PARTS=1, num_warps=tile.num_warps,
    )  # fmt: skip
    return moments is not None
