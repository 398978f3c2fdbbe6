"""Gates: maps times, or plus, one value for each channel, of each sample or of all samples.

The gradient of a gate is a sum over pixels in a fixed order: over slices of a sample first, then
over the slices. A program sums one slice and computes the map's gradient from the same loads.
"""

from math import gcd
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.channel_blocks import best_block
from ..language.channel_ranges import pitch_of
from ..language.rounding import stored, stored_reference

TILE: Final = 2048  # elements of a step
STEPS: Final = 8  # steps of a slice
WIDTHS: Final = (64, 128, 32, 16)  # channels of a tile
NUM_WARPS: Final = 4
SUM_BLOCK: Final = 64  # channels of a program that sums slices
FUNCTIONS: Final = ("multiply", "add")


@triton.jit
def _slice(num_pixels, channels, ROWS: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr):
    """Sample (int64), first pixel, one past the last, and channels [WIDTH] of a program's slice."""
    sample = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * (ROWS * STEPS)
    c = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    return sample, first, tl.minimum(first + ROWS * STEPS, num_pixels), c


@triton.jit(do_not_specialize=["num_pixels"])
def _gate_kernel(
    x_ptr, gate_ptr, y_ptr, num_pixels, channels, x_pitch, y_pitch, gate_stride,
    PRECISION: tl.constexpr, ADDS: tl.constexpr, ALIGN: tl.constexpr,
    ROWS: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    channels = channels // ALIGN * ALIGN
    x_pitch, y_pitch = x_pitch // ALIGN * ALIGN, y_pitch // ALIGN * ALIGN
    sample, first, stop, c = _slice(num_pixels, channels, ROWS, STEPS, WIDTH)
    gate = tl.load(gate_ptr + sample * gate_stride + c, mask=c < channels, other=0.0)
    gate = gate.to(tl.float32)[None, :]
    for start in range(first, stop, ROWS):
        pixels = start + tl.arange(0, ROWS)
        mask = (pixels < stop)[:, None] & (c < channels)[None, :]
        pixels = (sample * num_pixels + pixels)[:, None]
        ptrs = x_ptr + pixels * x_pitch + c[None, :]  # [ROWS, WIDTH]
        x = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        y = x + gate if ADDS else x * gate
        ptrs = y_ptr + pixels * y_pitch + c[None, :]
        tl.store(ptrs, stored(y, y_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=["num_pixels", "slices"])
def _gate_grad_kernel(
    x_ptr, gate_ptr, dy_ptr, dx_ptr, sums_ptr, num_pixels, channels, x_pitch, dy_pitch, dx_pitch,
    gate_stride, slices, PRECISION: tl.constexpr,
    ADDS: tl.constexpr, TO_MAP: tl.constexpr, TO_GATE: tl.constexpr,
    ALIGN: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    channels = channels // ALIGN * ALIGN
    x_pitch, dy_pitch = x_pitch // ALIGN * ALIGN, dy_pitch // ALIGN * ALIGN
    dx_pitch = dx_pitch // ALIGN * ALIGN
    sample, first, stop, c = _slice(num_pixels, channels, ROWS, STEPS, WIDTH)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    if TO_MAP:
        gate = tl.load(gate_ptr + sample * gate_stride + c, mask=c < channels, other=0.0)
        gate = gate.to(tl.float32)[None, :]
    for start in range(first, stop, ROWS):
        pixels = start + tl.arange(0, ROWS)
        mask = (pixels < stop)[:, None] & (c < channels)[None, :]
        pixels = (sample * num_pixels + pixels)[:, None]
        ptrs = dy_ptr + pixels * dy_pitch + c[None, :]
        dy = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        if TO_GATE:
            if ADDS:
                total += dy
            else:
                ptrs = x_ptr + pixels * x_pitch + c[None, :]
                total += dy * tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        if TO_MAP:
            dx = stored(dy * gate, dx_ptr.dtype.element_ty, PRECISION)
            tl.store(dx_ptr + pixels * dx_pitch + c[None, :], dx, mask=mask)
    if TO_GATE:
        sums_ptr += (sample * slices + tl.program_id(1)) * channels
        tl.store(sums_ptr + c, tl.sum(total, 0), mask=c < channels)


@triton.jit(do_not_specialize=["slices"])
def _sum_slices_kernel(
    sums_ptr, gate_ptr, slices, channels, gate_stride,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    sums_ptr += sample * slices * channels
    for _ in range(slices):
        total += tl.load(sums_ptr + c, mask=c < channels, other=0.0)
        sums_ptr += channels
    ptrs = gate_ptr + sample * gate_stride + c
    tl.store(ptrs, stored(total, gate_ptr.dtype.element_ty, PRECISION), mask=c < channels)


def gate(
    x: Tensor, gates: Tensor, y: Tensor, *, function: str = "multiply", precision: str = "ieee"
) -> None:
    """y = x * gates, or x + gates for "add". y may be x.

    x is [N, P, C], of all channels of a map or of a range. gates are [N, C], or [1, C] for all
    samples.
    """
    if x.numel() == 0:
        return
    grid, tile = _tiles(x, y)
    _gate_kernel[grid](
        x, gates, y, x.shape[1], x.shape[2], pitch_of(x), pitch_of(y), _stride(gates),
        ADDS=function == "add", PRECISION=precision, **tile, num_warps=NUM_WARPS,
    )  # fmt: skip


def gate_grad(
    x: Tensor | None, gates: Tensor | None, dy: Tensor, dx: Tensor | None, sums: Tensor | None, *,
    precision: str = "ieee",
) -> None:  # fmt: skip
    """dx = dy * gates, and the sums of dy * x over slices of pixels. Either output may be None.

    sums are float32 [N, `gate_slices`(P, C), C]. Without x, for gates that are added, they are the
    sums of dy. dx may be dy. Maps may be channel ranges.
    """
    if dy.numel() == 0:
        return
    maps = x, dy, dx
    grid, tile = _tiles(*maps)
    pitches = (0 if each is None else pitch_of(each) for each in maps)
    _gate_grad_kernel[grid](
        x, gates, dy, dx, sums, dy.shape[1], dy.shape[2], *pitches,
        0 if gates is None else _stride(gates), grid[1],
        ADDS=x is None, TO_MAP=dx is not None, TO_GATE=sums is not None, PRECISION=precision,
        **tile, num_warps=NUM_WARPS,
    )  # fmt: skip


def sum_slices(sums: Tensor, gates: Tensor, *, precision: str = "ieee") -> None:
    """gates [N, C] = the sums over slices of `sums` [N, slices, C] from `gate_grad`, in order."""
    samples, slices, channels = sums.shape
    if samples == 0:
        return
    _sum_slices_kernel[(samples, triton.cdiv(channels, SUM_BLOCK))](
        sums,
        gates,
        slices,
        channels,
        _stride(gates),
        PRECISION=precision,
        BLOCK=SUM_BLOCK,
        num_warps=1,
    )


def gate_slices(pixels: int, channels: int) -> int:
    """Number of slices of a sample of `pixels`."""
    return triton.cdiv(pixels, STEPS * (TILE // _width(channels)))


def _width(channels: int) -> int:
    """Channels of a tile."""
    return min(triton.next_power_of_2(channels), best_block(channels, WIDTHS))


def _tiles(*maps: Tensor | None) -> tuple[tuple[int, int, int], dict[str, int]]:
    given = [each for each in maps if each is not None]
    samples, pixels, channels = given[0].shape
    width = _width(channels)
    grid = (samples, gate_slices(pixels, channels), triton.cdiv(channels, width))
    tile = {"ROWS": TILE // width, "STEPS": STEPS, "WIDTH": width}
    return grid, tile | {"ALIGN": gcd(16, channels, *map(pitch_of, given))}


def _stride(gates: Tensor) -> int:
    """Elements from one sample's gates to the next one's."""
    return gates.stride(0) if gates.shape[0] > 1 else 0


def gate_reference(
    x: Tensor, gates: Tensor, y: Tensor, *, function: str = "multiply", precision: str = "ieee"
) -> None:
    """Computes `gate` in torch."""
    wide, factor = x.float(), gates.float()[:, None]
    result = wide + factor if function == "add" else wide * factor
    y.copy_(stored_reference(result, y.dtype, precision))


def gate_grad_reference(
    x: Tensor | None, gates: Tensor | None, dy: Tensor, dx: Tensor | None, sums: Tensor | None, *,
    precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `gate_grad` in torch."""
    wide = dy.double()
    if sums is not None:
        terms = wide if x is None else wide * x.double()
        rows = STEPS * (TILE // _width(dy.shape[2]))
        sums.copy_(torch.stack([part.sum(1) for part in terms.split(rows, 1)], 1))
    if dx is not None and gates is not None:
        product = (wide * gates.double()[:, None]).float()
        dx.copy_(stored_reference(product, dx.dtype, precision))


def sum_slices_reference(sums: Tensor, gates: Tensor, *, precision: str = "ieee") -> None:
    """Computes `sum_slices` in torch."""
    gates.copy_(stored_reference(sums.double().sum(1).float(), gates.dtype, precision))
