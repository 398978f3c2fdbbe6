"""Layouts of columns.py: how its warps hold maps, products and running sums in registers."""

from typing import Final

from ...language.gluon import gl, gluon

PIXELS: Final = gl.constexpr(32)  # pixels of a step: 128 bytes of a column
OUTPUTS: Final = gl.constexpr(128)  # channels of dy for a group of warps
COLUMNS: Final = gl.constexpr(128)  # columns of x
QUAD: Final = gl.constexpr(4)  # adjacent channels that a thread loads together: 16 bytes
QUADS: Final = gl.constexpr(32)  # quads of a tile of columns
SUMS: Final = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 8]))
FRAGMENT: Final = gl.constexpr(gl.DotOperandLayout(0, SUMS.value, 1))
# [pixels, channels], such that `transposed_dy` gives a FRAGMENT. Loads have no bank conflicts.
DY_LAYOUT: Final = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 8], [1, 0], [8, 0], [16, 0], [0, 64]],
        lane_bases=[[2, 0], [4, 0], [0, 1], [0, 2], [0, 4]],
        warp_bases=[[0, 16], [0, 32]],
        block_bases=[],
        shape=[32, 128],
    )
)
# [pixels, quads, channels of a quad]. Threads load quads, and store four pixels of a column.
# `transposed_columns` orders columns such that no two of eight lanes conflict in a bank.
X_LAYOUT: Final = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [0, 0, 2], [2, 0, 0], [4, 0, 0], [16, 0, 0]],
        lane_bases=[[0, 1, 0], [0, 2, 0], [0, 4, 0], [1, 0, 0], [8, 0, 0]],
        warp_bases=[[0, 8, 0], [0, 16, 0]],
        block_bases=[],
        shape=[32, 32, 4],
    )
)
# [output channels, columns]: SUMS with another order of registers.
PARTIALS: Final = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [0, 32], [0, 64], [8, 0], [64, 0]],
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[128, 128],
    )
)


@gluon.jit
def transposed_dy(rows) -> gl.tensor:
    """dy [channels, pixels]. Each eight pixels have the order 0 2 4 6 1 3 5 7."""
    return rows.reshape([4, 4, 2, 128]).permute([3, 0, 2, 1]).reshape([128, 32])


@gluon.jit
def transposed_columns(x) -> gl.tensor:
    """x [columns, pixels], with the order of pixels of `transposed_dy`.

    Each 32 columns have the order 0 4 ... 28, 1 5 ... 29, 2 6 ... 30, 3 7 ... 31.
    """
    parts = x.reshape([4, 4, 2, 4, 8, 4]).permute([3, 5, 4, 0, 2, 1])
    return parts.reshape([128, 32])


@gluon.jit
def load_sum(ptrs, mask) -> gl.tensor:
    """The running sum of earlier launches, with columns in the order of `transposed_columns`."""
    acc = gl.load(ptrs, mask=mask, other=0.0)
    acc = acc.reshape([128, 4, 8, 4]).permute([0, 1, 3, 2]).reshape([128, 128])
    return gl.convert_layout(acc, SUMS)


@gluon.jit
def store_sum(ptrs, acc, mask) -> None:
    """Store a running sum, with columns in the order of channels."""
    acc = acc.reshape([128, 4, 4, 8]).permute([0, 1, 3, 2]).reshape([128, 128])
    gl.store(ptrs, gl.convert_layout(acc, PARTIALS), mask=mask)
