"""What the weight-gradient kernels share: the part of a program, its steps, its running sum.

A unit of samples is divided into steps of pixels. Split j takes the same share of every unit. A
launch has a program for each split of a range, which begins with split `range_start`.
"""

import triton
import triton.language as tl

from ..bands import band_start, first_output, tiles_of


@triton.jit
def part_of(
    pid, in_c, out_c, bands,
    NUM_TAPS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, BY_GROUP: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """First output channel, first input channel, tap and split in the range of a program.

    The input channels of a tile are among in_c of a band, its output channels among out_c of a map.
    """
    group = out_c if bands is None else bands[1]
    tiles_c, tiles_k = tl.cdiv(in_c, BLOCK_C), tiles_of(out_c, group, BLOCK_K, BY_GROUP)
    tap = pid % NUM_TAPS
    c = pid // NUM_TAPS % tiles_c * BLOCK_C
    k = first_output(pid // (NUM_TAPS * tiles_c) % tiles_k, group, BLOCK_K, BY_GROUP)
    c += first_channel(k, bands)
    return k, c, tap, pid // (NUM_TAPS * tiles_c * tiles_k)


@triton.jit
def share_of(split, splits, steps) -> tuple[tl.tensor, tl.tensor]:
    """The first of the steps of a unit that a split takes, and their number."""
    share = tl.cdiv(steps, splits)
    start = split * share
    return start, tl.maximum(tl.minimum(share, steps - start), 0)


@triton.jit
def steps_of(start, share, unit, num_samples, last) -> tl.tensor:
    """Steps that a split takes over all units. An incomplete last unit has `last` steps."""
    return num_samples // unit * share + tl.minimum(tl.maximum(last - start, 0), share)


@triton.jit
def first_run(
    split, splits, unit, num_samples, pixels, BLOCK_P: tl.constexpr
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """The first run of pixels of a split: sample and pixel; its runs in a unit and in all units."""
    runs = tl.cdiv(pixels, BLOCK_P)
    start, share = share_of(split, splits, unit * runs)
    n, pixel = start // runs, start % runs * BLOCK_P
    return n, pixel, share, steps_of(start, share, unit, num_samples, num_samples % unit * runs)


@triton.jit
def next_run(
    n, pixel, home, left, num_pixels, first_n, first_pixel, unit, share, BLOCK_P: tl.constexpr
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """The next run of pixels of a split: sample, first pixel, first sample of the unit, runs left.

    After `share` runs it is the first run of the next unit.
    """
    pixel += BLOCK_P
    n = tl.where(pixel < num_pixels, n, n + 1)
    pixel = tl.where(pixel < num_pixels, pixel, 0)
    left -= 1
    home = tl.where(left == 0, home + unit, home)
    n = tl.where(left == 0, home, n)
    pixel = tl.where(left == 0, first_pixel, pixel)
    return n, pixel, home, tl.where(left == 0, share, left)


@triton.jit
def first_channel(k, bands) -> tl.tensor:
    """The input channel at which the band of the block of output channel k starts (bands.py).

    `bands` are the input and output channels of a group, the first channel of the last band, the
    output channels of the map and the taps. Without bands they are None.
    """
    return 0 if bands is None else band_start(k, bands[0], bands[1], bands[2])


@triton.jit
def sums_of_split(sums_ptr, split, bands) -> tl.tensor:
    """Where the sums of a split start."""
    return sums_ptr + split.to(tl.int64) * (bands[3] * bands[4] * bands[0])


@triton.jit
def places_of(offs_k, tap, offs_c, bands) -> tuple[tl.tensor, tl.tensor]:
    """Offsets in a split of the sums of output and input channels; which are of one group.

    tap is a number, or one for each input channel.
    """
    own = offs_c[None, :] - (offs_k // bands[1] * bands[0])[:, None]
    mask = (offs_k < bands[3])[:, None] & (own >= 0) & (own < bands[0])
    return ((offs_k * bands[4])[:, None] + tap) * bands[0] + own, mask


@triton.jit
def _place_of(split, k, tap, c, bands, BY_GROUP: tl.constexpr):
    """The place of a tile in a descriptor of sums. BY_GROUP that has an axis of groups."""
    own = c - first_channel(k, bands)
    return (split, k // bands[1], k % bands[1], tap, own) if BY_GROUP else (split, k, tap, own)


@triton.jit
def load_sum(
    sums, bands, split, k, tap, c, FIRST: tl.constexpr, SWAP: tl.constexpr, MERGED: tl.constexpr,
    BY_GROUP: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The running sum [BLOCK_K, BLOCK_C] of earlier launches, 0 for FIRST; with SWAP transposed.

    `sums` are a descriptor, or a pointer where blocks have MERGED groups. BY_GROUP a tile lies in
    one group, and values beyond it are 0.
    """
    if FIRST:
        acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    elif not MERGED:
        acc = sums.load(_place_of(split, k, tap, c, bands, BY_GROUP)).reshape(BLOCK_K, BLOCK_C)
    else:
        offs_k, offs_c = k + tl.arange(0, BLOCK_K), c + tl.arange(0, BLOCK_C)
        offs, mask = places_of(offs_k, 0, offs_c, bands)
        first = sums_of_split(sums, split, bands) + tap * bands[0]
        acc = tl.load(first + offs, mask=mask, other=0.0)
    return acc.T if SWAP else acc


@triton.jit
def store_sum(
    sums, bands, acc, split, k, tap, c, SWAP: tl.constexpr, MERGED: tl.constexpr,
    BY_GROUP: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
) -> None:  # fmt: skip
    """Store the running sum, which is transposed with SWAP; only products within a group."""
    acc = acc.T if SWAP else acc
    if not MERGED:
        sums.store(_place_of(split, k, tap, c, bands, BY_GROUP), acc.reshape(sums.block_shape))
    else:
        offs_k, offs_c = k + tl.arange(0, BLOCK_K), c + tl.arange(0, BLOCK_C)
        offs, mask = places_of(offs_k, 0, offs_c, bands)
        first = sums_of_split(sums, split, bands) + tap * bands[0]
        tl.store(first + offs, acc, mask=mask)


@triton.jit
def add_products(acc, dy, x, SWAP: tl.constexpr, PRECISION: tl.constexpr) -> tl.tensor:
    """acc + dy^T x over pixels, for dy [BLOCK_P, BLOCK_K] and x [BLOCK_P, BLOCK_C].

    With SWAP acc is transposed. Of 64 channels or more the second operand should be the wider one:
    products of 64 x 128 read three quarters of the bytes of shared memory of those of 128 x 64.
    """
    if SWAP:
        acc = tl.dot(x.T, dy, acc, input_precision=PRECISION)
    else:
        acc = tl.dot(dy.T, x, acc, input_precision=PRECISION)
    return acc
