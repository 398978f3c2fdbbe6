"""Dropout of whole channels, of whole samples, or of the whole batch, without a stored mask.

Each block draws once, by its index in the whole batch. Dropout2d (Tompson et al. 2015) has a block
for each channel of a sample. Stochastic depth (Huang et al. 2016) has one for each sample ("row")
or one for the batch ("batch").
"""

from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.channel_chunks import chunk_place, launch_chunks
from ..language.channel_ranges import pitch_of
from ..language.philox import ROUNDS, random_words, random_words_reference
from ..language.rounding import stored, stored_reference
from .dropout import scale_of

PARTS: Final = ("channel", "row", "batch")
DRAW_BITS: Final = tl.constexpr(24)


class Drop(NamedTuple):
    """A draw for each part of a batch: the arguments of `dropout_parts` and the seed."""

    seed: Tensor
    part: str
    p: float
    op_id: int
    first_sample: int


@triton.jit
def kept_channels(
    seed_ptr, sample, c, channels, first_sample, op_id, least,
    PART: tl.constexpr, ROUNDS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Whether channels c [1, CHANNELS] of a sample of a launch are kept."""
    index = tl.zeros(c.shape, tl.int64)
    if PART == "row":
        index += first_sample + sample
    if PART == "channel":
        index += (first_sample + sample) * channels + c
    word, _, _, _ = random_words(seed_ptr, index, op_id, ROUNDS)
    return (word >> (32 - DRAW_BITS)).to(tl.int32) >= least


@triton.jit(do_not_specialize=["pixels", "first_sample", "op_id", "least", "chunks", "chunk"])
def _drop_parts_kernel(
    x_ptr, y_ptr, seed_ptr, pixels, channels, x_pitch, y_pitch,
    first_sample, op_id, least, scale, chunks, chunk,
    PART: tl.constexpr, PRECISION: tl.constexpr, ROUNDS: tl.constexpr, PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    sample, start, stop, p, c = chunk_place(pixels, chunks, chunk, PIXELS, CHANNELS)
    keep = kept_channels(seed_ptr, sample, c, channels, first_sample, op_id, least, PART, ROUNDS)
    for first in range(start, stop, PIXELS):
        mask = (first + p < stop) & (c < channels)
        row = sample * pixels + first + p
        x = tl.load(x_ptr + (row * x_pitch + c), mask=mask, other=0.0).to(tl.float32)
        y = stored(tl.where(keep, x * scale, 0.0), y_ptr.dtype.element_ty, PRECISION)
        tl.store(y_ptr + (row * y_pitch + c), y, mask=mask)


def dropout_parts(
    x: Tensor, y: Tensor, seed: Tensor, *,
    part: str, p: float, op_id: int, first_sample: int, precision: str = "ieee",
) -> None:  # fmt: skip
    """y = 0 with probability p, else x / (1 - p). The same call on dy gives dx. y may be x.

    x is [N, P, C], of a map or a range. `part`, one of PARTS, is what is dropped together. `seed`,
    `op_id` and `first_sample` are those of `dropout`.
    """
    if x.numel():
        sizes, constants = arguments_of(Drop(seed, part, p, op_id, first_sample))
        pitches, constants = (pitch_of(x), pitch_of(y)), constants | {"PRECISION": precision}
        launch_chunks(_drop_parts_kernel, x, (x, y, seed), *pitches, *sizes, **constants)


def arguments_of(drop: Drop | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """First sample, number of the op, least draw and factor of a kernel, and its constants."""
    if drop is None:
        return (0, 0, 0, 1.0), {"PART": "", "ROUNDS": ROUNDS}
    sizes = (drop.first_sample, drop.op_id, _least_kept(drop.p), scale_of(drop.p))
    return sizes, {"PART": drop.part, "ROUNDS": ROUNDS}


def _least_kept(p: float) -> int:
    """The least draw of DRAW_BITS bits whose block is kept."""
    return round(p * (1 << DRAW_BITS.value))


def dropout_parts_reference(
    x: Tensor, y: Tensor, seed: Tensor, *,
    part: str, p: float, op_id: int, first_sample: int, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `dropout_parts` in torch, with the same mask."""
    samples, _, channels = x.shape
    index = torch.zeros(samples, 1, channels, dtype=torch.int64, device=x.device)
    if part != "batch":
        index += torch.arange(first_sample, first_sample + samples, device=x.device)[:, None, None]
    if part == "channel":
        index = index * channels + torch.arange(channels, device=x.device)
    word = random_words_reference(index, op_id, seed)[0]
    keep = (word >> 32 - DRAW_BITS.value) >= _least_kept(p)
    scaled = x.float() * scale_of(p)
    dropped = torch.where(keep, scaled, torch.zeros_like(scaled))
    y.copy_(stored_reference(dropped, y.dtype, precision))
