"""Rows that a tile of rows reads, for references: a tile holds neighbour rows at its ends."""

from torch import Tensor
from torch.nn.functional import pad

from .tiles import Pair


def rows_read(
    x: Tensor, rows: int, taps: int, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Tensor, Pair]:
    """x and its padding, such that windows of `taps` rows give `rows` rows.

    A tile of rows holds neighbour rows at one or both ends. Missing rows are padded with zeros.
    """
    reach = dilation[0] * (taps - 1) + 1
    if (x.shape[1] + 2 * padding[0] - reach) // stride[0] + 1 == rows:
        return x, padding
    below = (rows - 1) * stride[0] + reach - padding[0] - x.shape[1]
    return pad(x, (0, 0, 0, 0, padding[0], below)), (0, padding[1])


def rows_spread(
    dy: Tensor, rows: int, taps: int, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Tensor, int]:
    """dy, padded below if needed, and the rows that its spreading gives, at least `rows`."""
    margin = dilation[0] * (taps - 1) + 1 - 2 * padding[0]
    missing = -(-max(0, rows - margin - stride[0] + 1) // stride[0]) + 1 - dy.shape[1]
    dy = pad(dy, (0, 0, 0, 0, 0, missing)) if missing > 0 else dy
    return dy, max(rows, (dy.shape[1] - 1) * stride[0] + margin)
