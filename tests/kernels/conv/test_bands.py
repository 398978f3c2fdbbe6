"""Convolutions in groups by bands: what one group's channels may do to other groups."""

import pytest
import torch

from tests.kernels.conv.conv_layers import BANDS, make
from tests.kernels.numerics import poisoned_like
from tvdnn.kernels.conv import conv2d as conv
from tvdnn.kernels.conv.tiles import TILE_CHANNELS

NAMES = ("fours", "fours, stride 2", "sixty-fours", "forties", "hundred and twelves")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("special", [torch.inf, torch.nan])
def test_infinity_and_nan_stay_in_their_block(
    name: str, special: float, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Infinity times the zeros of other groups is NaN, in outputs that TILE_CHANNELS share.

    Channel 0 is in no band but that of its own group where groups have tiles of their own.
    """
    layer = make(BANDS[name], dtype, generator)
    packed, settings = layer.packed(dtype), layer.shape.settings
    before, after = poisoned_like(layer.dy), poisoned_like(layer.dy)
    conv.conv2d(layer.x, packed, layer.bias, before, **settings)
    layer.x[..., 0] = special
    conv.conv2d(layer.x, packed, layer.bias, after, **settings)
    assert not before.isnan().any()
    assert not after[..., 0].isfinite().any()
    beyond = max(TILE_CHANNELS, layer.weight.shape[0] // layer.shape.groups)
    assert torch.equal(after[..., beyond:], before[..., beyond:])


@pytest.mark.parametrize("name", NAMES)
def test_references_keep_infinity_in_its_group(
    name: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    layer = make(BANDS[name], dtype, generator)
    width = layer.weight.shape[0] // layer.shape.groups
    layer.x[..., 0] = torch.inf
    y = poisoned_like(layer.dy)
    conv.conv2d_reference(layer.x, layer.packed(dtype), layer.bias, y, **layer.shape.settings)
    assert not y[..., 0].isfinite().any()
    assert y[..., width:].isfinite().all()
