"""What the convolution kernels do with a finished sum before it leaves: jit functions.

Each rounds where separate kernels would, so that fused and separate layers have the same bits.
"""

import triton
import triton.language as tl


@triton.jit
def rectified(x) -> tl.tensor:
    """ReLU that keeps NaN."""
    return tl.where(x <= 0, 0.0, x)


@triton.jit
def where_positive(mask, x) -> tl.tensor:
    """x where the map `mask` is above zero, or NaN; else 0."""
    return tl.where(mask.to(tl.float32) <= 0, tl.zeros_like(x), x)


@triton.jit
def max_of_taps(first, second, third, fourth) -> tuple[tl.tensor, tl.tensor]:
    """Largest of a window's four values, and its index: the first such, or the last NaN."""
    replaces = (second > first) | (second != second)
    largest = tl.where(replaces, second, first)
    tap = tl.where(replaces, 1, 0)
    replaces = (third > largest) | (third != third)
    largest = tl.where(replaces, third, largest)
    tap = tl.where(replaces, 2, tap)
    replaces = (fourth > largest) | (fourth != fourth)
    return tl.where(replaces, fourth, largest), tl.where(replaces, 3, tap)


@triton.jit
def packed_codes(tap, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """Taps [ROWS, COLUMNS] in 2 bits each, four neighbours of a row in a byte, the first lowest."""
    places = tl.arange(0, 4)[None, None, :] * 2
    return tl.sum(tap.reshape(ROWS, COLUMNS // 4, 4) << places, axis=2).to(tl.uint8)
