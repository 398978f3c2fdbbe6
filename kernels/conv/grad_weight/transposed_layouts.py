"""Layouts of transposed.py: how its warps hold maps, products and running sums in registers."""

from typing import Final

from ...language.gluon import gl, gluon

PIXELS: Final = gl.constexpr(32)  # pixels of a row: 128 bytes of a channel
CHANNELS: Final = gl.constexpr(64)  # channels of x, and of dy for a group of warps
SUMS: Final = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 8]))
FRAGMENT: Final = gl.constexpr(gl.DotOperandLayout(0, SUMS.value, 1))
# [pixels, channels], such that `transposed_dy` gives a FRAGMENT. Loads have no bank conflicts.
DY_LAYOUT: Final = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 8], [1, 0], [8, 0], [16, 0]],
        lane_bases=[[2, 0], [4, 0], [0, 1], [0, 2], [0, 4]],
        warp_bases=[[0, 16], [0, 32]],
        block_bases=[],
        shape=[32, 64],
    )
)
# [pixels, channels]. Threads load four channels at a time and store four pixels. `transposed_x`
# orders channels such that no two of eight lanes conflict in a bank.
X_LAYOUT: Final = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [2, 0], [4, 0]],
        lane_bases=[[0, 4], [0, 8], [0, 16], [1, 0], [8, 0]],
        warp_bases=[[16, 0], [0, 32]],
        block_bases=[],
        shape=[32, 64],
    )
)
# [output channels, input channels]: SUMS with another order of registers.
PARTIALS: Final = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [0, 32], [8, 0]],
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 64],
    )
)


@gluon.jit
def transposed_dy(rows) -> gl.tensor:
    """dy [channels, pixels] of rows of pixels. Each eight have the order 0 2 4 6 1 3 5 7."""
    N: gl.constexpr = rows.shape[1]
    return rows.reshape([4, 4, 2, N]).permute([3, 0, 2, 1]).reshape([N, 32])


@gluon.jit
def transposed_x(x, CHANNELS: gl.constexpr) -> gl.tensor:
    """x [channels, pixels] of rows of pixels, with the order of pixels of `transposed_dy`.

    Each 32 channels have the order 0 4 ... 28, 1 5 ... 29, 2 6 ... 30, 3 7 ... 31.
    """
    parts = x.reshape([4, 4, 2, CHANNELS // 32, 8, 4]).permute([3, 5, 4, 0, 2, 1])
    return parts.reshape([CHANNELS, 32])


@gluon.jit
def load_sum(ptrs, mask, SUMS: gl.constexpr) -> gl.tensor:
    """The running sum of earlier launches, with columns in the order of `transposed_x`."""
    acc = gl.load(ptrs, mask=mask, other=0.0)
    ROWS: gl.constexpr = acc.shape[0]
    N: gl.constexpr = acc.shape[1]
    acc = acc.reshape([ROWS, N // 32, 8, 4]).permute([0, 1, 3, 2]).reshape([ROWS, N])
    return gl.convert_layout(acc, SUMS)


@gluon.jit
def store_sum(ptrs, acc, mask, PARTIALS: gl.constexpr) -> None:
    """Store a running sum, with columns in the order of channels."""
    ROWS: gl.constexpr = acc.shape[0]
    N: gl.constexpr = acc.shape[1]
    acc = acc.reshape([ROWS, N // 32, 4, 8]).permute([0, 1, 3, 2]).reshape([ROWS, N])
    gl.store(ptrs, gl.convert_layout(acc, PARTIALS), mask=mask)
