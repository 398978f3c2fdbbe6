"""The box kernel of conv_tma.py for Hopper, its warps specialised.

One warp loads. Two groups of four warps take tiles in turns, so that one group's tile leaves, and
the mask of its next one comes, while the other group's products run. It is written in Gluon, which
the interpreter does not run; its sums are those of conv_tma.py to the bit.

On triton 3.6 a loop loses a variable that began as another one's value, and the kernel hangs: each
that a loop changes starts from a number.
"""

from typing import Final

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Triton 3.8 has other names for both, and 3.9 no longer takes the first ones.
load_box = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_box = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

SIZES: Final = ("num_samples", "height", "width", "pad_h", "pad_w", "dil_h", "dil_w")


@gluon.jit
def _place_of(tile, tiles_h, tiles_w, tiles_k, block):
    """Sample, row, column and channel at which a tile starts; block has its sides."""
    box = tile // tiles_k
    n = box // (tiles_w * tiles_h) * block[0]
    h = box // tiles_w % tiles_h * block[1]
    return n, h, box % tiles_w * block[2], tile % tiles_k * block[3]


@gluon.jit
def _load(
    x_desc, packed_desc, x_bufs, packed_bufs, full, empty, tiles, in_c, steps_c, offsets, steps,
    S: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Fill the ring of stages, step by step and tile by tile."""
    STAGES: gl.constexpr = x_bufs.shape[0]
    BLOCK_C: gl.constexpr = x_bufs.shape[4]
    num_tiles, tiles_h, tiles_w, tiles_k = tiles
    pad_h, pad_w, dil_h, dil_w = offsets
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        n, h, w, k = _place_of(tile, tiles_h, tiles_w, tiles_k, BLOCK)
        for step in range(steps):
            tap = step // steps_c
            c = step % steps_c * BLOCK_C
            mbarrier.wait(empty.index(stage), phase)
            bar = full.index(stage)
            mbarrier.expect(bar, x_desc.block_type.nbytes + packed_desc.block_type.nbytes)
            row = h - pad_h + tap // S * dil_h
            column = w - pad_w + tap % S * dil_w
            load_box(x_desc, [n, row, column, c], bar, x_bufs.index(stage))
            load_box(packed_desc, [k, tap * in_c + c], bar, packed_bufs.index(stage))
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@gluon.jit
def _rounded(x):
    """What rounding.round_tf32 computes."""
    bits = (x.to(gl.int32, bitcast=True) + 4096) & -8192
    return gl.where(x == x, bits.to(gl.float32, bitcast=True), x)


@gluon.jit
def _compute(
    bias_ptr, mask_desc, y_desc, x_bufs, packed_bufs, y_buf, full, empty, masked, turns,
    tiles, out_c, steps,
    TURN: gl.constexpr, BLOCK: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_MASK: gl.constexpr,
    RELU: gl.constexpr, ROUND: gl.constexpr,
):  # fmt: skip
    """Take every second tile, from TURN on: products, then what leaves."""
    STAGES: gl.constexpr = x_bufs.shape[0]
    BLOCK_C: gl.constexpr = x_bufs.shape[4]
    PIXELS: gl.constexpr = BLOCK[0] * BLOCK[1] * BLOCK[2]
    BLOCK_K: gl.constexpr = BLOCK[3]
    DEPTH: gl.constexpr = 256 // x_bufs.dtype.primitive_bitwidth
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PIXELS, DEPTH])
    num_tiles, tiles_h, tiles_w, tiles_k = tiles
    count = TURN * steps
    mask_phase = 0
    turn_phase = 1 - TURN
    first = gl.program_id(0) + TURN * gl.num_programs(0)
    for tile in range(first, num_tiles, 2 * gl.num_programs(0)):
        n, h, w, k = _place_of(tile, tiles_h, tiles_w, tiles_k, BLOCK)
        if HAS_MASK:
            tma.store_wait(0)
            mbarrier.expect(masked, mask_desc.block_type.nbytes)
            load_box(mask_desc, [n, h, w, k], masked, y_buf)
        acc = gl.zeros([BLOCK_K, PIXELS], gl.float32, SUMS)
        stage = count % STAGES
        phase = count // STAGES & 1
        last = 0  # a name that started as the stage's would never change (triton 3.6)
        mbarrier.wait(turns.index(TURN), turn_phase)
        turn_phase ^= 1
        for step in range(steps):
            mbarrier.wait(full.index(stage), phase)
            box = x_bufs.index(stage).reshape([PIXELS, BLOCK_C])
            box = box.permute([1, 0])
            acc = warpgroup_mma(packed_bufs.index(stage), box, acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index(last), pred=step > 0)
            last = stage
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1
        mbarrier.arrive(turns.index(1 - TURN))
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(last))
        count += 2 * steps
        if HAS_BIAS:
            offs_k = k + gl.arange(0, BLOCK_K, gl.SliceLayout(1, SUMS))
            bias = gl.load(bias_ptr + offs_k, mask=offs_k < out_c, other=0.0)
            acc += gl.expand_dims(bias, 1)
        if RELU:
            acc = gl.where(acc <= 0, 0.0, acc)
        if ROUND:
            acc = _rounded(acc)
        y = acc.permute([1, 0]).reshape(BLOCK).to(y_desc.dtype)
        if HAS_MASK:
            mbarrier.wait(masked, mask_phase)
            mask_phase ^= 1
            mask = y_buf.load(y.type.layout)
            y = gl.where(mask.to(gl.float32) <= 0, gl.zeros_like(y), y)
        else:
            tma.store_wait(0)
        y_buf.store(y)
        fence_async_shared()
        store_box(y_desc, [n, h, w, k], y_buf)
    tma.store_wait(0)


@gluon.jit
def _buffers(desc, COUNT: gl.constexpr):
    """Shared memory for so many of a descriptor's blocks."""
    shape: gl.constexpr = [COUNT] + desc.block_type.shape  # noqa: RUF005 (no stars in Gluon)
    return gl.allocate_shared_memory(desc.dtype, shape, desc.layout)


@gluon.jit
def _barriers(COUNT: gl.constexpr):
    """So many barriers, each for one arrival."""
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=1)
    return barriers


@gluon.jit(do_not_specialize=SIZES)
def conv_specialized_kernel(
    x_desc, packed_desc, bias_ptr, mask_desc, y_desc,
    num_samples, height, width, in_c, out_c, pad_h, pad_w, dil_h, dil_w,
    R: gl.constexpr, S: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_MASK: gl.constexpr,
    RELU: gl.constexpr, ROUND: gl.constexpr, STAGES: gl.constexpr,
) -> None:  # fmt: skip
    """Stride 1: a tile of outputs is a box of pixels, and a tap is the same box moved."""
    BLOCK: gl.constexpr = y_desc.block_type.shape
    tiles_h = gl.cdiv(height, BLOCK[1])
    tiles_w = gl.cdiv(width, BLOCK[2])
    tiles_k = gl.cdiv(out_c, BLOCK[3])
    num_tiles = gl.cdiv(num_samples, BLOCK[0]) * tiles_h * tiles_w * tiles_k
    tiles = (num_tiles, tiles_h, tiles_w, tiles_k)
    steps_c = gl.cdiv(in_c, x_desc.block_type.shape[3])
    steps = R * S * steps_c
    x_bufs = _buffers(x_desc, STAGES)
    packed_bufs = _buffers(packed_desc, STAGES)
    y_bufs = _buffers(y_desc, 2)
    full = _barriers(STAGES)
    empty = _barriers(STAGES)
    masked = _barriers(2)
    turns = _barriers(2)
    gl.warp_specialize(
        [
            (_compute, (
                bias_ptr, mask_desc, y_desc, x_bufs, packed_bufs, y_bufs.index(0),
                full, empty, masked.index(0), turns, tiles, out_c, steps,
                0, BLOCK, HAS_BIAS, HAS_MASK, RELU, ROUND,
            )),
            (_compute, (
                bias_ptr, mask_desc, y_desc, x_bufs, packed_bufs, y_bufs.index(1),
                full, empty, masked.index(1), turns, tiles, out_c, steps,
                1, BLOCK, HAS_BIAS, HAS_MASK, RELU, ROUND,
            )),
            (_load, (
                x_desc, packed_desc, x_bufs, packed_bufs, full, empty, tiles, in_c, steps_c,
                (pad_h, pad_w, dil_h, dil_w), steps, S, BLOCK,
            )),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip


def swizzled(tensor: Tensor, block: list[int]) -> TensorDescriptor:
    """A descriptor whose blocks lie in shared memory as products read them."""
    layout = gl.NVMMASharedLayout(128, 8 * tensor.dtype.itemsize, len(block))
    return TensorDescriptor.from_tensor(tensor, block, layout)
