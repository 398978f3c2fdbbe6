"""Plans of weight gradients: the kernel, its tile, and the splits of the sum.

A plan depends on a layer's sizes, dtype and precision, on the GPU, and on the samples of a batch of
few. A split sums the same pixels of the same samples wherever launches cut a batch. Times in
this file are of VGG-16's layers with 256 samples, "in -> out channels @height" (H200, 2026-11).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from triton import cdiv

from ...language.channel_ranges import is_aligned
from ...language.device import capability, holds_large_tiles, num_sms, shared_nbytes
from ...language.gluon import available
from ..bands import band_channels, filter_of
from ..tiles import (
    FEW_CHANNELS,
    STEP_NBYTES,
    TILE_CHANNELS,
    Filter,
    Pair,
    Tile,
    block_of,
    fitting_stages,
    step_channels,
)
from .columns_plan import COLUMNS_TILE, columns_programs, columns_unit, suits_columns
from .few_samples import filled_steps
from .running_sums import GradWeightPlan
from .shape import GradWeightShape, few_of
from .splits import splits_of
from .transposed_plan import suits_transposing, transposed_tile, transposed_unit
from .windows_plan import suits_windows, windows_programs, windows_tile, windows_unit

Kernel = Literal[
    "windows", "transposed", "columns", "flat", "taps", "per_sample", "sample_taps", "im2col",
    "gather",
]  # fmt: skip

SMALL_MAP: Final = 28 * 28  # output pixels up to which a step has one pixel of many samples
# The same of some layers in groups. 72->72 in 3 @112 at stride 2 takes 0.83 ms, and 3.33 ms by
# gather.py; @56 it takes 0.78 ms, and 1.16 ms by flat.py. 128->128 in 32 @56 takes 0.30 ms, and
# 0.25 ms by flat.py (H200, 2026-11).
GROUPS_MAP: Final = 56 * 56
UNIT_STEPS: Final = 512  # steps of a unit, at least, where UNIT_SAMPLES allow
# UNIT_STEPS of the kernel that transposes x: 64->64 @224 takes 3.83 ms, with 512 steps 3.98 ms.
TRANSPOSED_UNIT_STEPS: Final = 2048
UNIT_SAMPLES: Final = 64  # samples of a unit, at most


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How a layer's weight gradient is summed."""

    kernel: Kernel
    tile: Tile
    programs: int  # of one split
    unit: int  # samples
    splits: int
    edges: int  # more splits, which sum wrapped products
    cut: int  # parts of a sample that count as samples


def grad_weight_plan(
    in_sides: Pair, out_sides: Pair, weight_shape: tuple[int, int, int, int], *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, dtype: torch.dtype, precision: str,
    pitches: Pair | None = None, batch: int = 0,
) -> GradWeightPlan:  # fmt: skip
    """The plan for maps x and dy of sides (h, w) and a weight of shape [K, C/g, R, S].

    `pitches` are the channels from one pixel to the next of x and dy, by default their own. `batch`
    are the samples of the whole batch; by default the plan is one for any.
    """
    taps = filter_of_sums(weight_shape, stride, padding, dilation, groups, dtype, precision)
    maps = in_sides, out_sides, taps, dtype, precision, pitches or taps.channels
    work = work_of(GradWeightShape(*maps, few_of(batch)))
    return GradWeightPlan(work.splits + work.edges, work.unit, work.tile.parts)


def remakes_maps(
    in_sides: Pair, out_sides: Pair, weight_shape: tuple[int, int, int, int], *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, dtype: torch.dtype, precision: str,
    pitches: Pair,
) -> bool:  # fmt: skip
    """Whether the weight gradient of a layer, as `grad_weight_plan` has it, can make x again.

    x is then loaded at its pitch.
    """
    taps = filter_of_sums(weight_shape, stride, padding, dilation, groups, dtype, precision)
    layer = GradWeightShape(in_sides, out_sides, taps, dtype, precision, pitches)
    return is_remaking(layer, work_of(layer))


def is_remaking(layer: GradWeightShape, work: LaunchPlan) -> bool:
    """Whether the launches of a plan can make x again: of pointwise convolutions."""
    if layer.taps.has_bands or layer.taps.sums_by_pointers:
        return False
    by_cores = layer.dtype == torch.bfloat16 or layer.precision == "tf32"
    return by_cores and layer.is_pointwise and work.kernel in ("flat", "per_sample")


def filter_of_sums(
    weight_shape: tuple[int, int, int, int], stride: Pair, padding: Pair, dilation: Pair,
    groups: int, dtype: torch.dtype, precision: str,
) -> Filter:  # fmt: skip
    """The filter whose products make the gradient of a weight of this shape, [K, C/g, R, S].

    Blocks of output channels join groups as in the forward pass. Of their products only those
    within a group are stored.
    """
    out_channels, in_width, *size = weight_shape
    channels = in_width * groups, out_channels
    band = band_channels(channels, groups, dtype, precision)
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    return filter_of(channels, groups, band, size=(size[0], size[1]), **geometry)


def work_of(layer: GradWeightShape) -> LaunchPlan:
    """How a layer's weight gradient is summed on the current GPU."""
    return _work_of(layer, capability(), num_sms(), shared_nbytes(), available())


@functools.cache
def _work_of(
    layer: GradWeightShape, capability: Pair, sms: int, shared: int, has_gluon: bool
) -> LaunchPlan:
    """`work_of` with the properties of the GPU as arguments."""
    kernel = _kernel_of(layer, capability, has_gluon)
    tile = _TILES.get(kernel, _tile)(layer)
    sums, cut = 3 if kernel in ("taps", "sample_taps", "transposed") else 1, 1
    if kernel == "windows":
        unit, steps = windows_unit(layer, tile, UNIT_STEPS)
    elif kernel == "transposed":
        unit, steps = transposed_unit(layer, TRANSPOSED_UNIT_STEPS, UNIT_SAMPLES)
    elif kernel == "columns":
        unit, steps = columns_unit(layer, UNIT_STEPS, UNIT_SAMPLES)
    elif kernel in ("per_sample", "sample_taps"):
        tile, cut = filled_steps(layer, tile, cuts=kernel == "per_sample")
        unit, steps = tile.pixels // cut, layer.out_pixels // cut
    else:
        runs = cdiv(layer.out_pixels, tile.pixels)
        unit = min(_unit_of(runs, UNIT_STEPS), layer.few or UNIT_SAMPLES)
        crosses_samples = kernel == "gather"
        steps = cdiv(unit * layer.out_pixels, tile.pixels) if crosses_samples else unit * runs
    edge = sums * unit * _edge_steps(layer, tile) if kernel in ("flat", "taps") else 0
    if kernel == "windows":
        programs = windows_programs(layer, tile)
    elif kernel == "columns":
        programs = columns_programs(layer)
    else:
        programs = _programs(layer.taps, tile) // sums
    alone = kernel in ("transposed", "columns")
    # the loop of windows of float32 holds a stage less than its loads are ahead
    fewer = 1 if kernel == "windows" and layer.dtype == torch.float32 else 0
    held = replace(tile, num_stages=tile.num_stages - fewer)
    slots = sms * (1 if alone else _residents(held, sums, layer.dtype, shared))
    splits, edges = splits_of(programs, steps, edge, slots, layer)
    return LaunchPlan(kernel, tile, programs, unit, splits * tile.parts, edges, cut)


def _unit_of(amount: int, least: int) -> int:
    """Samples, a power of two, of `amount` steps each that have at least `least` steps."""
    return block_of(cdiv(least, max(1, amount)), 1, UNIT_SAMPLES)


def forget() -> None:
    """Forget all plans, after a test has changed this module's constants."""
    _work_of.cache_clear()


# Which kernel


def _kernel_of(layer: GradWeightShape, capability: Pair, has_gluon: bool) -> Kernel:
    aligned = _suits_descriptors(layer, capability)
    before_hopper = (0, 0) < capability < (9, 0)
    if not before_hopper and suits_windows(layer, aligned=aligned, flat=_is_flat(layer)):
        return "windows"
    if not aligned:
        return "gather"
    if layer.taps.in_channels < FEW_CHANNELS:
        return "im2col"
    if has_gluon and suits_transposing(layer):
        return "transposed"
    if has_gluon and suits_columns(layer):
        return "columns"
    if layer.out_pixels <= (GROUPS_MAP if _has_many_loads(layer) else SMALL_MAP):
        return "sample_taps" if _shares_samples(layer) else "per_sample"
    if not _is_flat(layer):
        return "gather"
    return "taps" if _shares_taps(layer) else "flat"


def _suits_descriptors(layer: GradWeightShape, capability: Pair) -> bool:
    """Whether TMA can load dy, and x unless it has few channels."""
    if (0, 0) < capability < (9, 0) or not layer.taps.suits_tiles:
        return False
    if layer.dtype == torch.float32 and layer.precision == "ieee":
        return False
    few = layer.taps.in_channels < FEW_CHANNELS
    if few and layer.taps.blocks > 1:
        return False
    maps = zip((layer.in_sides, layer.out_sides), layer.taps.channels, layer.pitches, strict=True)
    x_aligned, dy_aligned = (is_aligned(*each, layer.dtype.itemsize) for each in maps)
    return dy_aligned and (few or x_aligned)


def _is_flat(layer: GradWeightShape) -> bool:
    """Whether a tap is one offset in the flat map: stride 1, equal sides, shifts under a row."""
    taps = layer.taps
    kept = layer.in_sides == layer.out_sides and taps.stride == (1, 1)
    return kept and taps.dilation[1] * (taps.size[1] - 1) // 2 < layer.in_sides[1]


def _has_many_loads(layer: GradWeightShape) -> bool:
    """Whether other kernels load maps often: layers in groups at strides, or of wider bands."""
    wide = layer.taps.in_channels > TILE_CHANNELS and _shares_samples(layer)
    return layer.taps.has_bands and (wide or not _is_flat(layer))


def _shares_taps(layer: GradWeightShape) -> bool:
    """Whether a row of three taps shares loads: few input channels, more output channels."""
    taps = layer.taps
    few = taps.in_channels <= 64 < taps.out_channels and not taps.sums_by_pointers
    return few and taps.size[1] == 3 and layer.dtype == torch.bfloat16


def _shares_samples(layer: GradWeightShape) -> bool:
    """Whether a row of three taps shares the loads of dy in steps of many samples.

    Tiles are of 64x64 channels, in layers in groups.
    """
    tile = _tile(layer)
    narrow = tile.out_channels * tile.in_channels <= TILE_CHANNELS**2
    suits = layer.taps.has_bands and layer.taps.size[1] == 3
    return suits and narrow and layer.dtype == torch.bfloat16


# Tiles


def _tile(layer: GradWeightShape) -> Tile:
    """The tile of the kernels that load by descriptors."""
    taps = layer.taps
    block_k = block_of(taps.out_channels, 16, 128)
    block_c = block_of(taps.in_channels, 16, 128)
    if taps.sums_by_pointers:  # larger tiles have more pointers to sums than registers
        block_c = min(block_c, 64 if layer.dtype == torch.bfloat16 else 32)
    if layer.dtype == torch.float32:
        # Two warps make Triton choose mma.sync: wgmma cannot transpose float32. 256->256 @56 runs
        # at 178 TFLOP/s, and at 41 TFLOP/s with 128x128 by eight warps.
        return Tile(32, min(block_k, 64), block_c, 2, 3)
    if not holds_large_tiles():
        return Tile(64, block_k, block_c, 8 if block_k * block_c > 64 * 64 else 4, 3)
    if taps.out_channels % 256 == 0 and taps.in_channels % 256 == 0:
        return Tile(64, 128, 256, 8, 4)
    if taps.out_channels % 256 == 0 and block_c == 128:
        return Tile(64, 256, 128, 8, 4)
    if block_k * block_c <= 64 * 64 and layer.out_pixels > SMALL_MAP and _is_flat(layer):
        return Tile(128, block_k, block_c, 4, 3)  # 64->64 @224: 1.88 ms, by 64 pixels 2.64 ms
    if block_k == block_c == 128 and layer.out_pixels > SMALL_MAP:
        return Tile(32, 128, 128, 4, 6)  # 128->128 @112: 1.25 ms, by 64 pixels 1.31 ms
    return Tile(64, block_k, block_c, 4, 3)


def _gather_tile(layer: GradWeightShape) -> Tile:
    """The tile of gather.py."""
    taps, dtype = layer.taps, layer.dtype
    few = taps.in_channels < FEW_CHANNELS
    block_k = block_of(taps.out_channels, 16, 128)
    block_c = block_of(taps.num_taps * taps.in_channels if few else taps.in_channels, 16, 128)
    if taps.has_bands:  # more columns have more pointers than registers
        block_c = min(block_c, 32 if few else 64)
    if dtype == torch.float32 and layer.precision == "ieee":
        return Tile(16, min(block_k, 64), min(block_c, 64), 8, 2)
    if dtype == torch.float32:
        block_k = min(block_k, 64)
    num_stages = fitting_stages((block_k + block_c) * STEP_NBYTES, 3)
    return Tile(
        step_channels(dtype), block_k, block_c, 8 if block_k * block_c > 64 * 64 else 4, num_stages
    )


def _im2col_tile(layer: GradWeightShape) -> Tile:
    """The tile of im2col.py."""
    columns = layer.taps.num_taps * layer.taps.in_channels
    block_k, block_c = block_of(layer.taps.out_channels, 16, 64), block_of(columns, 16, 128)
    step = step_channels(layer.dtype)
    if block_c > 64:
        return Tile(step, block_k, block_c, 8, 3)
    return Tile(2 * step, block_k, block_c, 4, 3)  # 3->64 @224: 0.38 ms, by 64 pixels 0.44 ms


_TILES: Final[dict[str, Callable[[GradWeightShape], Tile]]] = {
    "windows": windows_tile,
    "im2col": _im2col_tile,
    "gather": _gather_tile,
    "transposed": transposed_tile,
    "columns": lambda _: COLUMNS_TILE,
}


def edge_block(layer: GradWeightShape, tile: Tile) -> int:
    """Pixels of a step down a map's edge."""
    return block_of(layer.out_sides[0], 16, tile.pixels)


def _edge_steps(layer: GradWeightShape, tile: Tile) -> int:
    """Steps down a map's edge of the tap that wraps most."""
    taps = layer.taps
    wrapped = max(taps.padding[1], (taps.size[1] - 1) * taps.dilation[1] - taps.padding[1])
    return wrapped * cdiv(layer.out_sides[0], edge_block(layer, tile))


def _programs(taps: Filter, tile: Tile) -> int:
    """Programs of one split."""
    if taps.in_channels < FEW_CHANNELS:
        tiles_c = cdiv(taps.num_taps * taps.in_channels, tile.in_channels)
    else:
        tiles_c = taps.num_taps * cdiv(taps.in_channels, tile.in_channels)
    return taps.blocks * tiles_c * cdiv(taps.out_channels, tile.out_channels)


def _residents(tile: Tile, sums: int, dtype: torch.dtype, shared: int) -> int:
    """Programs of `sums` sums of a tile each that a multiprocessor holds at a time."""
    staged = tile.pixels * (tile.out_channels + sums * tile.in_channels) * dtype.itemsize
    registers = 32 * tile.num_warps * 64 + sums * tile.out_channels * tile.in_channels
    return max(1, min(shared // (tile.num_stages * staged + 1024), 65536 // registers))
