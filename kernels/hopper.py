"""What kernels written in Gluon share on Hopper: boxes in shared memory, barriers, rounding."""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Triton 3.8 has other names for both, and 3.9 no longer takes the first ones.
load_box = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_box = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


def swizzled(tensor: Tensor, block: list[int]) -> TensorDescriptor:
    """A descriptor whose blocks lie in shared memory as products read them."""
    layout = gl.NVMMASharedLayout(128, 8 * tensor.dtype.itemsize, len(block))
    return TensorDescriptor.from_tensor(tensor, block, layout)


@gluon.jit
def buffers(desc, COUNT: gl.constexpr) -> gl.shared_memory_descriptor:
    """Shared memory for so many of a descriptor's blocks."""
    shape: gl.constexpr = [COUNT] + desc.block_type.shape  # noqa: RUF005 (no stars in Gluon)
    return gl.allocate_shared_memory(desc.dtype, shape, desc.layout)


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr) -> gl.shared_memory_descriptor:
    """So many barriers, each for so many arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit
def rounded(x) -> gl.tensor:
    """What rounding.round_tf32 computes."""
    bits = (x.to(gl.int32, bitcast=True) + 4096) & -8192
    return gl.where(x == x, bits.to(gl.float32, bitcast=True), x)
