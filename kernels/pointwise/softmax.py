"""Softmax and its logarithm over the channels of a map, with their gradients.

A gradient reads the output, or the input from which it computes the output again. Where the output
is rounded to TF32, the shares of a row do not add up to 1, and a gradient from it may be all error.
"""

from math import gcd
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.rounding import stored, stored_reference

FUNCTIONS: Final = ("softmax", "log_softmax")
MOST_CHANNELS: Final = 16384  # channels of a row, at most: a program holds whole rows
WARP_ELEMENTS: Final = 512  # elements of a row for each warp, where warps share a row
LINE: Final = 8  # threads that share a short row, at least, of words of up to 16 bytes
WORD: Final = 8  # channels of a word, at most
MOST_PIECES: Final = 4  # words of a thread, where fewer than 32 threads share a row
WARP_PIECES: Final = 8  # words of a thread, at most, where 32 threads share a row
THREAD_ELEMENTS: Final = 16  # elements of a thread, about
NUM_WARPS: Final = 4


@triton.jit
def _place(num_rows, channels, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A program's first element (int64); offsets [ROWS, BLOCK] from it; which rows exist."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    rows = tl.arange(0, ROWS)[:, None]
    return first * channels, rows * channels + tl.arange(0, BLOCK)[None, :], rows < num_rows - first


@triton.jit
def _load_rows(ptr, offs, mask_rows, channels, beyond, PIECES: tl.constexpr, BLOCK: tl.constexpr):
    """The pieces of rows, float32 [ROWS, BLOCK] each; `beyond` outside the rows."""
    pieces = ()
    for i in tl.static_range(PIECES):
        mask = mask_rows
        if i == PIECES - 1:
            mask = mask_rows & (tl.arange(0, BLOCK)[None, :] < channels - i * BLOCK)
        piece = tl.load(ptr + i * BLOCK + offs, mask=mask, other=beyond)
        pieces += (piece.to(tl.float32),)
    return pieces


@triton.jit
def _store_rows(
    ptr, pieces, offs, mask_rows, channels,
    PRECISION: tl.constexpr, PIECES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    for i in tl.static_range(PIECES):
        mask = mask_rows
        if i == PIECES - 1:
            mask = mask_rows & (tl.arange(0, BLOCK)[None, :] < channels - i * BLOCK)
        tl.store(
            ptr + i * BLOCK + offs, stored(pieces[i], ptr.dtype.element_ty, PRECISION), mask=mask
        )


@triton.jit
def _sum_of_rows(pieces, PIECES: tl.constexpr):
    """The sum of each row: [ROWS, 1]."""
    total = pieces[0]
    for i in tl.static_range(1, PIECES):
        total += pieces[i]
    return tl.sum(total, 1)[:, None]


@triton.jit
def _normalized(x, LOG: tl.constexpr, PIECES: tl.constexpr):
    """Softmax of rows, or its logarithm. Elements beyond the row are minus infinity."""
    top = x[0]
    for i in tl.static_range(1, PIECES):
        top = tl.maximum(top, x[i])
    top = tl.max(top, 1)[:, None]
    below, powers, y = (), (), ()
    for i in tl.static_range(PIECES):
        below += (x[i] - top,)
        powers += (tl.exp(below[i]),)
    total = _sum_of_rows(powers, PIECES)
    scale = tl.log(total) if LOG else 1.0 / total
    for i in tl.static_range(PIECES):
        y += (below[i] - scale if LOG else powers[i] * scale,)
    return y


@triton.jit(do_not_specialize=["num_rows"])
def _softmax_kernel(
    x_ptr, y_ptr, num_rows, channels, LOG: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr, WORD: tl.constexpr,
):  # fmt: skip
    """A program computes ROWS rows, each in PIECES pieces. WORD divides the channels."""
    channels = channels // WORD * WORD
    start, offs, mask_rows = _place(num_rows, channels, ROWS, BLOCK)
    x = _load_rows(x_ptr + start, offs, mask_rows, channels, float("-inf"), PIECES, BLOCK)
    y = _normalized(x, LOG, PIECES)
    _store_rows(y_ptr + start, y, offs, mask_rows, channels, PRECISION, PIECES, BLOCK)


@triton.jit(do_not_specialize=["num_rows"])
def _softmax_grad_kernel(
    map_ptr, dy_ptr, dx_ptr, num_rows, channels, BY_INPUT: tl.constexpr, LOG: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr, WORD: tl.constexpr,
):  # fmt: skip
    channels = channels // WORD * WORD
    start, offs, mask_rows = _place(num_rows, channels, ROWS, BLOCK)
    if BY_INPUT:
        x = _load_rows(map_ptr + start, offs, mask_rows, channels, float("-inf"), PIECES, BLOCK)
        y = _normalized(x, LOG, PIECES)
    else:
        y = _load_rows(map_ptr + start, offs, mask_rows, channels, 0.0, PIECES, BLOCK)
    dy = _load_rows(dy_ptr + start, offs, mask_rows, channels, 0.0, PIECES, BLOCK)
    terms, dx = (), ()
    for i in tl.static_range(PIECES):
        terms += (dy[i] if LOG else y[i] * dy[i],)
    total = _sum_of_rows(terms, PIECES)
    for i in tl.static_range(PIECES):
        dx += (dy[i] - tl.exp(y[i]) * total if LOG else y[i] * (dy[i] - total),)
    _store_rows(dx_ptr + start, dx, offs, mask_rows, channels, PRECISION, PIECES, BLOCK)


def softmax(x: Tensor, y: Tensor, *, function: str, precision: str = "ieee") -> None:
    """y = "softmax" or "log_softmax" of each row of x [M, C], C <= MOST_CHANNELS. y may be x."""
    _launch(_softmax_kernel, x, y, function=function, precision=precision)


def softmax_grad(
    values: Tensor, dy: Tensor, dx: Tensor, *,
    function: str, precision: str = "ieee", by_input: bool = False,
) -> None:  # fmt: skip
    """The gradient dx [M, C] of `softmax` from dy. dx may be dy.

    `values` are the output, or with `by_input` the input. The bits are then those that a float32
    output gives.
    """
    settings = {"function": function, "precision": precision, "BY_INPUT": by_input}
    _launch(_softmax_grad_kernel, values, dy, dx, **settings)


def _launch(
    kernel: triton.JITFunction, *maps: Tensor, function: str, precision: str, **constants: bool
) -> None:
    num_rows, channels = maps[0].shape
    if maps[0].numel() == 0:
        return
    tile = tile_of(channels)
    kernel[(triton.cdiv(num_rows, tile["ROWS"]),)](
        *maps, num_rows, channels, LOG=function == "log_softmax", PRECISION=precision,
        **tile, **constants,
    )  # fmt: skip


def tile_of(channels: int) -> dict[str, int]:
    """Compile-time arguments of a launch. They depend on the channels alone, as a row's sum does.

    Up to 32 threads share a row of few words: 8 threads take 21 channels as 3 pieces of 8. A block
    of 32 channels would leave 11 threads idle, and need 5 exchanges among threads for a sum, not 3.
    """
    word = gcd(channels, WORD)
    words = channels // word
    if words > 32 * WARP_PIECES:
        block = triton.next_power_of_2(channels)
        warps = max(min(block // WARP_ELEMENTS, 16), NUM_WARPS)
        return {"ROWS": 1, "BLOCK": block, "PIECES": 1, "WORD": word, "num_warps": warps}
    lanes = triton.next_power_of_2(triton.cdiv(words, MOST_PIECES))
    lanes = min(max(lanes, min(triton.next_power_of_2(words), LINE)), 32)
    pieces = triton.cdiv(words, lanes)
    of_thread = 1 << max(THREAD_ELEMENTS // (pieces * word), 1).bit_length() - 1
    rows = of_thread * 32 * NUM_WARPS // lanes
    block = lanes * word
    return {"ROWS": rows, "BLOCK": block, "PIECES": pieces, "WORD": word, "num_warps": NUM_WARPS}


def softmax_reference(x: Tensor, y: Tensor, *, function: str, precision: str = "ieee") -> None:
    """Computes `softmax` in torch."""
    exact = getattr(torch, function)(x.double(), 1)
    y.copy_(stored_reference(exact.float(), y.dtype, precision))


def softmax_grad_reference(
    values: Tensor, dy: Tensor, dx: Tensor, *,
    function: str, precision: str = "ieee", by_input: bool = False,
) -> None:  # fmt: skip
    """Computes `softmax_grad` in float64."""
    if by_input:
        x, values = values, torch.empty_like(values, dtype=torch.float32)
        softmax_reference(x, values, function=function)
    y, wide = values.double(), dy.double()
    if function == "log_softmax":
        exact = wide - y.exp() * wide.sum(1, keepdim=True)
    else:
        exact = y * (wide - (y * wide).sum(1, keepdim=True))
    dx.copy_(stored_reference(exact.float(), dx.dtype, precision))
