"""Weight gradients of a fully connected layer over few samples, for Hopper.

As in linear_resident.py a program keeps its rows of dy, all samples deep, here in registers, and
walks along x. One warp loads x; each of two groups of four warps has 64 rows, whose sums leave by
the copy engine while the next products run, from where dy came. VGG-16's 25088 -> 4096 layer takes
141 us so, as cuBLAS does, and by linear_resident.py 158, the 4096 -> 4096 layer 26.5 and not 30.8
(H200, 2026-11-21). The sums are the same to the bit. It is written in Gluon, which the interpreter
does not run.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from ..language import device
from ..language.gluon import (
    available,
    fence_async_shared,
    gl,
    gluon,
    load_box,
    mbarrier,
    reinterpreted,
    store_box,
    swizzled,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from ..language.hopper import barriers, buffers
from .gemm import describable

FEATURES: Final = tl.constexpr(64)  # rows of a group of warps
GROUPS: Final = tl.constexpr(2)
LEAST_DEPTH: Final = 128  # samples, of whose dy the room is that of one tile of sums
BLOCK_N: Final = 64
STAGES: Final = 5


@gluon.jit
def _load(dy_desc, x_desc, lefts, xs, kept, full, empty, m, first, end):
    """The program's rows of dy, and then the ring of stages of x."""
    STAGES: gl.constexpr = xs.shape[0]
    BLOCK_N: gl.constexpr = xs.shape[2]
    mbarrier.expect(kept, GROUPS * dy_desc.block_type.nbytes)
    for i in gl.static_range(GROUPS):
        load_box(dy_desc, [0, m + i * FEATURES], kept, lefts.index(i))
    stage = 0
    phase = 1
    for n in range(first, end, BLOCK_N):
        mbarrier.wait(empty.index(stage), phase)
        bar = full.index(stage)
        mbarrier.expect(bar, x_desc.block_type.nbytes)
        load_box(x_desc, [0, n], bar, xs.index(stage))
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1


@gluon.jit
def _compute(grad_desc, lefts, xs, kept, full, empty, m, first, end, GROUP: gl.constexpr):
    """The products of one group's rows, tile by tile; they leave from where its dy came."""
    STAGES: gl.constexpr = xs.shape[0]
    BLOCK_N: gl.constexpr = xs.shape[2]
    OUTS: gl.constexpr = lefts.shape[1] // (2 * BLOCK_N)  # tiles of sums, each twice as wide as dy
    SHAPE: gl.constexpr = [OUTS, FEATURES, BLOCK_N]
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    mbarrier.wait(kept, 0)
    left = lefts.index(GROUP).permute([1, 0]).load(LEFT)  # [FEATURES, samples]
    outs = reinterpreted(lefts.index(GROUP), gl.float32, SHAPE, grad_desc.layout)
    stage = 0
    phase = 0
    out = 0
    for n in range(first, end, BLOCK_N):
        mbarrier.wait(full.index(stage), phase)
        acc = gl.zeros([FEATURES, BLOCK_N], gl.float32, SUMS)
        acc = warpgroup_mma(left, xs.index(stage), acc, use_acc=False, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(stage))
        buf = outs.index(out)
        tma.store_wait(OUTS - 1)
        buf.store(acc)
        fence_async_shared()
        store_box(grad_desc, [m + GROUP * FEATURES, n], buf)
        out = (out + 1) % OUTS
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1
    tma.store_wait(0)


@gluon.jit
def _streamed_kernel(dy_desc, x_desc, grad_desc, num_columns, span, STAGES: gl.constexpr) -> None:
    """grad = dy^T x of GROUPS * FEATURES rows over `span` columns."""
    m = gl.program_id(0) * (GROUPS * FEATURES)
    first = gl.program_id(1) * span
    end = gl.minimum(first + span, num_columns)
    lefts = buffers(dy_desc, GROUPS)
    xs = buffers(x_desc, STAGES)
    kept = barriers(1, 1).index(0)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, GROUPS)
    gl.warp_specialize(
        [
            (_compute, (grad_desc, lefts, xs, kept, full, empty, m, first, end, 0)),
            (_compute, (grad_desc, lefts, xs, kept, full, empty, m, first, end, 1)),
            (_load, (dy_desc, x_desc, lefts, xs, kept, full, empty, m, first, end)),
        ],
        [4, 1],
        [232, 40],
    )


def streams(grad: Tensor) -> bool:
    """Whether Gluon runs here, and Hopper's copy engine can write the gradient."""
    return available() and describable(grad)


def streamed_gradient(x: Tensor, dy: Tensor, grad: Tensor) -> None:
    """grad float32 [O, F] = dy^T x, of samples that `suits_residence` speaks of."""
    rows, columns = grad.shape
    depth = max(triton.next_power_of_2(x.shape[0]), LEAST_DEPTH)
    tiles_m = triton.cdiv(rows, GROUPS.value * FEATURES.value)
    shares = max(device.num_sms() // tiles_m, 1)
    span = triton.cdiv(triton.cdiv(columns, shares), BLOCK_N) * BLOCK_N
    _streamed_kernel[(tiles_m, triton.cdiv(columns, span))](
        swizzled(dy, [depth, FEATURES.value]), swizzled(x, [depth, BLOCK_N]),
        swizzled(grad, [FEATURES.value, BLOCK_N]), columns, span, STAGES=STAGES, num_warps=4,
    )  # fmt: skip
