"""Gradient of a convolution's weight over NHWC maps: launchers and a reference.

The gradient is in running sums. A launch adds its samples to the sums of earlier launches, split by
split in the order of samples. The bits do not depend on where launches cut the batch.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor, contiguous_format
from torch.nn.grad import conv2d_weight
from triton import cdiv
from triton.tools.tensor_descriptor import TensorDescriptor

from ...language.channel_ranges import (
    flat_rows,
    flat_samples,
    merged_pixels,
    pitch_of,
    with_channels,
)
from ...language.cost import costing
from ...language.overrides import configured
from ...reduce.partials import sum_partials
from .. import cost
from ..bands import in_units
from ..conv2d import rounding
from ..remade import MOST_GATED, Gated, MadeBy, remade_reference, settings_of_maker
from ..row_tiles import rows_read
from ..row_windows import geometry_of
from ..tiles import FEW_CHANNELS, Filter, Pair, Tile, has_descriptors
from .flat import grad_weight_flat_kernel, grad_weight_taps_kernel
from .gather import grad_weight_gather_kernel
from .gluon_launch import last_band, launch_columns, launch_transposed
from .im2col import grad_weight_im2col_kernel
from .per_sample import grad_weight_sample_taps_kernel, grad_weight_samples_kernel
from .row_windows import grad_weight_windows_kernel
from .running_sums import GradWeightPlan
from .shape import GradWeightShape, few_of
from .split_plan import (
    LaunchPlan,
    edge_block,
    filter_of_sums,
    grad_weight_plan,
    is_remaking,
    work_of,
)
from .windows_plan import window_of, windows_box

__all__ = [
    "GradWeightPlan",
    "conv2d_grad_weight",
    "conv2d_grad_weight_reference",
    "grad_weight_plan",
]


@costing(cost.grad_weight)
def conv2d_grad_weight(
    x: Tensor, dy: Tensor, partials: Tensor, *, first: bool,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
    own_rows: int | None = None, splits: range | None = None, made_by: MadeBy | None = None,
    batch: int = 0,
) -> None:  # fmt: skip
    """Add the weight gradient of x and dy to running sums, float32 [splits, K, R, S, C/g].

    `first` starts new sums. x [N, H, W, C] and dy [N, P, Q, K] are aligned to 16 bytes.
    `grad_weight_plan` gives the splits, and where launches may cut a batch. `precision` is "ieee"
    or "tf32", for float32 maps. For a tile of rows x also holds neighbour rows of the `own_rows`
    rows that dy belongs to, and the plan is that of `own_rows` rows. `splits` is one of the plan's
    ranges: `partials` are then the sums of these splits alone, to the same bits. `batch` is what
    `grad_weight_plan` was given.

    Without `splits` a launch of the whole batch may have fewer sums than the plan has splits, one
    more than a multiple of the plan's `step`. The last splits have sums of their own, behind the
    sum of all splits before. In index order they add up to the same bits.

    With `made_by` the gradient is that of the map that it makes of x, where `remakes_maps`.
    """
    if partials.numel() == 0 or x.shape[0] == 0:
        return
    _, out_channels, size_r, size_s, in_channels = partials.shape
    taps = filter_of_sums(
        (out_channels, in_channels, size_r, size_s), stride, padding, dilation, groups, x.dtype,
        precision,
    )  # fmt: skip
    pitches = pitch_of(x), pitch_of(dy)
    maps = _sides(x), _sides(dy), taps, x.dtype, precision, pitches
    layer = GradWeightShape(*maps, few_of(batch))
    work = work_of(replace(layer, in_sides=(own_rows or x.shape[1], x.shape[2])))
    tile = configured("grad_weight", work.tile, lambda: layer.facts | {"kernel": work.kernel})
    plan = GradWeightPlan(work.splits + work.edges, work.unit, work.tile.parts)
    if splits is None and len(partials) < plan.splits:
        settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        launch = partial(
            conv2d_grad_weight, x, dy, first=first, **settings, precision=precision,
            own_rows=own_rows, made_by=made_by, batch=batch,
        )  # fmt: skip
        _sum_in_ranges(launch, plan, partials)
        return
    splits = splits or range(plan.splits)
    assert partials.shape[0] == len(splits), f"{len(splits)} splits, {partials.shape[0]} sums"
    assert splits.start % work.tile.parts == 0, f"splits from {splits.start} on are no range"
    assert made_by is None or is_remaking(layer, work), f"{work.kernel} makes no maps again"
    made = {} if made_by is None else {"made_by": made_by}
    _LAUNCHES[work.kernel](x, dy, partials, first, layer, replace(work, tile=tile), splits, **made)


# Launches


def _sum_in_ranges(launch: Callable[..., None], plan: GradWeightPlan, partials: Tensor) -> None:
    """Sum one range of splits after the other. The first row gets the sum of all but the last."""
    assert (len(partials) - 1) % plan.step == 0, f"{len(partials)} sums of {plan}"
    total = partials[0].permute(0, 3, 1, 2)
    *earlier, last = plan.ranges(len(partials) - 1)
    for splits in earlier:
        own = partials[1 : 1 + len(splits)]
        launch(partials=own, splits=splits)
        sum_partials(own, total, first=splits.start == 0)
    launch(partials=partials[1:], splits=last)


def _sides(maps: Tensor) -> Pair:
    return maps.shape[1], maps.shape[2]


def _sums(partials: Tensor, tile: Tile, taps: Filter) -> TensorDescriptor | Tensor:
    """What `store_sum` takes."""
    if taps.sums_by_pointers:
        return partials
    by_tap = partials.flatten(2, 3)
    if taps.by_group:
        by_group = by_tap.unflatten(1, (-1, taps.widths[1]))
        block = [1, 1, tile.out_channels, 1, tile.in_channels]
        return TensorDescriptor.from_tensor(by_group, block)
    return TensorDescriptor.from_tensor(by_tap, [1, tile.out_channels, 1, tile.in_channels])


def _swaps(tile: Tile, dtype: torch.dtype, made_by: MadeBy | None = None) -> bool:
    """Whether products are of x by dy: the second operand is the wider one.

    In bfloat16 the first has at least 64 channels, if one has, as Hopper's products of warpgroups.
    An x that is made again is the first there where it has as many: that is read from registers.
    """
    if made_by is not None and tile.in_channels >= 64 and dtype == torch.bfloat16:
        return True
    dy_is_wider = tile.out_channels > tile.in_channels
    narrow = min(tile.out_channels, tile.in_channels) < 64
    return dy_is_wider is not (narrow and dtype == torch.bfloat16)


def _bands(taps: Filter) -> tuple[int, ...] | None:
    """What `first_channel` and `places_of` take."""
    if not taps.has_bands and not taps.sums_by_pointers:
        return None
    return (*taps.widths, last_band(taps), taps.channels[1], taps.num_taps)


def _launch_flat(
    x: Tensor, dy: Tensor, partials: Tensor, first: bool, layer: GradWeightShape, work: LaunchPlan,
    splits: range, made_by: MadeBy | None = None,
) -> None:  # fmt: skip
    tile, taps = work.tile, layer.taps
    num_samples, (height, width) = x.shape[0], layer.out_sides
    edge = edge_block(layer, tile)
    maker = settings_of_maker(made_by) if work.kernel == "flat" else {}
    kernel = grad_weight_flat_kernel if work.kernel == "flat" else grad_weight_taps_kernel
    kernel[(work.programs * len(splits),)](
        TensorDescriptor.from_tensor(x.flatten(1, 2), [1, tile.pixels, tile.in_channels]),
        TensorDescriptor.from_tensor(dy.flatten(1, 2), [1, tile.pixels, tile.out_channels]),
        TensorDescriptor.from_tensor(flat_rows(x), [1, edge, tile.in_channels]),
        TensorDescriptor.from_tensor(flat_rows(dy), [1, edge, tile.out_channels]),
        _sums(partials, tile, taps), _bands(taps),
        num_samples, height, width, taps.in_channels, taps.channels[1],
        pitch_of(x), pitch_of(dy), work.unit, work.splits, work.edges,
        splits.start, *taps.padding, *taps.dilation,
        **maker, FIRST=first, R=taps.size[0], S=taps.size[1], PRECISION=layer.precision,
        BLOCK_P=tile.pixels, BLOCK_E=edge, BLOCK_K=tile.out_channels, BLOCK_C=tile.in_channels,
        SWAP=_swaps(tile, layer.dtype, made_by), MERGED=taps.sums_by_pointers,
        BY_GROUP=taps.by_group, STAGES=tile.num_stages, num_warps=tile.num_warps,
    )  # fmt: skip


def _launch_per_sample(
    x: Tensor, dy: Tensor, partials: Tensor, first: bool, layer: GradWeightShape, work: LaunchPlan,
    splits: range, made_by: MadeBy | None = None,
) -> None:  # fmt: skip
    tile, taps = work.tile, layer.taps
    programs, of_gates = work.programs, isinstance(made_by, Gated) and x.dtype == torch.float32
    if of_gates and tile.in_channels > MOST_GATED:
        blocks = [cdiv(taps.in_channels, each) for each in (tile.in_channels, MOST_GATED)]
        tile, programs = replace(tile, in_channels=MOST_GATED), programs // blocks[0] * blocks[1]
    kernel, maker = grad_weight_samples_kernel, {"cut": work.cut} | settings_of_maker(made_by)
    source, block = flat_samples(x, work.cut), [tile.pixels, tile.in_channels]
    sides = (*layer.in_sides, *layer.out_sides)
    if work.cut > 1:
        sides = (1, layer.out_pixels // work.cut) * 2
    if work.kernel == "sample_taps":
        kernel, maker = grad_weight_sample_taps_kernel, {}
        source, block = x, [tile.pixels, 1, 1, tile.in_channels]
    kernel[(programs * len(splits),)](
        TensorDescriptor.from_tensor(source, block),
        TensorDescriptor.from_tensor(flat_samples(dy, work.cut), [tile.pixels, tile.out_channels]),
        _sums(partials, tile, taps), _bands(taps), x.shape[0] * work.cut, *sides,
        taps.in_channels, taps.channels[1], pitch_of(x), pitch_of(dy), work.splits,
        splits.start, *taps.padding, *taps.dilation,
        **maker, **taps.constants(), FIRST=first, PRECISION=layer.precision,
        BLOCK_N=tile.pixels, BLOCK_K=tile.out_channels, BLOCK_C=tile.in_channels,
        SWAP=_swaps(tile, layer.dtype, made_by), MERGED=taps.sums_by_pointers,
        BY_GROUP=taps.by_group, STAGES=tile.num_stages, num_warps=tile.num_warps,
    )  # fmt: skip


def _launch_windows(
    x: Tensor, dy: Tensor, partials: Tensor, first: bool, layer: GradWeightShape, work: LaunchPlan,
    splits: range,
) -> None:  # fmt: skip
    own, layer = layer.taps, layer.with_padding
    tile, taps = work.tile, layer.taps
    x, dy = (with_channels(*each) for each in zip((x, dy), taps.channels, strict=True))
    outputs, box, window = tile.parts, windows_box(layer, tile), window_of(layer, tile)
    grouped = merged_pixels(dy, outputs)
    is_box = grouped is not None and has_descriptors(grouped)
    if is_box:
        gradient = TensorDescriptor.from_tensor(grouped, [*box, tile.out_channels])
    grad_weight_windows_kernel[(work.programs * (len(splits) // outputs),)](
        x, gradient if is_box else dy, partials, geometry_of(x, taps, window), int(first),
        x.shape[0], dy.shape[1], dy.shape[2] // outputs,
        work.unit, work.splits // outputs, splits.start // outputs,
        **window.constants(taps), OUT_C=taps.out_channels,
        OWN_C=own.in_channels, OWN_OUT_C=own.out_channels, PITCH=pitch_of(x), DY_PITCH=pitch_of(dy),
        DY_IS_BOX=is_box, SWAP=_swaps(tile, layer.dtype),
        BLOCK_N=box[0], BLOCK_H=box[1], BLOCK_W=box[2],
        BLOCK_K=tile.out_channels, BLOCK_E=tile.in_channels,
        STAGES=tile.num_stages, num_warps=tile.num_warps,
    )  # fmt: skip


def _launch_gather(
    x: Tensor, dy: Tensor, partials: Tensor, first: bool, layer: GradWeightShape, work: LaunchPlan,
    splits: range,
) -> None:  # fmt: skip
    tile, taps = work.tile, layer.taps
    align, sizes = in_units(taps, pitch_of(x), pitch_of(dy))
    in_c, out_c, in_channels, channels, *pitches = sizes
    grad_weight_gather_kernel[(work.programs * len(splits),)](
        x, dy, partials, _bands(taps) if taps.has_bands else None, int(first),
        x.shape[0], *layer.in_sides, *layer.out_sides,
        in_c, out_c, in_channels, channels, taps.blocks, *taps.padding, *taps.dilation,
        *pitches, work.unit, work.splits, splits.start,
        **taps.constants(), ALIGN=align, FLATTEN=taps.in_channels < FEW_CHANNELS,
        PRECISION=layer.precision,
        BLOCK_P=tile.pixels, BLOCK_K=tile.out_channels, BLOCK_C=tile.in_channels,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def _launch_im2col(
    x: Tensor, dy: Tensor, partials: Tensor, first: bool, layer: GradWeightShape, work: LaunchPlan,
    splits: range,
) -> None:  # fmt: skip
    tile, taps = work.tile, layer.taps
    grad_weight_im2col_kernel[(work.programs * len(splits),)](
        x, TensorDescriptor.from_tensor(dy.flatten(1, 2), [1, tile.pixels, tile.out_channels]),
        partials, x.shape[0], *layer.in_sides, *layer.out_sides, taps.out_channels,
        work.unit, work.splits, splits.start, *taps.padding, *taps.dilation,
        **taps.constants(), C=taps.in_channels, PITCH=pitch_of(x), FIRST=first,
        PRECISION=layer.precision,
        BLOCK_P=tile.pixels, BLOCK_K=tile.out_channels, BLOCK_E=tile.in_channels,
        STAGES=tile.num_stages, num_warps=tile.num_warps,
    )  # fmt: skip


Launch = Callable[..., None]
_LAUNCHES: Final[dict[str, Launch]] = {
    "windows": _launch_windows,
    "transposed": launch_transposed,
    "columns": launch_columns,
    "flat": _launch_flat,
    "taps": _launch_flat,
    "per_sample": _launch_per_sample,
    "sample_taps": _launch_per_sample,
    "im2col": _launch_im2col,
    "gather": _launch_gather,
}


# References


def conv2d_grad_weight_reference(
    x: Tensor, dy: Tensor, partials: Tensor, *, first: bool,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
    own_rows: int | None = None, splits: range | None = None, made_by: MadeBy | None = None,
    batch: int = 0,
) -> None:  # fmt: skip
    """Computes `conv2d_grad_weight` in float32. All splits but the first hold zeros."""
    if first:
        partials.zero_()
    if splits and splits.start > 0:
        return
    size = [partials.shape[axis] for axis in (1, 4, 2, 3)]
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    plan = grad_weight_plan(
        (own_rows or x.shape[1], x.shape[2]), _sides(dy), (size[0], size[1], size[2], size[3]),
        **geometry, dtype=x.dtype, precision=precision,
        pitches=(pitch_of(x), pitch_of(dy)), batch=batch,
    )  # fmt: skip
    x = remade_reference(x, made_by, precision)
    x, geometry["padding"] = rows_read(x, dy.shape[1], size[2], stride, padding, dilation)
    with rounding(precision):
        for samples, grad in zip(x.split(plan.unit), dy.split(plan.unit), strict=True):
            operands = (part.float().permute(0, 3, 1, 2) for part in (samples, grad))
            if size[2:] == [1, 1]:
                # With channels last oneDNN writes past its workspace. A clone has channels first;
                # .contiguous() leaves the strides of a single channel as they are.
                operands = (part.clone(memory_format=contiguous_format) for part in operands)
            found = conv2d_weight(next(operands), size, next(operands), **geometry)
            partials[0] += found.permute(0, 2, 3, 1)
