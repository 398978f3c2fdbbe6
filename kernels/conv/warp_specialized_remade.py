"""Sums of warp_specialized.py over a map that is made again in each stage before its products.

The warps that start the products load a stage, make the map of it (remade.py) and store that in its
place. The products of the stage before run meanwhile.
"""

from ..language.gluon import (
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from ..norm.normalized_again import normalized_again
from .remade import gated_again


@gluon.jit
def _vector(ptr, c, channels):
    """Values of channels c, [1, channels]; 0 behind the last."""
    return gl.expand_dims(gl.load(ptr + c, mask=c < channels, other=0.0), 0)


@gluon.jit
def _normalizer(source, c, channels):
    """`normalizer` of channels c."""
    statistics_ptr, weight_ptr, bias_ptr = source
    mean = _vector(statistics_ptr, c, channels)
    scale = _vector(statistics_ptr + channels, c, channels)
    shift = gl.zeros_like(scale)
    if weight_ptr is not None:
        scale *= _vector(weight_ptr, c, channels)
    if bias_ptr is not None:
        shift = _vector(bias_ptr, c, channels)
    return mean, scale, shift


@gluon.jit
def _gates(source, pixel, c, pixels, channels, sample_pixels):
    """The gates [pixels, channels] of pixels of a row of samples; 0 behind the last of each."""
    channels = channels // 8 * 8
    sample = gl.expand_dims(pixel // sample_pixels, 1)
    mask = gl.expand_dims(pixel < pixels, 1) & gl.expand_dims(c < channels, 0)
    return gl.load(source[0] + (sample * channels + gl.expand_dims(c, 0)), mask=mask, other=0.0)


@gluon.jit
def sum_of_remade(
    acc, packed_bufs, x_bufs, full, empty, turn, count, steps, made_by, pixel, pixels, channels,
    MAKER: gl.constexpr, FUNCTION: gl.constexpr,
) -> gl.tensor:  # fmt: skip
    """`sum_of_ring` of the map that is made of `channels` channels of x, from `pixel` on.

    `made_by` are the arguments of remade.py and the pixels of a sample.
    """
    STAGES: gl.constexpr = packed_bufs.shape[0]
    BLOCK_C: gl.constexpr = packed_bufs.shape[2]
    BOX: gl.constexpr = [acc.shape[1], BLOCK_C]
    LANES: gl.constexpr = BLOCK_C // 8
    BY_LINE: gl.constexpr = gl.BlockedLayout([1, 8], [32 // LANES, LANES], [4, 1], [1, 0])
    source, coefficient, sample_pixels = made_by
    first_c = gl.arange(0, BLOCK_C, gl.SliceLayout(0, BY_LINE))
    row = pixel + gl.arange(0, acc.shape[1], gl.SliceLayout(1, BY_LINE))
    stage = count % STAGES
    phase = count // STAGES & 1
    last = 0
    for step in range(steps):
        c = step * BLOCK_C + first_c
        if MAKER == "normalize":
            at = _normalizer(source, c, channels)
        else:
            at = _gates(source, row, c, pixels, channels, sample_pixels)
        mbarrier.wait(full.index(stage), phase)
        right = x_bufs.index(stage).reshape(BOX)
        x = right.load(BY_LINE)
        if MAKER == "normalize":
            made = normalized_again(x, at, coefficient, FUNCTION)
        else:
            made = gated_again(x, at)
        right.store(made)
        fence_async_shared()
        acc = warpgroup_mma(packed_bufs.index(stage), right.permute([1, 0]), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])
        mbarrier.arrive(empty.index(last), pred=step > 0)
        last = stage
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1
    mbarrier.arrive(turn)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(empty.index(last))
    return acc
