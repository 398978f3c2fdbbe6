"""Data gradients of 1x1 convolutions, fused with the sum with another gradient and a ReLU's mask.

The convolution's gradient is the last of two terms. The other term is added and the mask is applied
before the gradient is stored, which saves a pass. Values are rounded as by separate ops. The mask
is the ReLU's output, or the sign bits of that.

On Hopper one warp loads operands. Two groups of four warps take tiles alternately, as in
warp_specialized.py: one group stores its tile while the products of the other run. The other term
is loaded to the shared memory from which the tile will be stored, and the ReLU's output to further
shared memory. Beside float32 tiles there is no such memory: threads load the output's values
themselves. The kernel is written in Gluon, which the interpreter does not run. Elsewhere a kernel
that adds and masks follows the convolution.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from ..codec.sign_bits import passes, passes_reference, words_of
from ..language.cost import costing
from ..language.device import num_sms
from ..language.gluon import (
    available,
    gl,
    gluon,
    load_box,
    mbarrier,
    swizzled,
    tma,
)
from ..language.hopper import barriers, buffers, sum_of_ring
from ..language.rounding import stored, stored_reference
from . import cost
from .conv2d import conv2d_grad_input, conv2d_grad_input_reference
from .grad_input_add_mask_epilogue import add_and_store, parts_of, signs_at
from .tiles import Pair

PIXELS: Final = 128  # pixels of a tile
CHANNELS: Final = 128  # channels of a tile
STEP_NBYTES: Final = 128  # of a pixel's channels of dy in a step of a sum, and in a part of a tile
STAGES: Final = 5  # as many as fit shared memory
STAGES_BESIDE_MASKS: Final = 3  # as many as fit beside tiles of the ReLU's output
FLOAT32_STAGES: Final = 3  # as many as fit beside float32 tiles
ROWS: Final = 128  # pixels of a program that adds and masks
COLUMNS: Final = 64  # channels of a program that adds and masks
ONE_BY_ONE: Final = {
    "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1,
}  # fmt: skip


def may_be_last(
    shape: tuple[int, int, int, int], *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int,
    dtype: torch.dtype, precision: str = "ieee",
) -> bool:  # fmt: skip
    """Whether `conv2d_grad_last` computes a convolution with a weight of `shape` [K, C/g, R, S].

    Gradients of larger filters are bound by their products rather than by bytes, and gain little.
    """
    out_channels, in_channels, *size = shape
    one_by_one = (*size, groups) == (1, 1, 1) and (stride, padding) == ((1, 1), (0, 0))
    whole = out_channels % (STEP_NBYTES // dtype.itemsize) == 0 and in_channels % CHANNELS == 0
    fast = dtype == torch.bfloat16 or precision == "tf32"
    return one_by_one and whole and fast


@triton.jit
def _add_kernel(
    dx_ptr, added_ptr, mask_ptr, num_rows, channels,
    BITS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dx = added + dx where the mask lets it pass, else 0. Tiles are [BLOCK_R, BLOCK_C]."""
    WORDS: tl.constexpr = BLOCK_C // 32
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    mask = rows < num_rows
    offs = rows * channels + (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    total = tl.load(added_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(dx_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    if BITS:
        words = rows * (channels // 32) + (tl.program_id(1) * WORDS + tl.arange(0, WORDS))[None, :]
        passing = passes(tl.load(mask_ptr + words, mask=mask, other=0))
    else:
        passing = ~(tl.load(mask_ptr + offs, mask=mask, other=0.0) <= 0)
    total = stored(tl.where(passing, total, 0.0), dx_ptr.dtype.element_ty, PRECISION)
    tl.store(dx_ptr + offs, total, mask=mask)


@gluon.jit
def _load(dy_desc, packed_desc, dy_bufs, packed_bufs, full, empty, num_tiles, tiles_c, steps):
    """Fill the ring of stages, step by step and tile by tile."""
    STAGES: gl.constexpr = dy_bufs.shape[0]
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        row = tile // tiles_c * dy_desc.block_type.shape[0]
        c = tile % tiles_c * packed_desc.block_type.shape[0]
        for step in range(steps):
            mbarrier.wait(empty.index(stage), phase)
            bar = full.index(stage)
            mbarrier.expect(bar, dy_desc.block_type.nbytes + packed_desc.block_type.nbytes)
            depth = step * dy_desc.block_type.shape[1]
            load_box(dy_desc, [row, depth], bar, dy_bufs.index(stage))
            load_box(packed_desc, [c, depth], bar, packed_bufs.index(stage))
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@gluon.jit
def _compute(
    added_desc, mask, dx_desc, dy_bufs, packed_bufs, dx_bufs, mask_bufs, full, empty, read, turns,
    num_rows, channels, num_tiles, tiles_c, steps,
    MASK: gl.constexpr, ROUND: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    """Compute every second tile from tile TURN on, and store it in parts."""
    PIXELS: gl.constexpr = dx_desc.block_type.shape[0]
    WIDTH: gl.constexpr = dx_desc.block_type.shape[1]
    PARTS: gl.constexpr = packed_bufs.shape[1] // WIDTH
    DEPTH: gl.constexpr = 256 // dy_bufs.dtype.primitive_bitwidth
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PARTS * WIDTH, DEPTH])
    FIRST: gl.constexpr = PARTS * TURN
    count = TURN * steps
    read_phase = 0
    turn_phase = 1 - TURN
    first = gl.program_id(0) + TURN * gl.num_programs(0)
    for tile in range(first, num_tiles, 2 * gl.num_programs(0)):
        row = tile // tiles_c * PIXELS
        c = tile % tiles_c * (PARTS * WIDTH)
        tma.store_wait(0)
        BOXES: gl.constexpr = 2 * PARTS if MASK == "boxes" else PARTS
        mbarrier.expect(read, BOXES * added_desc.block_type.nbytes)
        for i in gl.static_range(PARTS):
            load_box(added_desc, [row, c + i * WIDTH], read, dx_bufs.index(FIRST + i))
            if MASK == "boxes":
                load_box(mask, [row, c + i * WIDTH], read, mask_bufs.index(FIRST + i))
        acc = gl.zeros([PIXELS, PARTS * WIDTH], gl.float32, SUMS)
        mbarrier.wait(turns.index(TURN), turn_phase)
        turn_phase ^= 1
        other = turns.index(1 - TURN)
        acc = sum_of_ring(acc, dy_bufs, packed_bufs, full, empty, other, count, steps)
        count += 2 * steps
        parts = parts_of(acc, PARTS)
        signs = ()
        for i in gl.static_range(PARTS):
            if MASK == "bits":
                words = signs_at(parts[i], mask, row, c + i * WIDTH, num_rows, channels)
                signs = signs + (words,)  # noqa: RUF005 (no stars in Gluon)
            else:
                signs = signs + (0,)  # noqa: RUF005
        mbarrier.wait(read, read_phase)
        read_phase ^= 1
        for i in gl.static_range(PARTS):
            add_and_store(
                parts[i], signs[i], mask, dx_desc, dx_bufs.index(FIRST + i),
                mask_bufs.index(FIRST + i), row, c + i * WIDTH, num_rows, channels, MASK, ROUND,
            )  # fmt: skip
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["num_rows"])
def _last_kernel(
    dy_desc,
    packed_desc,
    added_desc,
    mask,
    dx_desc,
    num_rows,
    in_c,
    channels,
    MASK: gl.constexpr,
    ROUND: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """A tile is a run of pixels by a block of channels. Consecutive tiles share a run of pixels.

    The mask is by MASK a pointer to words of sign "bits" or to "values" of a map, or a descriptor
    of the map's "boxes".
    """
    tiles_c = gl.cdiv(channels, packed_desc.block_type.shape[0])
    num_tiles = gl.cdiv(num_rows, dy_desc.block_type.shape[0]) * tiles_c
    steps = gl.cdiv(in_c, dy_desc.block_type.shape[1])
    dy_bufs = buffers(dy_desc, STAGES)
    packed_bufs = buffers(packed_desc, STAGES)
    PARTS: gl.constexpr = packed_desc.block_type.shape[0] // dx_desc.block_type.shape[1]
    dx_bufs = buffers(dx_desc, 2 * PARTS)
    mask_bufs = buffers(mask, 2 * PARTS) if MASK == "boxes" else dx_bufs  # others need none
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 1)
    read = barriers(2, 1)
    turns = barriers(2, 1)
    gl.warp_specialize(
        [
            (_compute, (
                added_desc, mask, dx_desc, dy_bufs, packed_bufs, dx_bufs, mask_bufs,
                full, empty, read.index(0), turns,
                num_rows, channels, num_tiles, tiles_c, steps, MASK, ROUND, 0,
            )),
            (_compute, (
                added_desc, mask, dx_desc, dy_bufs, packed_bufs, dx_bufs, mask_bufs,
                full, empty, read.index(1), turns,
                num_rows, channels, num_tiles, tiles_c, steps, MASK, ROUND, 1,
            )),
            (_load, (
                dy_desc, packed_desc, dy_bufs, packed_bufs, full, empty, num_tiles, tiles_c, steps,
            )),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip


@costing(cost.add_mask)
def conv2d_grad_last(
    dy: Tensor, packed: Tensor, added: Tensor, mask: Tensor, dx: Tensor, *,
    precision: str = "ieee", out_precision: str = "ieee",
) -> None:  # fmt: skip
    """dx [n, H, W, C] = added + the data gradient of dy where the mask lets it pass, else 0.

    Maps are bfloat16, or float32 with products of `precision` "tf32". The data gradient is that of
    dy [n, H, W, K] by 1x1 filters, packed [C, 1, 1, K], for which `may_be_last` holds. It is
    rounded to the maps' type before the sum. `mask` is a ReLU's output [n, H, W, C], which lets
    pass where it is above zero or NaN, or its sign bits uint8 [n, H, W, C / 8]. dx is rounded as
    products of `out_precision` read it. Each map is moved once.
    """
    if dx.numel() == 0:
        return
    channels, bits = dx.shape[3], mask.dtype == torch.uint8
    if not available():
        conv2d_grad_input(dy, packed, dx, **ONE_BY_ONE, precision=precision, out_precision="ieee")
        num_rows = dx.numel() // channels
        _add_kernel[(cdiv(num_rows, ROWS), channels // COLUMNS)](
            dx, added, words_of(mask, channels) if bits else mask, num_rows, channels,
            BITS=bits, PRECISION=out_precision, BLOCK_R=ROWS, BLOCK_C=COLUMNS, num_warps=8,
        )  # fmt: skip
        return
    (num_rows, in_c), line = dy.flatten(0, 2).shape, STEP_NBYTES // dy.element_size()
    num_tiles, part = cdiv(num_rows, PIXELS) * (channels // CHANNELS), [PIXELS, line]
    wide = dx.dtype == torch.float32
    by, stages = "bits" if bits else "values", FLOAT32_STAGES if wide else STAGES
    source = words_of(mask, channels) if bits else mask
    if not (bits or wide):
        by, stages, source = "boxes", STAGES_BESIDE_MASKS, swizzled(mask.flatten(0, 2), part)
    _last_kernel[(min(num_tiles, num_sms()),)](
        swizzled(dy.flatten(0, 2), part),
        swizzled(packed.flatten(1), [CHANNELS, line]),
        swizzled(added.flatten(0, 2), part),
        source, swizzled(dx.flatten(0, 2), part), num_rows, in_c, channels,
        MASK=by, ROUND=wide and out_precision == "tf32",
        STAGES=stages, num_warps=4,
    )  # fmt: skip


def conv2d_grad_last_reference(
    dy: Tensor, packed: Tensor, added: Tensor, mask: Tensor, dx: Tensor, *,
    precision: str = "ieee", out_precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `conv2d_grad_last` in torch."""
    conv2d_grad_input_reference(
        dy, packed, dx, **ONE_BY_ONE, precision=precision, out_precision="ieee"
    )
    total = (added.float() + dx.float()).to(dx.dtype)
    passing = passes_reference(mask) if mask.dtype == torch.uint8 else ~(mask <= 0)
    dx.copy_(stored_reference(total.masked_fill(~passing, 0.0), dx.dtype, out_precision))
