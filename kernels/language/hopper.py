"""What the Gluon kernels for Hopper share: buffers, barriers, TF32 rounding, sums of products."""

from .gluon import gl, gluon, mbarrier, warpgroup_mma, warpgroup_mma_wait


@gluon.jit
def buffers(desc, COUNT: gl.constexpr) -> gl.shared_memory_descriptor:
    """Shared memory for COUNT blocks of a descriptor: [COUNT, *block shape]."""
    shape: gl.constexpr = [COUNT] + desc.block_type.shape  # noqa: RUF005 (no stars in Gluon)
    return gl.allocate_shared_memory(desc.dtype, shape, desc.layout)


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr) -> gl.shared_memory_descriptor:
    """COUNT barriers in shared memory, each completed by ARRIVALS arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit
def rounded(x) -> gl.tensor:
    """float32 values rounded to TF32, as `rounding.round_tf32` rounds them."""
    bits = (x.to(gl.int32, bitcast=True) + 4096) & -8192
    return gl.where(x == x, bits, 0x7FC00000).to(gl.float32, bitcast=True)


@gluon.jit
def sum_of_ring(acc, left_bufs, right_bufs, full, empty, turn, count, steps) -> gl.tensor:
    """acc + the sum over `steps` stages of a ring of left [m, terms] right [n, terms]^T.

    The first stage is that of step `count` of the ring. All axes of a stage of `right_bufs` but the
    last count as n. The function arrives at the barrier `turn` after it has started its last
    product. The other group of warps waits there.
    """
    STAGES: gl.constexpr = left_bufs.shape[0]
    BOX: gl.constexpr = [acc.shape[1], left_bufs.shape[2]]
    stage = count % STAGES
    phase = count // STAGES & 1
    last = 0  # with `last = stage` the loop would lose the variable (triton 3.6)
    for step in range(steps):
        mbarrier.wait(full.index(stage), phase)
        right = right_bufs.index(stage).reshape(BOX).permute([1, 0])
        acc = warpgroup_mma(left_bufs.index(stage), right, acc, is_async=True)
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
