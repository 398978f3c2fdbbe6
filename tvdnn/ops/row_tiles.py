"""Bands: rows of maps, all maps cut alike from top to bottom, as the samples of a step.

Maps are [N, H, W, C], so a run of a sample's rows is one piece of memory, as a run of samples is. A
network whose samples are cut into B bands is expanded as one of N * B samples H/B rows high: its
buffers, sections, units, launches and sums are those of samples, and whatever goes by pixel (or, as
batch normalization and losses, sums over them) needs no other kernel. Strides and poolings divide
the rows of all bands alike, so that band i of a map is made of band i of the one before.

A window besides reads some rows of the bands above and below: its use has a `halo`, and its launch
finds the sections beside its own resident, wherever they lie. It goes unit by unit, each an image
that has these rows in place of padding (runtime/images.py). So no row is written by two launches or
kept twice, sections stay independent, and residencies of three of them are enough.

What is cut depends on the network, the type and the chunk size alone, never on policy, budget or
launch, and a unit is computed by the same kernel from the same rows wherever launches are cut: so
`keep`, which holds whole maps, gives the same bits.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import gcd, prod
from typing import Any, Final

from ..errors import InputError
from ..graph import DTYPE_NBYTES, Network, Op, Value
from ..kernels.loss.per_element import FUNCTIONS
from ..kernels.pointwise.activation import BY_INPUT, BY_OUTPUT
from ..kernels.pointwise.broadcast import FUNCTIONS as BROADCASTS
from ..kernels.pointwise.unary import FUNCTIONS as UNARY
from .concat_views import WORD

Halo = tuple[int, int]  # rows above and below

NO_HALO: Final[Halo] = (0, 0)
LARGE_CHUNKS: Final = 64  # of a map of one sample, above which samples of batches are cut too
WINDOWS: Final = frozenset({"conv2d", "conv2d_relu", "conv2d_relu_max_pool2d"})
POOLS: Final = frozenset({"max_pool2d", "max_pool2d_codes", "avg_pool2d"})
BY_PIXEL: Final = frozenset(
    {
        *("relu", *BY_OUTPUT, *BY_INPUT, *UNARY, "prelu", *FUNCTIONS),
        *("cross_entropy", "dropout", "scale_channels"),
        *(f"broadcast_{function}" for function in BROADCASTS),
        *("add", "add_multiple", "affine", "multiply", "local_response_norm", "batch_norm"),
        *("batch_norm_relu", "batch_norm_activation", "batch_norm_add", "batch_norm_add_relu"),
        *("concat", "narrow", "shuffle_channels", "straight_through"),
    }
)


def bands_for(network: Network, dtype: str, chunk_size: int) -> int:
    """Into how many bands samples are cut: so many that those of the largest map fit a chunk.

    One where samples are small, or where an op does not go by bands.
    """
    maps = (value.shape[1:] for value in network.values.values() if len(value.shape) == 4)
    largest = max((height * width * channels for height, width, channels in maps), default=0)
    chunks = -(-largest * DTYPE_NBYTES[dtype] // chunk_size)
    if chunks <= (1 if network.batch == 1 else LARGE_CHUNKS):
        return 1
    return min(1 << (chunks - 1).bit_length(), most_bands(network)[0])


def most_bands(network: Network) -> tuple[int, str]:
    """The largest power of two of bands that all ops go by, and the name of an op that sets it."""
    return min((_most_bands(network, op), op.name) for op in network.ops)


def in_bands(network: Network, bands: int) -> Network:
    """The network with a sample for every band.

    Raises InputError, naming an op, where there cannot be so many.
    """
    if bands == 1:
        return network
    most, name = most_bands(network)
    if bands > most or bands & (bands - 1):
        raise InputError(f"maps cannot be cut into {bands} bands of rows: {name} allows {most}")
    values = {name: _cut(value, bands) for name, value in network.values.items()}
    ops = tuple(replace(op, attrs=_cut_sides(op.attrs, bands)) for op in network.ops)
    return replace(network, values=values, ops=ops)


def rows_beside(op: Op, taps: int) -> Halo:
    """Of the input of a convolution with so many rows of taps, what the output's bands read."""
    (stride, _), (padding, _), (dilation, _) = _geometry(op)
    return max(0, padding), max(0, dilation * (taps - 1) + 1 - stride - padding)


def grad_rows_beside(op: Op, taps: int) -> Halo:
    """Of the output's gradient, what the bands of the input's read."""
    (stride, _), (padding, _), (dilation, _) = _geometry(op)
    reach = dilation * (taps - 1)
    return max(0, (reach - padding) // stride), max(0, (padding - 1) // stride + 1)


def _geometry(op: Op) -> tuple[tuple[int, int], ...]:
    return op.attrs["stride"], op.attrs["padding"], op.attrs["dilation"]


def _cut(value: Value, bands: int) -> Value:
    """The value with its rows as samples; what has none, as the loss, as it is."""
    if len(value.shape) < 3:
        return value
    samples, height, *others = value.shape
    return replace(value, shape=(samples * bands, height // bands, *others))


def _cut_sides(attrs: Mapping[str, Any], bands: int) -> Mapping[str, Any]:
    """Settings of a band: the sides of a map that no value holds are of the network's."""
    if "sides" not in attrs:
        return attrs
    height, width = attrs["sides"]
    return {**attrs, "sides": (height // bands, width)}


def _most_bands(network: Network, op: Op) -> int:
    """The largest power of two of bands that the op goes by; 1 where it does by none."""
    heights = [_height(network, name) for name in (*op.inputs, op.output)]
    before, after = heights[0], heights[-1]
    if op.attrs.get("by_row"):  # a parameter has a value for each row of the whole map
        most = 1
    elif op.kind in BY_PIXEL:
        most = before if len({height for height in heights if height}) == 1 else 1
    elif op.kind in WINDOWS:
        most = _most_windows(network, op, before, after)
    elif op.kind == "conv_transpose2d":
        most = _most_windows(network, op, after, before)
    elif op.kind in POOLS:
        most = _most_pooled(op, before, after)
    elif op.kind == "resize":
        most = _most_resized(network, op, before, after)
    elif op.kind == "view":
        same = network.values[op.inputs[0]].shape == network.values[op.output].shape
        most = before if same else 1
    else:
        most = 1
    return max(1, most & -most)


def _height(network: Network, name: str) -> int:
    """Rows of a map or of its targets; 0 of a loss, 1 of what has no rows."""
    shape = network.values[name].shape
    return shape[1] if len(shape) > 2 else int(len(shape) == 2)


def _most_windows(network: Network, op: Op, large: int, small: int) -> int:
    """Of a convolution from rows `large` to `small`; that of a transposed one goes the other way.

    A band has all rows that windows read beside it, and those of its neighbours.
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
    """Loads of 16 bytes in the op's maps: a band has whole ones, so that all of them lie alike."""
    sizes = (prod(network.values[name].shape[1:]) for name in (*op.inputs, op.output))
    return [size // WORD if size % WORD == 0 else 1 for size in sizes]


def _most_pooled(op: Op, before: int, after: int) -> int:
    """Of pooling whose windows tile the map."""
    rows = [op.attrs[name][0] for name in ("kernel", "stride", "padding")]
    dense = op.attrs.get("dilation", (1, 1))[0] == 1
    tiles = rows[0] == rows[1] and rows[2] == 0 and dense and before == rows[0] * after
    return after if tiles else 1


def _most_resized(network: Network, op: Op, before: int, after: int) -> int:
    """Of enlarging by whole factors, but where corners are aligned."""
    whole = after % before == 0 and op.attrs["scales"][0] * (after // before) == 1
    return gcd(before, *_words(network, op)) if whole and op.attrs["mode"] != "corners" else 1


def _power_within(height: int, most: int) -> int:
    """The largest power of two that divides `height` and is at most `most`."""
    return min(height & -height, 1 << max(0, most.bit_length() - 1))
