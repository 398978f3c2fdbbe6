"""Normalized maps and gradients of numbers of channels that are no power of two."""

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import as_range, is_poisoned_beside, poisoned_like, randn, rms_error
from tvdnn.kernels.norm.batch_norm import batch_norm, batch_norm_reference
from tvdnn.kernels.norm.batch_norm_grad import (
    batch_norm_grad_input,
    batch_norm_grad_input_reference,
)
from tvdnn.kernels.norm.written_tiles import written_tiles

SHAPES = [(3, 9, 7, 24), (2, 61, 61, 72), (3, 7, 5, 122), (2, 11, 11, 40), (2, 3, 3, 624), (5, 19)]
TOLERANCE = 5e-3


def normalize(reference: bool, function: str, x: Tensor, y: Tensor, by: Tensor) -> None:
    run = batch_norm_reference if reference else batch_norm
    run(x, by[:3], by[3], by[4], None, y, function=function)


def differentiate(
    reference: bool, function: str, x: Tensor, dy: Tensor, dx: Tensor, by: Tensor
) -> None:
    run = batch_norm_grad_input_reference if reference else batch_norm_grad_input
    run(x, dy, by[:3], by[3], by[4], by[5], by[6], dx, rows=100, function=function)


@pytest.mark.parametrize("function", ["", "relu", "silu", "hardswish"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_samples_alone_and_ranges_have_the_bits_of_the_batch(
    shape: tuple[int, ...], function: str, generator: torch.Generator
) -> None:
    """The whole batch is near the reference."""
    x, dy = (randn(shape, torch.bfloat16, generator) for _ in range(2))
    by = randn((7, shape[-1]), torch.float32, generator).abs_()
    y, dx, exact_y, exact_dx, part_y, part_dx = (poisoned_like(x) for _ in range(6))
    normalize(False, function, x, y, by)
    differentiate(False, function, x, dy, dx, by)
    normalize(True, function, x, exact_y, by)
    differentiate(True, function, x, dy, exact_dx, by)
    assert rms_error(y, exact_y) <= TOLERANCE
    assert rms_error(dx, exact_dx) <= TOLERANCE
    samples = (each.split(1) for each in (x, dy, part_y, part_dx))
    for given, grad, out, out_grad in zip(*samples, strict=True):
        normalize(False, function, given, out, by)
        differentiate(False, function, given, grad, out_grad, by)
    assert torch.equal(part_y, y)
    assert torch.equal(part_dx, dx)
    wide_y, wide_dx = as_range(poisoned_like(x)), as_range(poisoned_like(x))
    normalize(False, function, as_range(x), wide_y, by)
    differentiate(False, function, x, as_range(dy), wide_dx, by)
    assert torch.equal(wide_y, y)
    assert torch.equal(wide_dx, dx)
    assert is_poisoned_beside(wide_y)
    assert is_poisoned_beside(wide_dx)


def test_rows_hold_several_pixels_where_channels_fill_no_power_of_two() -> None:
    """Also with a tail: the last row of a map is not full. Ranges and sign bits have pixels."""
    maps = torch.empty(2, 61, 61, 72, dtype=torch.bfloat16, device="meta")
    tile = written_tiles(maps, maps, None)
    assert (tile.width, tile.pitches) == (28 * 72, (28 * 72, 28 * 72, 0))
    assert tile.constants["RUNS"]
    assert written_tiles(maps, maps, signs=True).width == 72
    assert written_tiles(maps, as_meta_range(maps)).width == 72
    wide = torch.empty(2, 7, 7, 960, dtype=torch.bfloat16, device="meta")
    assert written_tiles(wide, wide).width == 960


def as_meta_range(maps: Tensor) -> Tensor:
    return torch.empty(*maps.shape[:-1], 144, dtype=maps.dtype, device="meta")[..., :72]
