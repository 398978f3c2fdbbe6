"""Runs of adjacent columns of a map's rows, which a thread of a depthwise convolution computes."""

from typing import Final, NamedTuple

import triton
import triton.language as tl

from ..norm.normalized_again import normalized_again
from .tiles import Pair

COLUMNS: Final = range(8, 3, -1)  # columns of a run
REGISTERS: Final = 65536  # of a multiprocessor


class StripTile(NamedTuple):
    """How a thread goes down the rows of a strip."""

    most: int  # columns of a run, at most
    values: int  # channels of a thread
    at_once: int  # rows of a step of the loop, in which sums or rows change places by renaming
    registers: int  # of a thread

    def programs(self, threads: int) -> int:
        """Programs of so many threads that a multiprocessor runs side by side."""
        return REGISTERS // (threads * self.registers)


def settings_of_runs(
    width: int, out_width: int, columns: int, size: int, stride: int, up: int, padding: int,
    dilation: int,
) -> dict[str, int]:  # fmt: skip
    """The constants by which kernels read runs of `columns` of `out_width` from rows of `width`.

    Output w has tap s at column (w * stride - padding + s * dilation) / up, where that is whole.
    """
    first, last = _reach(size, columns, stride, up, padding, dilation)
    last_run = (triton.cdiv(out_width, columns) - 1) * columns
    inner = width - last_run * stride // up
    return {
        "S": size, "STRIDE_W": stride, "PAD_W": padding, "DIL_W": dilation, "COLUMNS": columns,
        "FIRST": first, "COUNT": last - first + 1, "INNER": min(max(inner, first), last + 1),
        "OUT_INNER": out_width - last_run,
    }  # fmt: skip


def run_of(width: int, up: int = 1, most: int = COLUMNS[0]) -> int:
    """Columns of a run: a multiple of `up` that overruns a row of `width` columns least."""
    fit = (n for n in COLUMNS if n % up == 0 and n <= most)
    return min(fit, key=lambda n: triton.cdiv(width, n) * n, default=up)


def _reach(size: int, columns: int, stride: int, up: int, pad: int, dil: int) -> Pair:
    """First and last column that a run reads, relative to the column of its first output."""
    met = [t * stride + s * dil - pad for t in range(columns) for s in range(size)]
    whole = [place // up for place in met if place % up == 0] or [0]
    return min(whole), max(whole)


def within_map(runs: dict[str, int], width: int, out_width: int) -> dict[str, int]:
    """The settings where a single run has all outputs of a row: without columns beside the map."""
    if out_width > runs["COLUMNS"]:
        return runs
    first = min(max(runs["FIRST"], 0), width - 1)
    last = max(min(runs["FIRST"] + runs["COUNT"], width), first + 1)
    return runs | {"FIRST": first, "COUNT": last - first}


@triton.constexpr_function
def reaches(column: int, count: int) -> bool:
    """Whether a column is among `count` that are loaded. Others are beside the map."""
    return 0 <= column < count


@triton.jit
def load_run(
    ptrs, column, width, pitch, mask,
    FIRST: tl.constexpr, COUNT: tl.constexpr, INNER: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """COUNT columns from `column` + FIRST on, as they lie in memory; `ptrs` point to `column`.

    Columns below `column` + INNER are less than `width`. Without a mask all that are less lie in
    memory, and none of those within is loaded by a mask.
    """
    run = ()
    for j in tl.static_range(FIRST, FIRST + COUNT):
        if mask is None and j >= 0 and j < INNER:
            run += (tl.load(ptrs + j * pitch),)
        else:
            inside = True if mask is None else mask
            if j < 0:
                inside = inside & (column + j >= 0)
            if j >= INNER:
                inside = inside & (column + j < width)
            run += (tl.load(ptrs + j * pitch, mask=inside, other=0.0),)
    return run


@triton.jit
def in_float32(run) -> tl.tuple:
    values = ()
    for j in tl.static_range(len(run)):
        values += (run[j].to(tl.float32),)
    return values


@triton.jit
def part_of(values, FIRST: tl.constexpr, COUNT: tl.constexpr) -> tl.tuple:
    part = ()
    for i in tl.static_range(COUNT):
        part += (values[FIRST + i],)
    return part


@triton.jit
def _with_products(
    sums, x, weights, S: tl.constexpr, COLUMNS: tl.constexpr, OFFSET: tl.constexpr,
    DIL_W: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The sums, with the products of a row of x by a row of the filter."""
    added = ()
    for t in tl.static_range(COLUMNS):
        total = sums[t]
        for s in tl.static_range(S):
            if reaches(t + s * DIL_W - OFFSET, len(x)):
                total = tl.fma(x[t + s * DIL_W - OFFSET], weights[s], total)
        added += (total,)
    return added


@triton.jit
def add_row(
    sums, x, weights, R: tl.constexpr, S: tl.constexpr, COLUMNS: tl.constexpr,
    OFFSET: tl.constexpr, DIL_W: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The sums of R rows of outputs, with the products of a row of x by each row of the filter."""
    added = ()
    for r in tl.static_range(R):
        row, taps = part_of(sums, r * COLUMNS, COLUMNS), part_of(weights, r * S, S)
        added += _with_products(row, x, taps, S, COLUMNS, OFFSET, DIL_W)
    return added


@triton.jit
def load_columns(
    ptrs, column, width, pitch, mask,
    FIRST: tl.constexpr, COUNT: tl.constexpr, INNER: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """COUNT columns from `column` + FIRST on, float32 each; `ptrs` point to `column`.

    Columns below `column` + INNER are less than `width`. A constant `pitch` leaves loads no
    addresses to compute: 27.7 of 34.8 instructions a value (gradient of 72 3x3, sm_90a).
    """
    columns = ()
    for j in tl.static_range(FIRST, FIRST + COUNT):
        inside = mask
        if j < 0:
            inside = inside & (column + j >= 0)
        if j >= INNER:
            inside = inside & (column + j < width)
        columns += (tl.load(ptrs + j * pitch, mask=inside, other=0.0).to(tl.float32),)
    return columns


@triton.jit
def made_columns(
    columns, at, coefficient, mask, column, width, dtype: tl.constexpr, FUNCTION: tl.constexpr,
    FIRST: tl.constexpr, INNER: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The normalized map's columns, in float32, from those of `load_columns` with this mask.

    Where the mask is not set they are 0, as the map's own are behind its edge: the function of 0
    is 0.
    """
    mean, scale, shift = at
    inside = mean, tl.where(mask, scale, 0.0), tl.where(mask, shift, 0.0)
    made = ()
    for i in tl.static_range(len(columns)):
        y = normalized_again(columns[i].to(dtype), inside, coefficient, FUNCTION).to(tl.float32)
        if FIRST + i < 0:
            y = tl.where(column + (FIRST + i) >= 0, y, 0.0)
        if FIRST + i >= INNER:
            y = tl.where(column + (FIRST + i) < width, y, 0.0)
        made += (y,)
    return made
