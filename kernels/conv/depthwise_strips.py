"""Depthwise convolutions of stride 1 that make their input: threads go down strips of rows.

A thread loads each row of a strip once, makes the values of the convolved map of it, and adds their
products to the sums of all rows of outputs that they meet. A value is made once for all rows of a
filter. Inputs that are loaded as they are belong to depthwise.py and depthwise_rows.py, whose sums
have the same order: their bits are alike.
"""

from collections.abc import Callable
from typing import Final

import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from ..language.channel_ranges import pitch_of
from ..language.device import num_sms
from ..language.rounding import as_stored, stored
from ..norm.normalized_again import Normalized, normalizer_of, settings_of_normalizer
from .batch_stats import MomentCells
from .depthwise_moments import moments_of, with_values
from .depthwise_runs import add_row, load_columns, made_columns, run_of, settings_of_runs
from .tiles import Pair

MOST_ROWS: Final = 5  # of a filter: a thread holds the sums of as many rows of outputs
THREADS: Final = 128  # threads of a program: each has two channels
MOST_STRIP: Final = 28  # rows of outputs of a strip, which two rows more are loaded for
# Pairs of channels of a program, whole sectors of memory: 25 pairs take 1.5 times as long as 24
# (256x56x56x144, H100, 2026-11).
WIDTHS: Final = (32, 24, 16, 8)
WIDEST: Final = 40  # pairs of a pixel, at most, that are one program's
PROGRAMS: Final = 8  # of a multiprocessor, at least, if strips can be cut for them
UNROLLED: Final = 3  # rows of a filter whose sums change places by renaming, not by moves


@triton.jit
def _load_filter(packed_ptr, c, channels, mask, TAPS: tl.constexpr) -> tl.tuple:
    """The weights of all taps of channels c, float32."""
    weights = ()
    for tap in tl.static_range(TAPS):
        weight = tl.load(packed_ptr + tap * channels + c, mask=mask, other=0.0)
        weights += (weight.to(tl.float32),)
    return weights


@triton.jit
def _repeated(value, COUNT: tl.constexpr) -> tl.tuple:
    values = ()
    for _ in tl.static_range(COUNT):
        values += (value,)
    return values


@triton.jit
def _moved(sums, COLUMNS: tl.constexpr) -> tl.tuple:
    """The sums of rows of outputs, each row in the place of the next; the first is 0."""
    moved = _repeated(tl.zeros_like(sums[0]), COLUMNS)
    for j in tl.static_range(len(sums) - COLUMNS):
        moved += (sums[j],)
    return moved


@triton.jit(
    do_not_specialize=[
        "num_strips", "height", "width", "out_h", "out_w", "pad_h", "strip", "strips"
    ]
)  # fmt: skip
def _strips_kernel(
    x_ptr, packed_ptr, bias_ptr, y_ptr, moments_ptr, source, coefficient, num_strips, height, width,
    out_h, out_w, pairs, pad_h, strip, strips, X_PITCH: tl.constexpr, Y_PITCH: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, PAD_W: tl.constexpr, DIL_W: tl.constexpr,
    COLUMNS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, INNER: tl.constexpr,
    OUT_INNER: tl.constexpr, FUNCTION: tl.constexpr, PRECISION: tl.constexpr,
    AT_ONCE: tl.constexpr, THREADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Output h sums taps r of input h - pad_h + r; columns likewise.

    A thread has two channels. WIDTH threads have a row of the map, where WIDTH need not be a power
    of two. Row r of the sums is the row of outputs of which the loaded row is tap r.
    """
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    ROWS: tl.constexpr = THREADS // WIDTH
    pid, tiles_c, runs = tl.program_id(0), tl.cdiv(pairs, WIDTH), tl.cdiv(out_w, COLUMNS)
    first = pid // tiles_c % runs * COLUMNS
    thread = tl.arange(0, THREADS)[:, None]
    number = pid // (tiles_c * runs) * ROWS + thread // WIDTH
    pair = pid % tiles_c * WIDTH + thread % WIDTH
    mask = (thread < ROWS * WIDTH) & (number < num_strips) & (pair < pairs)
    channels, c = pairs * 2, pair * 2 + tl.arange(0, 2)[None, :]
    sample, top = (number // strips).to(tl.int64), number % strips * strip
    stop = tl.minimum(top + strip, out_h)
    x_ptr += (sample * height * width + first) * X_PITCH + c
    y_ptr += (sample * out_h * out_w + first) * Y_PITCH + c
    at = normalizer_of(source, c, mask, channels)
    weights = _load_filter(packed_ptr, c, channels, mask, R * S)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + c, mask=mask, other=0.0)
    zero = tl.zeros((THREADS, 2), tl.float32)
    sums, moments = _repeated(zero, R * COLUMNS), (zero, zero, zero)
    for i in range(0, strip + R - 1, AT_ONCE):
        rows = ()
        for k in tl.static_range(AT_ONCE):
            h = top - pad_h + i + k
            inside = mask & (h >= 0) & (h < height) & (h < stop - pad_h + R - 1)
            ptrs = x_ptr + h * width * X_PITCH
            x = load_columns(ptrs, first, width, X_PITCH, inside, FIRST, COUNT, INNER)
            rows += made_columns(
                x, at, coefficient, inside, first, width, dtype, FUNCTION, FIRST, INNER
            )
        for k in tl.static_range(AT_ONCE):
            x = ()
            for j in tl.static_range(COUNT):
                x += (rows[k * COUNT + j],)
            sums = add_row(sums, x, weights, R, S, COLUMNS, PAD_W + FIRST, DIL_W)
            p = top + i + k - (R - 1)
            done = mask & (p >= top) & (p < stop)
            ptrs = y_ptr + p * out_w * Y_PITCH
            for t in tl.static_range(COLUMNS):
                y = sums[(R - 1) * COLUMNS + t]
                if bias_ptr is not None:
                    y += bias
                inside = done
                if t >= OUT_INNER:
                    inside = inside & (first + t < out_w)
                y = stored(y, dtype, PRECISION) if dtype == tl.float32 else as_stored(y, dtype)
                tl.store(ptrs + t * Y_PITCH, y.to(dtype), mask=inside)
                if moments_ptr is not None:
                    if t == 0:
                        moments = (tl.where(p == top, y, moments[0]), moments[1], moments[2])
                    moments = with_values(moments, y, inside)
            sums = _moved(sums, COLUMNS)
    if moments_ptr is not None:
        count = (stop - top) * tl.minimum(out_w - first, COLUMNS)
        mean, square = moments_of(moments, count.to(tl.float32))
        cell = number.to(tl.int64) * runs + first // COLUMNS
        ptrs = moments_ptr + cell * 2 * channels + c
        tl.store(ptrs, mean, mask=mask)
        tl.store(ptrs + channels, square, mask=mask)


def goes_by_strips(channels: int, size: Pair, stride: Pair, dilation: Pair) -> bool:
    """Whether strips are cut for a layer with filters of `size` (h, w)."""
    plain = stride == (1, 1) and dilation[0] == 1
    return plain and channels % 8 == 0 and size[0] <= MOST_ROWS and size[1] <= MOST_ROWS


def convolve_strips(
    x: Tensor, made_by: Normalized, packed: Tensor, bias: Tensor | None, y: Tensor, *,
    padding: Pair, dilation: int, precision: str,
    moments: Tensor | None = None, cells: MomentCells | None = None,
) -> None:  # fmt: skip
    """y [N, P, Q, C] = the map that x [N, H, W, C] makes, convolved with packed [R, S, C].

    Plus bias, float32 [C]. `dilation` is that of columns. float32 maps are rounded as products of
    `precision` read them. `moments` get those of `cells` of y, as `strip_moments` makes them.
    """
    (samples, out_h, out_w, channels), (size_r, size_s, _) = y.shape, packed.shape
    width = _width_of(channels // 2)
    columns = run_of(out_w)
    tiles = cdiv(out_w, columns) * cdiv(channels // 2, width)
    rows = THREADS // width
    strip = _strip_of(out_h, size_r, lambda strips: cdiv(samples * strips, rows) * tiles)
    strip = strip if cells is None else cells.box[1]
    strips = cdiv(out_h, strip)
    runs = settings_of_runs(x.shape[2], out_w, columns, size_s, 1, 1, padding[1], dilation)
    maker = settings_of_normalizer(made_by)
    del runs["STRIDE_W"]
    _strips_kernel[(cdiv(samples * strips, rows) * tiles,)](
        x, packed, bias, y, moments, maker["source"], maker["coefficient"], samples * strips,
        x.shape[1], x.shape[2], out_h, out_w, channels // 2, padding[0], strip, strips,
        X_PITCH=pitch_of(x), Y_PITCH=pitch_of(y), R=size_r, **runs, FUNCTION=maker["FUNCTION"],
        PRECISION=precision,
        AT_ONCE=size_r if size_r <= UNROLLED else 1,
        THREADS=THREADS, WIDTH=width, num_warps=THREADS // 32,
    )  # fmt: skip


def _strip_of(height: int, size_r: int, programs: Callable[[int], int]) -> int:
    """Rows of a strip: as many as leave enough programs."""
    strips = cdiv(height, MOST_STRIP)
    while programs(strips) < PROGRAMS * num_sms() and cdiv(height, strips + 1) >= 2 * size_r:
        strips += 1
    return cdiv(height, strips)


def _width_of(pairs: int) -> int:
    """Threads that have a row of a map: all its pairs of channels if few, or some of WIDTHS."""

    def used(width: int) -> tuple[float, int]:
        busy = pairs / (cdiv(pairs, width) * width) * (THREADS // width * width / THREADS)
        return min(busy, 0.93), width

    return pairs if pairs <= WIDEST else max(WIDTHS, key=used)
