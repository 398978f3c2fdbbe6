"""Launches of the weight-gradient kernels in Gluon, which transpose maps in shared memory."""

from math import prod

from torch import Tensor

from ...language.channel_ranges import pitch_of
from ...language.gluon import swizzled
from ..tiles import Filter
from .columns import grad_weight_columns_kernel
from .columns_plan import QUAD
from .shape import GradWeightShape
from .split_plan import LaunchPlan
from .transposed import grad_weight_transposed_kernel
from .transposed_plan import transposed_row


def last_band(taps: Filter) -> int:
    """The last first channel of a band. A group's own tiles begin with its first channel."""
    return taps.channels[0] if taps.by_group else taps.last_band


def launch_transposed(
    x: Tensor, dy: Tensor, partials: Tensor, first: bool, layer: GradWeightShape, work: LaunchPlan,
    splits: range,
) -> None:  # fmt: skip
    """Launch transposed.py over a range of splits."""
    tile, taps = work.tile, layer.taps
    samples, columns = transposed_row(layer.out_sides[1])
    grad_weight_transposed_kernel[(work.programs * (len(splits) // tile.parts),)](
        swizzled(x, [samples, 1, columns, tile.in_channels]),
        swizzled(dy, [samples, 1, columns, tile.out_channels]),
        partials, int(first), x.shape[0], *layer.out_sides, taps.in_channels, taps.channels[1],
        *taps.widths, last_band(taps),
        work.unit, work.splits // tile.parts, splits.start // tile.parts, *taps.padding,
        S=taps.size[1], BANDS=taps.has_bands, BY_GROUP=taps.by_group,
        X_STAGES=3, DY_STAGES=tile.num_stages, num_warps=tile.num_warps,
    )  # fmt: skip


def _pixels(maps: Tensor) -> Tensor:
    """View of a range as [N * H * W, C]."""
    *sides, channels = maps.shape
    return maps.as_strided((prod(sides), channels), (pitch_of(maps), 1))


def launch_columns(
    x: Tensor, dy: Tensor, partials: Tensor, first: bool, layer: GradWeightShape, work: LaunchPlan,
    splits: range,
) -> None:  # fmt: skip
    """Launch columns.py over a range of splits."""
    tile, taps = work.tile, layer.taps
    grad_weight_columns_kernel[(work.programs * len(splits),)](
        x, swizzled(_pixels(dy), [tile.pixels, tile.out_channels]), partials,
        int(first), *x.shape[:3], *layer.out_sides, taps.in_channels // QUAD, taps.out_channels,
        pitch_of(x) // QUAD, work.unit, work.splits, splits.start, *taps.padding, *taps.dilation,
        **taps.constants(), FLAT=layer.is_pointwise, STAGES=tile.num_stages,
        num_warps=tile.num_warps,
    )  # fmt: skip
