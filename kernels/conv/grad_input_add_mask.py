"""Data gradients of 1x1 convolutions, fused with the sum with another gradient and a ReLU's mask.

The convolution's gradient is the last of two terms. The other term is added and the mask is applied
before the gradient is stored, which saves a pass. Values are rounded as by separate ops. The mask
is the ReLU's output, or the sign bits of that.

On Hopper one warp loads operands. Two groups of four warps take tiles alternately, as in
warp_specialized.py: one group stores its tile while the products of the other run. The other term
is loaded to the shared memory from which the tile will be stored, and the ReLU's output to further
shared memory. The kernel is written in Gluon, which the interpreter does not run. Elsewhere a
kernel that adds and masks follows the convolution.
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
    fence_async_shared,
    gl,
    gluon,
    load_box,
    mbarrier,
    store_box,
    swizzled,
    tma,
)
from ..language.hopper import barriers, buffers, sum_of_ring
from . import cost
from .conv2d import conv2d_grad_input, conv2d_grad_input_reference
from .tiles import Pair

PIXELS: Final = 128  # pixels of a tile
CHANNELS: Final = 128  # channels of a tile
DEPTH: Final = 64  # channels of dy in one step of a sum
STAGES: Final = 5  # as many as fit shared memory
STAGES_BESIDE_MASKS: Final = 3  # as many as fit beside tiles of the ReLU's output
ROWS: Final = 128  # pixels of a program that adds and masks
COLUMNS: Final = 64  # channels of a program that adds and masks
ONE_BY_ONE: Final = {
    "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, "precision": "ieee",
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
    whole = out_channels % DEPTH == 0 and in_channels % CHANNELS == 0
    return one_by_one and whole and dtype == torch.bfloat16


@triton.jit
def _add_kernel(
    dx_ptr, added_ptr, mask_ptr, num_rows, channels,
    BITS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
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
    tl.store(dx_ptr + offs, tl.where(passing, total, 0.0).to(dx_ptr.dtype.element_ty), mask=mask)


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
def _signs_at(tile, signs_ptr, row, c, num_rows, channels):
    """The words of sign bits [pixels, channels / 32] of the tile at (row, c)."""
    WORDS: gl.constexpr = tile.shape[1] // 32
    AT: gl.constexpr = gl.SliceLayout(2, tile.reshape([tile.shape[0], WORDS, 32]).type.layout)
    rows = row + gl.arange(0, tile.shape[0], gl.SliceLayout(1, AT))
    words = c // 32 + gl.arange(0, WORDS, gl.SliceLayout(0, AT))
    offs = gl.expand_dims(rows.to(gl.int64) * (channels // 32), 1) + gl.expand_dims(words, 0)
    return gl.load(signs_ptr + offs, mask=gl.expand_dims(rows < num_rows, 1), other=0)


@gluon.jit
def _masked_by_bits(tile, signs):
    """The tile [pixels, channels] where its sign bits are set, else 0."""
    members = tile.reshape([tile.shape[0], signs.shape[1], 32])
    PLACE: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, members.type.layout))
    places = gl.expand_dims(gl.expand_dims(gl.arange(0, 32, PLACE), 0), 1)
    passing = (gl.expand_dims(signs, 2) >> places) & 1
    return gl.where(passing != 0, members, gl.zeros_like(members)).reshape(tile.shape)


@gluon.jit
def _masked_by_map(tile, y_buf):
    """The tile [pixels, channels] where the values in y_buf are above zero or NaN, else 0."""
    y = y_buf.load(tile.type.layout).to(gl.float32)
    return gl.where(y <= 0, gl.zeros_like(tile), tile)


@gluon.jit
def _add_and_store(acc, mask, dx_desc, dx_buf, row, c, BITS: gl.constexpr):
    """Add the sums acc [pixels, channels] to the other term in dx_buf, mask and store them.

    The mask are words of sign bits, or shared memory with values.
    """
    AT: gl.constexpr = acc.type.layout
    term = acc.to(dx_desc.dtype).to(gl.float32)
    total = (dx_buf.load(AT).to(gl.float32) + term).to(dx_desc.dtype)
    total = _masked_by_bits(total, mask) if BITS else _masked_by_map(total, mask)
    dx_buf.store(gl.convert_layout(total, AT))
    fence_async_shared()
    store_box(dx_desc, [row, c], dx_buf)


@gluon.jit
def _compute(
    added_desc, mask, dx_desc, dy_bufs, packed_bufs, dx_bufs, mask_bufs, full, empty, read, turns,
    num_rows, channels, num_tiles, tiles_c, steps, BITS: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    """Compute every second tile from tile TURN on, and store it in two halves."""
    PIXELS: gl.constexpr = dx_desc.block_type.shape[0]
    HALF: gl.constexpr = dx_desc.block_type.shape[1]
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * HALF, 16])
    low_buf = dx_bufs.index(2 * TURN)
    high_buf = dx_bufs.index(2 * TURN + 1)
    count = TURN * steps
    read_phase = 0
    turn_phase = 1 - TURN
    first = gl.program_id(0) + TURN * gl.num_programs(0)
    for tile in range(first, num_tiles, 2 * gl.num_programs(0)):
        row = tile // tiles_c * PIXELS
        c = tile % tiles_c * (2 * HALF)
        tma.store_wait(0)
        mbarrier.expect(read, (2 if BITS else 4) * added_desc.block_type.nbytes)
        load_box(added_desc, [row, c], read, low_buf)
        load_box(added_desc, [row, c + HALF], read, high_buf)
        if not BITS:
            load_box(mask, [row, c], read, mask_bufs.index(2 * TURN))
            load_box(mask, [row, c + HALF], read, mask_bufs.index(2 * TURN + 1))
        acc = gl.zeros([PIXELS, 2 * HALF], gl.float32, SUMS)
        mbarrier.wait(turns.index(TURN), turn_phase)
        turn_phase ^= 1
        other = turns.index(1 - TURN)
        acc = sum_of_ring(acc, dy_bufs, packed_bufs, full, empty, other, count, steps)
        count += 2 * steps
        low, high = gl.split(acc.reshape([PIXELS, 2, HALF]).permute([0, 2, 1]))
        if BITS:
            low_mask = _signs_at(low, mask, row, c, num_rows, channels)
            high_mask = _signs_at(high, mask, row, c + HALF, num_rows, channels)
        else:
            low_mask = mask_bufs.index(2 * TURN)
            high_mask = mask_bufs.index(2 * TURN + 1)
        mbarrier.wait(read, read_phase)
        read_phase ^= 1
        _add_and_store(low, low_mask, dx_desc, low_buf, row, c, BITS)
        _add_and_store(high, high_mask, dx_desc, high_buf, row, c + HALF, BITS)
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
    BITS: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """A tile is a run of pixels by a block of channels. Consecutive tiles share a run of pixels.

    The mask is a pointer to words of sign bits, or a descriptor of a map.
    """
    tiles_c = gl.cdiv(channels, packed_desc.block_type.shape[0])
    num_tiles = gl.cdiv(num_rows, dy_desc.block_type.shape[0]) * tiles_c
    steps = gl.cdiv(in_c, dy_desc.block_type.shape[1])
    dy_bufs = buffers(dy_desc, STAGES)
    packed_bufs = buffers(packed_desc, STAGES)
    dx_bufs = buffers(dx_desc, 4)
    mask_bufs = dx_bufs if BITS else buffers(mask, 4)  # sign bits need none
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 1)
    read = barriers(2, 1)
    turns = barriers(2, 1)
    gl.warp_specialize(
        [
            (_compute, (
                added_desc, mask, dx_desc, dy_bufs, packed_bufs, dx_bufs, mask_bufs,
                full, empty, read.index(0), turns,
                num_rows, channels, num_tiles, tiles_c, steps, BITS, 0,
            )),
            (_compute, (
                added_desc, mask, dx_desc, dy_bufs, packed_bufs, dx_bufs, mask_bufs,
                full, empty, read.index(1), turns,
                num_rows, channels, num_tiles, tiles_c, steps, BITS, 1,
            )),
            (_load, (
                dy_desc, packed_desc, dy_bufs, packed_bufs, full, empty, num_tiles, tiles_c, steps,
            )),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip


@costing(cost.add_mask)
def conv2d_grad_last(dy: Tensor, packed: Tensor, added: Tensor, mask: Tensor, dx: Tensor) -> None:
    """dx [n, H, W, C] = added + the data gradient of dy where the mask lets it pass, else 0.

    Maps are bfloat16. The data gradient is that of dy [n, H, W, K] by 1x1 filters, packed
    [C, 1, 1, K], for which `may_be_last` holds. It is rounded to bfloat16 before the sum. `mask` is
    a ReLU's output [n, H, W, C], which lets pass where it is above zero or NaN, or its sign bits
    uint8 [n, H, W, C / 8]. Each map is moved once.
    """
    if dx.numel() == 0:
        return
    channels, bits = dx.shape[3], mask.dtype == torch.uint8
    if not available():
        conv2d_grad_input(dy, packed, dx, **ONE_BY_ONE)
        num_rows = dx.numel() // channels
        _add_kernel[(cdiv(num_rows, ROWS), channels // COLUMNS)](
            dx, added, words_of(mask, channels) if bits else mask, num_rows, channels,
            BITS=bits, BLOCK_R=ROWS, BLOCK_C=COLUMNS, num_warps=8,
        )  # fmt: skip
        return
    (num_rows, in_c), half = dy.flatten(0, 2).shape, [PIXELS, CHANNELS // 2]
    num_tiles = cdiv(num_rows, PIXELS) * (channels // CHANNELS)
    _last_kernel[(min(num_tiles, num_sms()),)](
        swizzled(dy.flatten(0, 2), [PIXELS, DEPTH]),
        swizzled(packed.flatten(1), [CHANNELS, DEPTH]),
        swizzled(added.flatten(0, 2), half),
        words_of(mask, channels) if bits else swizzled(mask.flatten(0, 2), half),
        swizzled(dx.flatten(0, 2), half), num_rows, in_c, channels,
        BITS=bits, STAGES=STAGES if bits else STAGES_BESIDE_MASKS, num_warps=4,
    )  # fmt: skip


def conv2d_grad_last_reference(
    dy: Tensor, packed: Tensor, added: Tensor, mask: Tensor, dx: Tensor
) -> None:
    """Computes `conv2d_grad_last` in torch."""
    conv2d_grad_input_reference(dy, packed, dx, **ONE_BY_ONE)
    total = (added.float() + dx.float()).to(dx.dtype)
    passing = passes_reference(mask) if mask.dtype == torch.uint8 else ~(mask <= 0)
    dx.copy_(total.masked_fill(~passing, 0.0))
