"""Convolutions of few channels, by windows of rows, against references and against themselves."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.conv.conv_layers import DTYPES, Layer, Shape, make, tolerance_of
from tests.kernels.conv.test_conv2d import in_and_out_of, pooled
from tests.kernels.numerics import as_range, is_poisoned_beside, poisoned_like, rms_error
from tvdnn.kernels.conv import conv2d as conv
from tvdnn.kernels.conv.bands import filter_of, packed_channels
from tvdnn.kernels.conv.tiles import Filter
from tvdnn.kernels.conv.windows_tile import WindowsTile, overlapping_box, windows_tile

BF16 = torch.bfloat16
SHAPES = {
    "first layer": Shape((2, 33, 32), (3, 64), (7, 7), (2, 2), (3, 3), precision="tf32"),
    "first layer, odd sides": Shape((3, 18, 34), (3, 20), stride=(2, 2), precision="tf32"),
    "filter 5, stride 4": Shape((1, 31, 36), (3, 64), (5, 5), (4, 4), (2, 2), precision="tf32"),
    "16 channels": Shape((3, 14, 16), (16, 20), precision="tf32"),
    "24 channels": Shape((3, 16, 16), (24, 24), precision="tf32"),
    "32 channels": Shape((2, 9, 7), (32, 36), precision="tf32"),
    "uneven": Shape((2, 9, 10), (16, 48), (3, 5), padding=(0, 1), precision="tf32"),
    "more padding than taps": Shape((2, 6, 8), (24, 16), (2, 2), padding=(3, 4), precision="tf32"),
    "many samples": Shape((19, 4, 4), (24, 32), precision="tf32"),
}
# In float32, 32 channels fill a step of products, and the other has few elements in a filter.
NOT_FLOAT32 = ("32 channels", "first layer, odd sides")
CASES = [
    (name, each) for name in SHAPES for each in DTYPES if each == BF16 or name not in NOT_FLOAT32
]
AT_STRIDE_1 = [(name, dtype) for name, dtype in CASES if SHAPES[name].stride == (1, 1)]


def taps_of(shape: Shape, dtype: torch.dtype = BF16) -> Filter:
    geometry = {name: getattr(shape, name) for name in ("size", "stride", "padding", "dilation")}
    band = packed_channels(shape.channels, 1, dtype, "tf32")
    return filter_of(shape.channels, 1, band, **geometry)


def windows_of(shape: Shape, dtype: torch.dtype) -> WindowsTile | None:
    return windows_tile(taps_of(shape, dtype), dtype, shape.precision, shape.x[2])


def padded(maps: Tensor) -> Tensor:
    """A copy whose pixels are padded to whole 16 bytes by NaN."""
    return as_range(maps, before=0, after=-maps.shape[3] % (16 // maps.itemsize))


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}, {case[1]}")
def layer(request: pytest.FixtureRequest, generator: torch.Generator) -> Layer:
    name, dtype = request.param
    assert windows_of(SHAPES[name], dtype) is not None
    return make(SHAPES[name], dtype, generator)


def test_outputs(layer: Layer) -> None:
    dtype = layer.x.dtype
    y, expected = poisoned_like(layer.dy), poisoned_like(layer.dy)
    for launch, out in ((conv.conv2d, y), (conv.conv2d_reference, expected)):
        launch(layer.x, layer.packed(dtype), layer.bias, out, **layer.shape.settings)
    assert rms_error(y, expected) < tolerance_of(layer.shape, dtype)
    one = poisoned_like(layer.dy[-1:])
    conv.conv2d(layer.x[-1:], layer.packed(dtype), layer.bias, one, **layer.shape.settings)
    assert torch.equal(one, y[-1:])


def test_epilogues_and_ranges_have_the_bits_of_separate_kernels(layer: Layer) -> None:
    even = (layer.dy.shape[1] // 2 * 2, layer.dy.shape[2] // 2 * 2)
    plain, settings = poisoned_like(layer.dy), layer.shape.settings
    conv.conv2d(layer.x, layer.packed(layer.x.dtype), layer.bias, plain, **settings)
    (y, dx, maxima), codes = in_and_out_of(layer, torch.clone)
    assert torch.equal(y, plain.relu())
    expected, expected_codes = pooled(plain[:, : even[0], : even[1]].relu())
    if maxima.shape == expected.shape:
        assert torch.equal(maxima, expected)
        assert torch.equal(codes, expected_codes)
    ranges, range_codes = in_and_out_of(layer, as_range)
    assert torch.equal(range_codes, codes)
    pads, _ = in_and_out_of(layer, padded)
    for part, whole in zip(pads, (y, dx, maxima), strict=True):
        assert torch.equal(part, whole)
    for part, whole in zip(ranges, (y, dx, maxima), strict=True):
        assert torch.equal(part, whole)
        assert is_poisoned_beside(part)


@pytest.mark.parametrize(("name", "dtype"), AT_STRIDE_1)
def test_data_gradients(name: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    layer = make(SHAPES[name], dtype, generator)
    dx, expected = poisoned_like(layer.x), poisoned_like(layer.x)
    for launch, out in ((conv.conv2d_grad_input, dx), (conv.conv2d_grad_input_reference, expected)):
        launch(layer.dy, layer.packed_grad(dtype), out, mask=layer.x, **layer.shape.settings)
    assert rms_error(dx, expected) < tolerance_of(layer.shape, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_reach_no_other_group_of_outputs(
    dtype: torch.dtype, generator: torch.Generator
) -> None:
    """A pixel of NaN makes NaN of the outputs that read it and of those beside them in a group."""
    shape = replace(SHAPES["24 channels"], x=(1, 16, 16))
    layer = make(shape, dtype, generator)
    layer.x[0, 8, 8] = torch.nan
    y = poisoned_like(layer.dy)
    conv.conv2d(layer.x, layer.packed(dtype), None, y, **shape.settings)
    tile = windows_of(shape, dtype)
    assert tile is not None
    assert tile.window.outputs == 2
    rows, columns = y.isnan().any(3)[0].nonzero().unbind(1)
    assert rows.unique().tolist() == [7, 8, 9]
    assert columns.unique().tolist() == [6, 7, 8, 9]


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_are_of_few_channels_and_no_exact_products(dtype: torch.dtype) -> None:
    narrow = SHAPES["24 channels"]
    assert windows_of(narrow, dtype) is not None
    assert (windows_of(replace(narrow, precision="ieee"), dtype) is not None) is (dtype == BF16)
    assert (windows_of(SHAPES["32 channels"], dtype) is not None) is (dtype == BF16)
    assert windows_of(Shape((1, 8, 8), (64, 64), precision="tf32"), dtype) is None
    one_by_one = Shape((1, 8, 8), (24, 24), (1, 1), padding=(0, 0), precision="tf32")
    assert windows_of(one_by_one, dtype) is None


def test_boxes_overlap_within_a_sample() -> None:
    """They have more samples only where one sample fills few of them."""
    assert overlapping_box(112, 56, 128) == (1, 16, 8)
    assert overlapping_box(7, 4, 64) == (2, 8, 4)
    assert overlapping_box(1, 1, 64) == (64, 1, 1)
