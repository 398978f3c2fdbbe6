"""Launches of the convolution kernels: tiles, boxes and descriptors from a layer's sizes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import gcd, prod
from typing import Any, Final

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..codec.sign_bits import WORD, words_of
from ..language.channel_ranges import is_range, pitch_of, split_even_odd
from ..language.device import num_sms
from ..language.gluon import swizzled
from ..language.overrides import configured
from .bands import in_units
from .batch_stats import MomentCells
from .grad_bias import side_of, sum_cells
from .im2col import conv_im2col_kernel
from .pointer import conv_kernel
from .remade import MadeBy, settings_of_maker, stages_beside
from .tiles import (
    FEW_CHANNELS,
    ROWS_PACKED_STAGES,
    Box,
    Filter,
    Pair,
    Tile,
    box_of,
    box_tile,
    im2col_tile,
    part_of,
    pointer_tile,
    shares_rows,
    specialized_tile,
    suits_specialized,
)
from .tma import conv_box_kernel
from .warp_specialized import conv_specialized_kernel

NO_MAKER: Final = settings_of_maker(None) | {"sample_pixels": 1, "made_c": 0}


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What is done with the sums before they are stored."""

    bias: Tensor | None = None
    # The output is 0 where the mask, a map or its sign bits, is not above zero.
    mask: Tensor | None = None
    relu: bool = False
    codes: Tensor | None = None  # argmax codes of windows 2x2, whose maxima are stored
    sums: Tensor | None = None  # sums of the cells of the stored map
    moments: Tensor | None = None  # moments of `cells` of the stored map
    cells: MomentCells | None = None
    out_precision: str = "ieee"  # precision of the products that read a float32 output

    @property
    def bits(self) -> bool:
        """Whether sign bits are the mask."""
        return self.mask is not None and self.mask.dtype == torch.uint8

    def mask_in(self, block: list[int], taps: Filter, *, gluon: bool) -> Any:
        """The mask for kernels that store such blocks: words of sign bits, or a descriptor."""
        if self.mask is None or self.bits:
            return None if self.mask is None else self._words(taps)
        mask = in_groups(self.mask, taps)
        return swizzled(mask, block) if gluon else TensorDescriptor.from_tensor(mask, block)

    def mask_strides(self, taps: Filter) -> tuple[int, ...]:
        """Words of sign bits from a sample, a row and a column to the next; 0 for other masks."""
        return self._words(taps).stride()[:3] if self.bits else (0, 0, 0)

    def _words(self, taps: Filter) -> Tensor:
        assert self.mask is not None
        return words_of(self.mask, taps.mask_channels)

    def moments_by(self, box: Box, *, flat: bool = False) -> Tensor | None:
        """The moments if the boxes that a kernel stores are the cells, else None."""
        fits = self.cells is not None and (self.cells.box, self.cells.flat) == (box, flat)
        return self.moments if fits else None


@dataclass(frozen=True, slots=True)
class Weights:
    """A packed filter as a matrix."""

    rows: Tensor  # one row an output channel
    strides: Pair  # elements from one tap of a row to the next, (h, w)


def in_groups(maps: Tensor, taps: Filter) -> Tensor:
    """Maps [N, H, W, K]; [N, H, W, g, K/g] where tiles lie in one group, which they may overrun."""
    return maps.unflatten(3, (-1, taps.widths[1])) if taps.by_group else maps


def weights_of(packed: Tensor, first: Pair = (0, 0), step: Pair = (1, 1)) -> Weights:
    """Every `step`-th tap of packed [K, R, S, C] from tap `first` on."""
    _, _, size_s, channels = packed.shape
    begin = (first[0] * size_s + first[1]) * channels
    return Weights(packed.flatten(1)[:, begin:], (step[0] * size_s * channels, step[1] * channels))


def launch_pointer(
    x: Tensor, packed: Tensor, y: Tensor, taps: Filter, up: Pair, epilogue: Epilogue, precision: str
) -> None:
    """Launch the kernel that loads by pointers.

    `up` spreads x out: 1 in a forward pass, the stride of the convolution in a data gradient.
    """
    num_samples, out_h, out_w = _summed_sides(y, epilogue)
    tile = configured(
        "pointer",
        pointer_tile(taps, x.dtype, precision, pooled=epilogue.codes is not None),
        lambda: _facts(y, taps, epilogue) | {"up": up, "precision": precision},
    )
    few = taps.in_channels < FEW_CHANNELS
    pixels = num_samples * triton.cdiv(out_h, up[0]) * triton.cdiv(out_w, up[1])
    grid = (
        triton.cdiv(pixels, tile.pixels) * triton.cdiv(taps.out_channels, tile.out_channels),
        taps.blocks * up[0] * up[1],
    )
    mask_pitch = 0 if epilogue.mask is None else pitch_of(epilogue.mask)
    align, sizes = in_units(taps, pitch_of(x), mask_pitch, pitch_of(y))
    in_c, out_c, in_channels, channels, *pitches = sizes
    conv_kernel[grid](
        x, packed, epilogue.bias, epilogue.mask, y, epilogue.codes,
        num_samples, x.shape[1], x.shape[2], out_h, out_w,
        in_c, out_c, *taps.widths, taps.last_band, in_channels, channels,
        *taps.padding, *taps.dilation, *pitches,
        **taps.constants(), UP_H=up[0], UP_W=up[1],
        STEP_H=up[0] // gcd(up[0], taps.dilation[0]), STEP_W=up[1] // gcd(up[1], taps.dilation[1]),
        **_flags(epilogue), BANDS=taps.reads_bands, ALIGN=align, FLATTEN=few,
        PRECISION=precision, OUT_PRECISION=epilogue.out_precision,
        BLOCK_P=tile.pixels, BLOCK_K=tile.out_channels, BLOCK_C=tile.in_channels,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def launch_box(
    x: Tensor, weights: Weights, y: Tensor, taps: Filter, epilogue: Epilogue, precision: str,
    made_by: MadeBy | None = None,
) -> bool:  # fmt: skip
    """Launch a kernel of boxes of pixels at stride 1, with specialised warps where they suit.

    Returns whether the kernel stores the epilogue's moments, as all functions below do.
    """
    pooled = epilogue.codes is not None
    one_by_one = taps.size == (1, 1) and taps.padding == (0, 0)
    whole = is_range(x) and is_range(y)
    flat = one_by_one and whole and not pooled and epilogue.sums is None
    assert made_by is None or flat, "only pixels in one row are made again"
    maker = NO_MAKER
    if made_by is not None:  # weights may have more channels than x, which are zero
        sizes = {"sample_pixels": x.shape[1] * x.shape[2], "made_c": x.shape[3]}
        maker = settings_of_maker(made_by) | sizes
    if flat:
        mask = None if epilogue.mask is None else _as_row(epilogue.mask)
        x, y, epilogue = _as_row(x), _as_row(y), replace(epilogue, mask=mask)
    tile = specialized_tile(taps, x.dtype)
    box = (1, 1, tile.pixels) if flat else specialized_box(y, taps, epilogue)
    # Masks by bytes of bits spill 720 bytes there, and a mask's form must not choose the kernel.
    in_words = epilogue.mask is None or taps.mask_channels % WORD == 0
    if in_words and suits_specialized(taps, x.dtype, box, pooled=pooled):
        return launch_specialized(x, weights, y, taps, epilogue, box, maker, flat=flat)
    left = _launch_plain_box(x, weights, y, taps, epilogue, precision, maker, flat=flat)
    sum_apart(y, epilogue)
    return left


def specialized_box(y: Tensor, taps: Filter, epilogue: Epilogue) -> Box:
    """The box of pixels of a tile of specialised warps."""
    pixels = specialized_tile(taps, y.dtype).pixels
    return box_of(*_summed_sides(y, epilogue)[1:], pixels, 1 if epilogue.codes is None else 2)


def _cell_within(stored: list[int], y: Tensor, epilogue: Epilogue) -> int:
    """Side of the cells whose sums the kernel stores: whole cells in stored boxes; 0 for none."""
    cell = 0 if epilogue.sums is None else side_of(y, epilogue.sums)
    whole = cell > 0 and stored[1] % cell == 0 and stored[2] % cell == 0
    return cell if whole else 0


def sum_apart(y: Tensor, epilogue: Epilogue) -> None:
    """Sum the cells of the stored map y by a kernel of its own, if the epilogue has sums."""
    if epilogue.sums is not None:
        sum_cells(y, epilogue.sums)


def _as_row(nhwc: Tensor) -> Tensor:
    """All pixels as one row of one sample."""
    return nhwc.view(1, 1, -1, nhwc.shape[3])


def launch_specialized(
    x: Tensor, weights: Weights, y: Tensor, taps: Filter, epilogue: Epilogue, box: Box,
    maker: Mapping[str, Any] = NO_MAKER, *, flat: bool = False,
) -> bool:  # fmt: skip
    """Launch warp_specialized.py. At stride 2 both sides of x [N, H, W, C] are even."""
    shared = shares_rows(taps, box)
    tile = configured(
        "specialized",
        specialized_tile(taps, x.dtype, shared=shared),
        lambda: _facts(y, taps, epilogue, flat=flat) | {"box": box, "rows": shared},
    )
    stored = _stored_box(box, tile, taps, pooled=epilogue.codes is not None)
    num_samples, height, width = _summed_sides(y, epilogue)
    num_tiles = _num_tiles((num_samples, height, width), box, taps, tile)
    cell, moments = _cell_within(stored, y, epilogue), epilogue.moments_by(box, flat=flat)
    conv_specialized_kernel[(min(num_tiles, num_sms()),)](
        *_loading(x, box, taps, tile, shared=shared),
        swizzled(weights.rows, [tile.out_channels, tile.in_channels]),
        epilogue.bias,
        epilogue.mask_in(stored, taps, gluon=True),
        swizzled(in_groups(y, taps), stored),
        epilogue.codes, epilogue.sums, moments,
        num_samples, height, width, taps.in_channels, taps.channels[1], *taps.size,
        *taps.padding, *taps.dilation, *weights.strides, *epilogue.mask_strides(taps),
        *taps.widths, taps.last_band, **maker,
        R=taps.size[0] if taps.by_group else 0, **_flags(epilogue), BANDS=taps.has_bands,
        CHANNELS=taps.summed_channels if taps.by_group else 0,
        ROUND=y.dtype == torch.float32 and epilogue.out_precision == "tf32",
        CELL=cell, MOMENTS=moments is not None, ROWS=taps.size[0] if shared else 1,
        BLOCK_N=box[0], BLOCK_H=box[1], BLOCK_W=box[2], BLOCK_K=tile.out_channels,
        STAGES=tile.num_stages, PACKED_STAGES=ROWS_PACKED_STAGES if shared else tile.num_stages,
        num_warps=tile.num_warps,
    )  # fmt: skip
    if cell == 0:
        sum_apart(y, epilogue)
    return moments is not None


def _loading(x: Tensor, box: Box, taps: Filter, tile: Tile, *, shared: bool) -> tuple[Any, Any]:
    """The descriptors that load boxes of x, and rows of an edge or at stride 2 odd columns."""
    if taps.stride == (2, 2):
        even, odd = split_even_odd(x)
        block = [*box[:2], 1, box[2], tile.in_channels]
        return swizzled(even, block), swizzled(odd, block)
    edge = [1, taps.size[0] - 1, box[2], tile.in_channels]
    return swizzled(x, [*box, tile.in_channels]), swizzled(x, edge) if shared else None


def _launch_plain_box(
    x: Tensor, weights: Weights, y: Tensor, taps: Filter, epilogue: Epilogue, precision: str,
    maker: Mapping[str, Any], *, flat: bool,
) -> bool:  # fmt: skip
    pooled = epilogue.codes is not None
    tile = configured(
        "box",
        box_tile(taps, x.dtype, masked=epilogue.mask is not None, pooled=pooled),
        lambda: _facts(y, taps, epilogue, flat=flat) | {"precision": precision},
    )
    num_samples, height, width = _summed_sides(y, epilogue)
    box = (1, 1, tile.pixels) if flat else box_of(height, width, tile.pixels, 2 if pooled else 1)
    stored = _stored_box(box, tile, taps, pooled=pooled)
    moments = epilogue.moments_by(part_of(box, tile.parts), flat=flat)
    num_tiles = _num_tiles((num_samples, height, width), box, taps, tile)
    stages = stages_beside(tile, maker["MAKER"], x.element_size())
    conv_box_kernel[(min(num_tiles, tile.residents * num_sms()),)](
        TensorDescriptor.from_tensor(x, [*box, tile.in_channels]),
        TensorDescriptor.from_tensor(weights.rows, [tile.out_channels, tile.in_channels]),
        epilogue.bias,
        epilogue.mask_in(stored, taps, gluon=False),
        TensorDescriptor.from_tensor(in_groups(y, taps), stored),
        epilogue.codes, moments,
        num_samples, height, width, taps.in_channels, taps.channels[1], *taps.size,
        *taps.padding, *taps.dilation, *weights.strides, *epilogue.mask_strides(taps),
        *taps.widths, taps.last_band, **maker,
        **_flags(epilogue), BANDS=taps.has_bands,
        PRECISION=precision, OUT_PRECISION=epilogue.out_precision,
        BLOCK_N=box[0], BLOCK_H=box[1], BLOCK_W=box[2],
        BLOCK_K=tile.out_channels, BLOCK_C=tile.in_channels,
        PARTS=tile.parts, STAGES=stages, FLATTEN=tile.flatten, num_warps=tile.num_warps,
    )  # fmt: skip
    return moments is not None


def launch_im2col(
    x: Tensor, packed: Tensor, y: Tensor, taps: Filter, epilogue: Epilogue, precision: str
) -> bool:
    """Launch the kernel for few channels, whose products have taps and channels as one axis."""
    pooled = epilogue.codes is not None
    num_samples, height, width = _summed_sides(y, epilogue)
    tile = configured(
        "im2col",
        im2col_tile(taps),
        lambda: _facts(y, taps, epilogue) | {"precision": precision},
    )
    box = box_of(height, width, tile.pixels, 2 if pooled else 1)
    moments = epilogue.moments_by(part_of(box, tile.parts))
    conv_im2col_kernel[(_num_tiles((num_samples, height, width), box, taps, tile),)](
        x, packed, epilogue.bias,
        TensorDescriptor.from_tensor(y, _stored_box(box, tile, taps, pooled=pooled)),
        epilogue.codes, moments,
        num_samples, x.shape[1], x.shape[2], height, width, taps.out_channels,
        *taps.padding, *taps.dilation,
        **taps.constants(), IN_C=taps.in_channels, PITCH=pitch_of(x),
        HAS_BIAS=epilogue.bias is not None, RELU=epilogue.relu, POOL=pooled,
        PRECISION=precision, OUT_PRECISION=epilogue.out_precision,
        BLOCK_N=box[0], BLOCK_H=box[1], BLOCK_W=box[2],
        BLOCK_K=tile.out_channels, BLOCK_E=tile.in_channels, PARTS=tile.parts,
        num_warps=tile.num_warps,
    )  # fmt: skip
    return moments is not None


def _num_tiles(sides: tuple[int, int, int], box: Box, taps: Filter, tile: Tile) -> int:
    boxes = prod(triton.cdiv(side, step) for side, step in zip(sides, box, strict=True))
    groups, channels = (taps.blocks, taps.widths[1]) if taps.by_group else (1, taps.channels[1])
    return boxes * groups * triton.cdiv(channels, tile.out_channels)


def _stored_box(box: Box, tile: Tile, taps: Filter, *, pooled: bool) -> list[int]:
    """The block in which a box of sums is stored, with the axes of `in_groups`."""
    sides = (box[0], box[1] // 2, box[2] // 2) if pooled else part_of(box, tile.parts)
    return [*sides, *([1] if taps.by_group else []), tile.out_channels]


def _summed_sides(y: Tensor, epilogue: Epilogue) -> tuple[int, int, int]:
    """Samples, rows and columns of the sums from which y is computed."""
    scale = 1 if epilogue.codes is None else 2
    return y.shape[0], scale * y.shape[1], scale * y.shape[2]


def _facts(y: Tensor, taps: Filter, epilogue: Epilogue, *, flat: bool = False) -> dict[str, Any]:
    """The sizes and types that a configuration is for, without the number of samples."""
    return asdict(taps) | {
        "dtype": y.dtype,
        "sides": "flat" if flat else tuple(y.shape[1:3]),
        "masked": epilogue.mask is not None,
        "pooled": epilogue.codes is not None,
        "summed": epilogue.sums is not None or epilogue.moments is not None,
    }


def _flags(epilogue: Epilogue) -> dict[str, bool]:
    return {
        "HAS_BIAS": epilogue.bias is not None,
        "HAS_MASK": epilogue.mask is not None,
        "BITS": epilogue.bits,
        "RELU": epilogue.relu,
        "POOL": epilogue.codes is not None,
    }
