"""Max pooling of NHWC maps, with or without codes of where in its window each maximum lies."""

from math import prod
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from ..codec.argmax import bytes_of_row, channels_a_byte, pack, packed_codes
from ..language import device, map_tiles
from ..language.map_tiles import LOOP_SIZES, Pair, aligned, launch, row, sides, tile_place
from .window_max import is_unclear, nothing_unclear, row_max, unclear_with, window_max

# Rows of outputs of a program whose windows share rows. Windows 3x3 of stride 2 with codes over
# 1024x55x55x64 run at 69% of a copy's speed, with one row at 51% (H200, 2026-11-21).
ROWS: Final = 9
# ROWS of a program by the rule "finite". These windows in float32 take 252 us, by "exact" 341 us
# (H200, 2026-11-21).
QUICK_ROWS: Final = 14
# Tiles by rules. By "pairs", two and four warps spill registers on triton 3.6 (24 channels).
RULE_TILES: Final = {
    "exact": map_tiles.TILE, "finite": map_tiles.OVERLAP_TILE, "pairs": map_tiles.OVERLAP_TILE,
}  # fmt: skip
PROGRAMS: Final = 1024  # programs of a launch, at least, where its maps have that many rows


@triton.jit
def _pool_rows(
    x_ptr, y_ptr, codes_ptr, n, start, stop, w, c,
    height, width, out_height, out_width, x_pitch, y_pitch, channels, tiles_c,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    KEPT: tl.constexpr, A_BYTE: tl.constexpr, RULE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Pool the rows [start, stop). Return NaN where RULE does not know a maximum's tap.

    Of a window the last KEPT rows are the first ones of the next.
    """
    first_w = w * STRIDE_W - PADDING_W
    unclear, rows = nothing_unclear(w, c, RULE), ()
    for i in tl.static_range(KEPT):
        rows += row_max(
            x_ptr, n, start * STRIDE_H - PADDING_H + i * DILATION_H, first_w, c,
            height, width, channels, x_pitch, KERNEL_W, DILATION_W, RULE,
        )  # fmt: skip
    for h in range(start, stop):
        y, tap_of_max, rows = window_max(
            rows, x_ptr, n, h * STRIDE_H - PADDING_H, first_w, c,
            height, width, channels, x_pitch,
            KERNEL_H, KERNEL_W, DILATION_H, DILATION_W, RULE,
        )  # fmt: skip
        ptrs = row(y_ptr, n, h, out_height, out_width, y_pitch) + (w * y_pitch + c)
        inside = (w < out_width) & (c < channels)
        tl.store(ptrs, y.to(y_ptr.dtype.element_ty), mask=inside)
        if A_BYTE > 0:
            unclear = unclear_with(unclear, y, inside, RULE)
            num_bytes = channels // A_BYTE
            place = bytes_of_row(tiles_c, c.shape[1], A_BYTE)
            ptrs = row(codes_ptr, n, h, out_height, out_width, num_bytes) + (w * num_bytes + place)
            mask = (w < out_width) & (place < num_bytes)
            tl.store(ptrs, packed_codes(tap_of_max, A_BYTE), mask=mask)
    return unclear


@triton.jit(do_not_specialize=[*LOOP_SIZES, "blocks_h", "block_h"])
def _max_pool2d_kernel(
    x_ptr, y_ptr, codes_ptr, height, width, out_height, out_width, x_pitch, y_pitch,
    channels, tiles_w, tiles_c, blocks_h, block_h,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    KEPT: tl.constexpr, A_BYTE: tl.constexpr, RULE: tl.constexpr, ALIGN: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A program pools `block_h` rows: one, or more where consecutive windows share KEPT rows.

    A_BYTE is the number of channels whose codes share a byte, or 0 without codes. A program
    by a rule for finite maxima that meets others pools its rows again by the exact rule.
    """
    x_pitch, y_pitch, channels = aligned(x_pitch, y_pitch, channels, ALIGN)
    n, block, w, c = tile_place(tiles_w, tiles_c, blocks_h, BLOCK_W, BLOCK_C)
    start = block * block_h
    stop = tl.minimum(start + block_h, out_height)
    unclear = _pool_rows(
        x_ptr, y_ptr, codes_ptr, n, start, stop, w, c,
        height, width, out_height, out_width, x_pitch, y_pitch, channels, tiles_c,
        KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W,
        KEPT, A_BYTE, RULE,
    )  # fmt: skip
    if RULE != "exact" and A_BYTE > 0:
        met = is_unclear(unclear)
        if met:
            _pool_rows(
                x_ptr, y_ptr, codes_ptr, n, start, stop, w, c,
                height, width, out_height, out_width, x_pitch, y_pitch, channels, tiles_c,
                KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W,
                DILATION_H, DILATION_W, KEPT, A_BYTE, "exact",
            )  # fmt: skip


def rows_a_program(rows: int, samples: int, most: int) -> int:
    """Rows of a program, at most `most`: fewer where a launch would have less than PROGRAMS."""
    return max(min(most, samples * rows // PROGRAMS), 1)


def rule_of(x: Tensor, kernel: Pair, *, shared: bool) -> str:
    """How the taps of maxima of map x are found; `shared`: windows share their end rows."""
    if x.dtype == torch.bfloat16 and prod(kernel) > 1 and device.compares_pairs():
        return "pairs"
    return "finite" if shared and x.dtype == torch.float32 else "exact"


def shared_rows(*, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> int:
    """The last rows of taps of a window that are the first ones of the next.

    Windows whose loop is not unrolled keep the maxima of one row at most.
    """
    step, between = divmod(stride[0], dilation[0])
    rows = max(kernel[0] - step, 0) if between == 0 else 0
    return rows if prod(kernel) <= map_tiles.UNROLLED_TAPS or rows == 1 else 0


def _pool(x: Tensor, y: Tensor, codes: Tensor | None, a_byte: int, **window: Pair) -> None:
    samples, out_height, out_width, channels = y.shape
    kept = shared_rows(**window)
    rule = "exact" if codes is None else rule_of(x, window["kernel"], shared=kept > 0)
    most = QUICK_ROWS if rule == "finite" else ROWS if kept else 1
    block_h = rows_a_program(out_height, samples, most)
    blocks_h = triton.cdiv(out_height, block_h)
    launch(
        _max_pool2d_kernel, (x, y, codes, *sides(x, y)), samples * blocks_h, out_width, channels,
        RULE_TILES[rule], **map_tiles.by_side(**window), blocks_h=blocks_h, block_h=block_h,
        KEPT=max(kept, 1), A_BYTE=a_byte, RULE=rule, ALIGN=map_tiles.alignment(x, y),
    )  # fmt: skip


def max_pool2d(
    x: Tensor, y: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    """y [N, OH, OW, C] = the largest value of each window of x [N, H, W, C]. NaN is the largest.

    Pairs are (h, w). Both maps may be channel ranges. Windows are clipped at the edges of x. The
    sides of y may be those of torch's floor mode or ceil mode.
    """
    _pool(x, y, None, 0, kernel=kernel, stride=stride, padding=padding, dilation=dilation)


def max_pool2d_codes(
    x: Tensor, y: Tensor, codes: Tensor, *,
    kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
) -> None:  # fmt: skip
    """`max_pool2d` that also writes argmax codes, uint8 [N, OH, OW, C // `channels_a_byte`].

    Windows have at most 16 taps. C is a multiple of the channels that share a byte.
    """
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    _pool(x, y, codes, channels_a_byte(kernel), **window)


def extent_of(kernel: Pair, dilation: Pair) -> Pair:
    """Rows and columns that a dilated window spans."""
    return (dilation[0] * (kernel[0] - 1) + 1, dilation[1] * (kernel[1] - 1) + 1)


def pool_of(x: Tensor, y: Tensor, **window: Pair) -> tuple[Tensor, Tensor]:
    """torch's maxima of the windows, float32, and their int64 indices in a map: [N, C, OH, OW]."""
    kernel, stride, padding, dilation = window.values()
    ceil = map_tiles.any_ceil(x, y, extent_of(kernel, dilation), stride, padding)
    return functional.max_pool2d(
        map_tiles.nchw(x), kernel, stride, padding, dilation, ceil, return_indices=True
    )


def first_places(
    out_sides: tuple[int, ...], device: torch.device, stride: Pair, padding: Pair
) -> Tensor:
    """Row and column at which each window starts, int64 [2, OH, OW]; negative in the padding."""
    rows, columns = (
        torch.arange(size, device=device) * step - before
        for size, step, before in zip(out_sides, stride, padding, strict=True)
    )
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"))


def max_pool2d_reference(
    x: Tensor, y: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    """Computes `max_pool2d` in torch."""
    maxima, _ = pool_of(x, y, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    y.copy_(maxima.permute(0, 2, 3, 1))


def max_pool2d_codes_reference(
    x: Tensor, y: Tensor, codes: Tensor, *,
    kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
) -> None:  # fmt: skip
    """Computes `max_pool2d_codes` in torch."""
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    maxima, places = pool_of(x, y, **window)
    y.copy_(maxima.permute(0, 2, 3, 1))
    first_h, first_w = first_places(y.shape[1:3], y.device, stride, padding)
    tap_h = (places // x.shape[2] - first_h) // dilation[0]
    tap_w = (places % x.shape[2] - first_w) // dilation[1]
    codes.copy_(pack((tap_h * kernel[1] + tap_w).permute(0, 2, 3, 1), channels_a_byte(kernel)))
