"""Gradients of maxima of windows: cells of a map gather them from the windows that reach them."""

import triton
import triton.language as tl

from ..codec.argmax import bytes_of_row, is_code
from ..language.map_tiles import row
from ..language.rounding import stored
from .window_max import row_max, unclear_with, window_max


@triton.jit
def _argmax(
    x_ptr, n, h, w, c, height, width, channels, x_pitch,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
):  # fmt: skip
    """Taps of the maxima of windows (h, w)."""
    first_h, first_w = h * STRIDE_H - PADDING_H, w * STRIDE_W - PADDING_W
    first_row = row_max(
        x_ptr, n, first_h, first_w, c, height, width, channels, x_pitch,
        KERNEL_W, DILATION_W, "exact",
    )  # fmt: skip
    _, tap_of_max, _ = window_max(
        first_row, x_ptr, n, first_h, first_w, c, height, width, channels, x_pitch,
        KERNEL_H, KERNEL_W, DILATION_H, DILATION_W, "exact",
    )  # fmt: skip
    return tap_of_max


@triton.jit
def _load_grad(dy_ptr, n, h, w, c, out_height, out_width, channels, pitch):
    mask = (h >= 0) & (h < out_height) & (w >= 0) & (w < out_width) & (c < channels)
    ptrs = row(dy_ptr, n, h, out_height, out_width, pitch) + (w * pitch + c)
    return tl.load(ptrs, mask=mask, other=0.0)


@triton.jit
def _load_codes(
    codes_ptr, n, h, w, out_height, out_width, channels, tiles_c,
    A_BYTE: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    num_bytes = channels // A_BYTE
    place = bytes_of_row(tiles_c, BLOCK_C, A_BYTE)
    mask = (h >= 0) & (h < out_height) & (w >= 0) & (w < out_width) & (place < num_bytes)
    ptrs = row(codes_ptr, n, h, out_height, out_width, num_bytes) + (w * num_bytes + place)
    return tl.load(ptrs, mask=mask, other=0)


@triton.jit
def window_row(
    source_ptr, dy_ptr, n, h, cell_w, c, rows, unclear,
    height, width, out_height, out_width, source_pitch, y_pitch, channels, tiles_c,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_W: tl.constexpr, A_BYTE: tl.constexpr, RULE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """For each window of row h that may reach the cells: its dy, then its codes or its taps.

    Then the maxima of the windows' last rows, and NaN in `unclear` where RULE does not know a tap.
    `rows` are the maxima of their first rows, or nothing, and then these are found here.
    """
    windows, last_rows = (), ()
    for i in tl.static_range(WINDOWS_W):
        w = cell_w - (WINDOWS_W - 1 - i)
        windows += (_load_grad(dy_ptr, n, h, w, c, out_height, out_width, channels, y_pitch),)
        if A_BYTE > 0:
            windows += (
                _load_codes(
                    source_ptr, n, h, w, out_height, out_width, channels, tiles_c,
                    A_BYTE, c.shape[1],
                ),
            )  # fmt: skip
        else:
            first_h, first_w = h * STRIDE_H - PADDING_H, w * STRIDE_W - PADDING_W
            if len(rows) == 0:
                first_row = row_max(
                    source_ptr, n, first_h, first_w, c, height, width, channels, source_pitch,
                    KERNEL_W, DILATION_W, RULE,
                )  # fmt: skip
            else:
                first_row = (rows[2 * i], rows[2 * i + 1])
            y, tap_of_max, last_row = window_max(
                first_row, source_ptr, n, first_h, first_w, c,
                height, width, channels, source_pitch,
                KERNEL_H, KERNEL_W, DILATION_H, DILATION_W, RULE,
            )  # fmt: skip
            inside = (h >= 0) & (h < out_height) & (w >= 0) & (w < out_width) & (c < channels)
            unclear = unclear_with(unclear, y, inside, RULE)
            windows += (tap_of_max,)
            last_rows += last_row
    return windows, last_rows, unclear


@triton.jit
def _with_window(
    dx, dy, source, OFFSET_H: tl.constexpr, OFFSET_W: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, A_BYTE: tl.constexpr,
):  # fmt: skip
    """dx plus the gradient that a window gives to its elements at (OFFSET_H, OFFSET_W)."""
    TAP_H: tl.constexpr = OFFSET_H // DILATION_H
    TAP_W: tl.constexpr = OFFSET_W // DILATION_W
    ON_TAP: tl.constexpr = TAP_H * DILATION_H == OFFSET_H and TAP_W * DILATION_W == OFFSET_W
    if ON_TAP and TAP_H < KERNEL_H and TAP_W < KERNEL_W:
        if A_BYTE > 0:
            is_max = is_code(source, TAP_H * KERNEL_W + TAP_W, A_BYTE)
        else:
            is_max = source == TAP_H * KERNEL_W + TAP_W
        dx = tl.where(is_max, dx + dy.to(tl.float32), dx)
    return dx


@triton.jit
def gathered(
    windows, PLACE_H: tl.constexpr, PLACE_W: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr, A_BYTE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The gradient of the elements at (PLACE_H, PLACE_W) of cells; the first window comes first."""
    dx = tl.zeros(windows[0].shape, tl.float32)
    for i in tl.static_range(WINDOWS_H * WINDOWS_W):
        dx = _with_window(
            dx, windows[2 * i], windows[2 * i + 1],
            PLACE_H + (WINDOWS_H - 1 - i // WINDOWS_W) * STRIDE_H,
            PLACE_W + (WINDOWS_W - 1 - i % WINDOWS_W) * STRIDE_W,
            KERNEL_H, KERNEL_W, DILATION_H, DILATION_W, A_BYTE,
        )  # fmt: skip
    return dx


@triton.jit
def store_grad(
    dx_ptr, dx, n, h, w, c, height, width, channels, pitch, PRECISION: tl.constexpr
) -> None:  # fmt: skip
    """Store the gradient of the elements (h, w) that the map has."""
    mask = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (c < channels)
    ptrs = row(dx_ptr, n, h, height, width, pitch) + (w * pitch + c)
    tl.store(ptrs, stored(dx, dx_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit
def gathered_exactly(
    x_ptr, dy_ptr, n, h, w, c,
    height, width, out_height, out_width, y_pitch, channels, source_pitch,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The gradient of elements (h, w), from any number of windows, the first one first."""
    dx = tl.zeros((w.shape[0], c.shape[1]), tl.float32)
    for window in range(WINDOWS_H * WINDOWS_W):
        out_h = (h + PADDING_H) // STRIDE_H - (WINDOWS_H - 1 - window // WINDOWS_W)
        out_w = (w + PADDING_W) // STRIDE_W - (WINDOWS_W - 1 - window % WINDOWS_W)
        dy = _load_grad(dy_ptr, n, out_h, out_w, c, out_height, out_width, channels, y_pitch)
        tap_of_max = _argmax(
            x_ptr, n, out_h, out_w, c, height, width, channels, source_pitch, KERNEL_H, KERNEL_W,
            STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W,
        )  # fmt: skip
        is_max = h == out_h * STRIDE_H - PADDING_H + tap_of_max // KERNEL_W * DILATION_H
        is_max &= w == out_w * STRIDE_W - PADDING_W + tap_of_max % KERNEL_W * DILATION_W
        dx = tl.where(is_max, dx + dy.to(tl.float32), dx)
    return dx
