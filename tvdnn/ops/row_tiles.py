"""Row tiles: rows of maps that stand for samples. All maps are cut alike from top to bottom.

Maps are [N, H, W, C]: a run of a sample's rows is one piece of memory, as a run of samples is. A
network whose samples are cut into B tiles is expanded as a network of N * B samples of H/B rows.
Buffers, sections, units, launches and sums then count tiles as samples. Ops that go by pixel, and
sums over pixels, need no other kernel. Strides and poolings divide the rows of all tiles alike:
tile i of a map is made of tile i of the map before.

A window also reads rows of the tiles above and below. Its use has a `halo`, and its launch finds
the neighbour sections resident. The launch goes unit by unit, each a copy that has these rows in
place of padding. No row is written by two launches or kept twice. Sections stay independent, and
residencies of three of them are enough.

The tiles depend on the network, the type and the chunk size alone, never on policy, budget or
launch. A unit is computed by the same kernel from the same rows wherever launches are cut. `keep`,
which holds whole maps, gives the same bits.
"""

from math import gcd, prod
from typing import Final

from ..graph import Network, Op
from .concat_views import WORD

Halo = tuple[int, int]  # rows above and below

NO_HALO: Final[Halo] = (0, 0)


def rows_beside(op: Op, taps: int) -> Halo:
    """The neighbour rows of its input that a convolution with `taps` rows of taps reads."""
    (stride, _), (padding, _), (dilation, _) = _geometry(op)
    return max(0, padding), max(0, dilation * (taps - 1) + 1 - stride - padding)


def grad_rows_beside(op: Op, taps: int) -> Halo:
    """The neighbour rows of the output's gradient that the input's gradient reads."""
    (stride, _), (padding, _), (dilation, _) = _geometry(op)
    reach = dilation * (taps - 1)
    return max(0, (reach - padding) // stride), max(0, (padding - 1) // stride + 1)


def _geometry(op: Op) -> tuple[tuple[int, int], ...]:
    return op.attrs["stride"], op.attrs["padding"], op.attrs["dilation"]


def tiles_by_pixel(network: Network, op: Op) -> int:
    """The most row tiles of an op that goes by pixel: all rows, if its maps have the same ones."""
    heights = {_height(network, name) for name in (*op.inputs, op.output)} - {0}
    # A parameter may have a value for each row of the whole map.
    whole = len(heights) > 1 or op.attrs.get("by_row")
    return 1 if whole else _height(network, op.inputs[0])


def tiles_of_windows(network: Network, op: Op) -> int:
    """The most row tiles of a convolution."""
    return _tiles_between(network, op, *_heights(network, op))


def tiles_of_transposed(network: Network, op: Op) -> int:
    small, large = _heights(network, op)
    return _tiles_between(network, op, large, small)


def tiles_of_pools(network: Network, op: Op) -> int:
    """The most row tiles of pooling whose windows tile the map."""
    before, after = _heights(network, op)
    rows = [op.attrs[name][0] for name in ("kernel", "stride", "padding")]
    dense = op.attrs.get("dilation", (1, 1))[0] == 1
    tiles = rows[0] == rows[1] and rows[2] == 0 and dense and before == rows[0] * after
    return after if tiles else 1


def tiles_of_resizing(network: Network, op: Op) -> int:
    """The most row tiles of enlarging by whole factors, unless corners are aligned."""
    before, after = _heights(network, op)
    whole = after % before == 0 and op.attrs["scales"][0] * (after // before) == 1
    return gcd(before, *_words(network, op)) if whole and op.attrs["mode"] != "corners" else 1


def tiles_of_view(network: Network, op: Op) -> int:
    same = network.values[op.inputs[0]].shape == network.values[op.output].shape
    return _height(network, op.inputs[0]) if same else 1


def _heights(network: Network, op: Op) -> tuple[int, int]:
    return _height(network, op.inputs[0]), _height(network, op.output)


def _height(network: Network, name: str) -> int:
    """The rows of a map or of its targets: 0 for a loss, 1 where there are none."""
    shape = network.values[name].shape
    return shape[1] if len(shape) > 2 else int(len(shape) == 2)


def _tiles_between(network: Network, op: Op, large: int, small: int) -> int:
    """The most tiles of a convolution from `large` to `small` rows.

    A tile has all rows that its neighbours' windows read.
    """
    taps = (*network.params[op.params[0]].shape[2:], 1)[0]
    stride = op.attrs["stride"][0]
    small = op.attrs["sides"][0] if "sides" in op.attrs else small
    if large != stride * small or ("sides" in op.attrs and small % 2):
        return 1
    most = gcd(small // 2 if "sides" in op.attrs else small, *_words(network, op))
    reads = (large, rows_beside(op, taps)), (small, grad_rows_beside(op, taps))
    return _power_within(most, min(height // max(1, *halo) for height, halo in reads))


def _words(network: Network, op: Op) -> list[int]:
    """The maps' loads of 16 bytes. A tile has whole ones."""
    sizes = (prod(network.values[name].shape[1:]) for name in (*op.inputs, op.output))
    return [size // WORD if size % WORD == 0 else 1 for size in sizes]


def _power_within(height: int, most: int) -> int:
    """The largest power of two that divides `height` and is at most `most`."""
    return min(height & -height, 1 << max(0, most.bit_length() - 1))
