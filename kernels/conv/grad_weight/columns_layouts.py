"""Layouts of columns.py: how its warps hold maps, products and running sums in registers."""

from typing import Final

from ...language.gluon import gl

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
# `transposed_x` orders columns such that no two of eight lanes conflict in a bank.
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
