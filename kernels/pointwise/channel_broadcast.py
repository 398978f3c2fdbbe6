"""Gates: maps times, or plus, one value for each channel, of each sample or of all samples.

The product may be added to a residual and rectified in the same pass, with the bits of separate
passes. The map may be normalized as it is loaded.
"""

from math import gcd
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..codec.sign_bits import packed_signs, packed_signs_reference, words_of
from ..language.channel_blocks import best_block
from ..language.channel_ranges import pitch_of
from ..language.rounding import as_stored, stored, stored_reference
from ..norm.batch_norm_tiles import normalizer
from ..norm.normalized_again import (
    Normalized,
    normalized_again,
    normalized_again_reference,
    settings_of_normalizer,
)
from .activation_math import rectified_reference

TILE: Final = 2048  # elements of a step
STEPS: Final = 8  # steps of a slice
WIDTHS: Final = (64, 128, 32, 16)  # channels of a tile
NUM_WARPS: Final = 4
FUNCTIONS: Final = ("multiply", "add")


@triton.jit
def slice_of(
    num_pixels, channels, ROWS: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr
) -> tl.tuple:  # fmt: skip
    """Sample (int64), first pixel, one past the last, and channels [WIDTH] of a program's slice."""
    sample = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * (ROWS * STEPS)
    c = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    return sample, first, tl.minimum(first + ROWS * STEPS, num_pixels), c


@triton.jit
def words_at(
    pixels, mask, channels, pitch, dtype: tl.constexpr, WIDTH: tl.constexpr
) -> tl.tuple:  # fmt: skip
    """Offsets and mask of the words of sign bits of a program's channels, of pixels [ROWS, 1]."""
    WORDS: tl.constexpr = WIDTH // dtype.primitive_bitwidth
    word = tl.program_id(2) * WORDS + tl.arange(0, WORDS)[None, :]
    return pixels * pitch + word, mask & (word < channels // dtype.primitive_bitwidth)


@triton.jit(do_not_specialize=["num_pixels"])
def _gate_kernel(
    x_ptr, source, gate_ptr, residual_ptr, y_ptr, signs_ptr, num_pixels, channels,
    x_pitch, residual_pitch, y_pitch, signs_pitch, gate_stride, coefficient,
    FUNCTION: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr, ADDS: tl.constexpr,
    ALIGN: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    out: tl.constexpr = y_ptr.dtype.element_ty
    channels = channels // ALIGN * ALIGN
    x_pitch, y_pitch = x_pitch // ALIGN * ALIGN, y_pitch // ALIGN * ALIGN
    residual_pitch = residual_pitch // ALIGN * ALIGN
    sample, first, stop, c = slice_of(num_pixels, channels, ROWS, STEPS, WIDTH)
    if source is not None:
        at = normalizer(source[0], source[1], source[2], c, c < channels, channels)
    gate = tl.load(gate_ptr + sample * gate_stride + c, mask=c < channels, other=0.0)
    gate = gate.to(tl.float32)[None, :]
    for start in range(first, stop, ROWS):
        pixels = start + tl.arange(0, ROWS)
        inside = (pixels < stop)[:, None]
        mask = inside & (c < channels)[None, :]
        pixels = (sample * num_pixels + pixels)[:, None]
        ptrs = x_ptr + pixels * x_pitch + c[None, :]  # [ROWS, WIDTH]
        x = tl.load(ptrs, mask=mask, other=0.0)
        if source is not None:
            x = normalized_again(x, at, coefficient, FUNCTION)
        x = x.to(tl.float32)
        y = x + gate if ADDS else x * gate
        if residual_ptr is not None:
            ptrs = residual_ptr + pixels * residual_pitch + c[None, :]
            y = as_stored(y, out) + tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            y = y.to(out).to(tl.float32)
            y = tl.where(y <= 0, 0.0, y)
        y = stored(y, out, PRECISION)
        tl.store(y_ptr + pixels * y_pitch + c[None, :], y, mask=mask)
        if signs_ptr is not None:
            dtype: tl.constexpr = signs_ptr.dtype.element_ty
            offs, exist = words_at(pixels, inside, channels, signs_pitch, dtype, WIDTH)
            tl.store(signs_ptr + offs, packed_signs(y.to(tl.float32), dtype), mask=exist)


def gate(
    x: Tensor, gates: Tensor, y: Tensor, residual: Tensor | None = None,
    signs: Tensor | None = None, *, function: str = "multiply", relu: bool = False,
    made_by: Normalized | None = None, precision: str = "ieee",
) -> None:  # fmt: skip
    """y = x * gates, or x + gates for "add", then plus the residual, then rectified.

    x, residual and y are [N, P, C], of all channels of a map or of a range. y may be one of the
    others. gates are [N, C], or [1, C] for all samples. `signs` uint8 [N, P, C / 8] get the sign
    bits of y. For "multiply" x may be what the gated map is `made_by`. Values are rounded to y's
    type after each step.
    """
    if x.numel() == 0:
        return
    channels = x.shape[2]
    words = None if signs is None else words_of(signs, channels)
    grid, tile = tiles_of(x, residual, y)
    _gate_kernel[grid](
        x, gate_ptr=gates, residual_ptr=residual, y_ptr=y, signs_ptr=words, num_pixels=x.shape[1],
        channels=channels, x_pitch=pitch_of(x), residual_pitch=_pitch(residual),
        y_pitch=pitch_of(y), signs_pitch=_pitch(words), gate_stride=stride_of(gates),
        **settings_of_normalizer(made_by), RELU=relu, ADDS=function == "add", PRECISION=precision,
        **tile, num_warps=NUM_WARPS, **_rounds(residual),
    )  # fmt: skip


def _pitch(maps: Tensor | None) -> int:
    return 0 if maps is None else pitch_of(maps)


def _rounds(residual: Tensor | None) -> dict[str, Any]:
    """The option that keeps float32 products apart from the sums that follow them."""
    apart = residual is not None and residual.dtype == torch.float32
    return {"enable_fp_fusion": False} if apart else {}


def gate_slices(pixels: int, channels: int) -> int:
    """Number of slices of a sample of `pixels`."""
    return triton.cdiv(pixels, rows_of_slice(channels))


def rows_of_slice(channels: int) -> int:
    """Pixels of a slice of maps of so many channels."""
    return STEPS * (TILE // _width(channels))


def _width(channels: int) -> int:
    """Channels of a tile."""
    return min(triton.next_power_of_2(channels), best_block(channels, WIDTHS))


def tiles_of(*maps: Tensor | None) -> tuple[tuple[int, int, int], dict[str, int]]:
    given = [each for each in maps if each is not None]
    samples, pixels, channels = given[0].shape
    width = _width(channels)
    grid = (samples, gate_slices(pixels, channels), triton.cdiv(channels, width))
    tile = {"ROWS": TILE // width, "STEPS": STEPS, "WIDTH": width}
    return grid, tile | {"ALIGN": gcd(16, channels, *map(pitch_of, given))}


def stride_of(gates: Tensor) -> int:
    """Elements from one sample's gates to the next one's."""
    return gates.stride(0) if gates.shape[0] > 1 else 0


def gate_reference(
    x: Tensor, gates: Tensor, y: Tensor, residual: Tensor | None = None,
    signs: Tensor | None = None, *, function: str = "multiply", relu: bool = False,
    made_by: Normalized | None = None, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `gate` in torch."""
    wide, factor = normalized_again_reference(x, made_by).float(), gates.float()[:, None]
    result = wide + factor if function == "add" else wide * factor
    if residual is not None:
        result = result.to(y.dtype).float() + residual.float()
    if relu:
        result = rectified_reference(result.to(y.dtype))
    y.copy_(stored_reference(result, y.dtype, precision))
    if signs is not None:
        signs.copy_(packed_signs_reference(y))
