"""Forward and data-gradient convolution kernels against references, and these against autograd."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv_transpose2d, max_pool2d

from tests.kernels.conv.conv_layers import (
    BANDS,
    RUNS,
    SHAPES,
    Layer,
    Shape,
    gradients,
    make,
    tolerance_of,
)
from tests.kernels.numerics import (
    as_range,
    is_poisoned_beside,
    poisoned,
    poisoned_like,
    randn,
    rms_error,
)
from tvdnn.kernels.codec.sign_bits import packed_signs_reference
from tvdnn.kernels.conv import conv2d as conv
from tvdnn.kernels.conv import tiles as conv_tiles
from tvdnn.kernels.conv.bands import band_channels
from tvdnn.kernels.conv.grad_bias import sum_cells_reference
from tvdnn.kernels.conv.pack_weight import (
    pack_weight,
    pack_weight_grad_input,
    pack_weight_grad_input_reference,
    pack_weight_reference,
)
from tvdnn.kernels.conv.tiles import box_of


def test_references_match_autograd(layer: Layer, dtype: torch.dtype) -> None:
    y, dx, _, _ = (gradient.detach() for gradient in gradients(layer))
    settings = layer.shape.settings
    out, dx_out = poisoned_like(layer.dy), poisoned_like(layer.x)
    conv.conv2d_reference(layer.x, layer.packed(dtype), layer.bias, out, **settings)
    conv.conv2d_grad_input_reference(layer.dy, layer.packed_grad(dtype), dx_out, **settings)
    tolerance = tolerance_of(layer.shape, dtype)
    assert rms_error(out, y) < tolerance
    assert rms_error(dx_out, dx) < tolerance


def test_forward(layer: Layer, dtype: torch.dtype) -> None:
    packed = layer.packed(dtype)
    for bias in (layer.bias, None):
        out, expected = poisoned_like(layer.dy), poisoned_like(layer.dy)
        conv.conv2d(layer.x, packed, bias, out, **layer.shape.settings)
        conv.conv2d_reference(layer.x, packed, bias, expected, **layer.shape.settings)
        assert rms_error(out, expected) < tolerance_of(layer.shape, dtype)


def test_grad_input(layer: Layer, dtype: torch.dtype) -> None:
    packed = layer.packed_grad(dtype)
    out, expected = poisoned_like(layer.x), poisoned_like(layer.x)
    conv.conv2d_grad_input(layer.dy, packed, out, **layer.shape.settings)
    conv.conv2d_grad_input_reference(layer.dy, packed, expected, **layer.shape.settings)
    assert rms_error(out, expected) < tolerance_of(layer.shape, dtype)


@pytest.mark.parametrize(
    "name", ["stride 2", "stride beyond filter", "groups", "box", "fours, stride 2"]
)
def test_transposed_with_a_bias(name: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Torch's transposed convolution may have a row and a column that no window reaches."""
    layer = make(replace(SHAPES[name], precision="ieee"), dtype, generator)
    shape, samples = layer.shape, len(layer.x)
    geometry = (shape.stride, shape.padding, (shape.stride[0] - 1,) * 2, shape.groups)
    dy, channels = layer.dy.double().permute(0, 3, 1, 2), layer.x.shape[3]
    bias = randn((channels,), torch.float32, generator)
    exact = conv_transpose2d(dy, layer.weight.double(), bias.double(), *geometry, shape.dilation)
    wanted = exact.permute(0, 2, 3, 1)
    for launch in (conv.conv2d_grad_input, conv.conv2d_grad_input_reference):
        out = poisoned((samples, *wanted.shape[1:]), dtype, wanted.device)
        launch(layer.dy, layer.packed_grad(dtype), out, bias=bias, **shape.settings)
        assert rms_error(out, wanted) < tolerance_of(shape, dtype)


@pytest.mark.parametrize("name", ["box", "box, odd channels", "box, dilated", "eights", "wide"])
def test_pointers_take_every_shape(
    name: str, dtype: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv_tiles, "capability", lambda: (8, 0))
    layer = make(replace(SHAPES[name], precision="ieee"), dtype, generator)
    test_forward(layer, dtype)
    test_grad_input(layer, dtype)


FUSED = [
    *("first layer", "stride 2", "groups", "box", "box, odd channels", "box, one by one"),
    *("eights", "fours, stride 2", "eights, stride 2"),
]


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("name", FUSED)
def test_fused_relu_is_separate_relu(
    name: str, suffix: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    layer = make(SHAPES[name], dtype, generator)
    launch, packed = getattr(conv, "conv2d" + suffix), layer.packed(dtype)
    separate, fused = poisoned_like(layer.dy), poisoned_like(layer.dy)
    launch(layer.x, packed, layer.bias, separate, **layer.shape.settings)
    launch(layer.x, packed, layer.bias, fused, relu=True, **layer.shape.settings)
    assert (separate < 0).any()
    assert torch.equal(fused, separate.relu())


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("name", [*FUSED, "box, stride 2", "box, one by one, stride 2"])
def test_fused_mask_is_separate_mask(
    name: str, suffix: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """A map masks, and its sign bits mask alike. NaN lets pass."""
    layer = make(SHAPES[name], dtype, generator)
    mask = layer.x.relu()
    mask.view(-1)[::13] = torch.nan
    launch, packed = getattr(conv, "conv2d_grad_input" + suffix), layer.packed_grad(dtype)
    separate, fused = poisoned_like(layer.x), poisoned_like(layer.x)
    launch(layer.dy, packed, separate, **layer.shape.settings)
    expected = separate.masked_fill(mask <= 0, 0)
    launch(layer.dy, packed, fused, mask=mask, **layer.shape.settings)
    assert torch.equal(fused, expected)
    if mask.shape[3] % 8 == 0:
        fused.fill_(torch.nan)
        bits = packed_signs_reference(mask)
        launch(layer.dy, packed, fused, mask=bits, **layer.shape.settings)
        assert torch.equal(fused, expected)


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize(
    "name", ["stride 2", "box", "box, odd channels", "box, one by one", "eights"]
)
def test_sums_of_cells_are_those_of_what_is_stored(
    name: str, suffix: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    layer = make(replace(SHAPES[name], x=(2, 8, 16)), dtype, generator)
    launch, packed = getattr(conv, "conv2d_grad_input" + suffix), layer.packed_grad(dtype)
    plain, dx = poisoned_like(layer.x), poisoned_like(layer.x)
    launch(layer.dy, packed, plain, mask=layer.x, **layer.shape.settings)
    for cell in (2, 4, 8):
        shape = (2, 8 // cell, 16 // cell, dx.shape[3])
        sums, expected = (poisoned(shape, torch.float32, dx.device) for _ in range(2))
        launch(layer.dy, packed, dx, mask=layer.x, sums=sums, **layer.shape.settings)
        sum_cells_reference(plain, expected)
        assert torch.equal(dx, plain)
        assert torch.equal(sums, expected)
        if dx.shape[3] % 8 == 0:
            bits, by_bits = packed_signs_reference(layer.x), poisoned_like(sums)
            launch(layer.dy, packed, dx, mask=bits, sums=by_bits, **layer.shape.settings)
            assert torch.equal(by_bits, expected)


def pooled(y: Tensor) -> tuple[Tensor, Tensor]:
    """Maxima of windows 2x2 and their places by PyTorch's pooling, coded in 2 bits a channel."""
    maxima, places = max_pool2d(y.float().permute(0, 3, 1, 2), 2, return_indices=True)
    row, column = places // y.shape[2], places % y.shape[2]
    taps = (row % 2 * 2 + column % 2).permute(0, 2, 3, 1).unflatten(3, (-1, 4))
    codes = sum(taps[..., i] << 2 * i for i in range(4))
    return maxima.permute(0, 2, 3, 1).to(y.dtype), codes.to(torch.uint8)


def with_whole_bytes(shape: Shape) -> Shape:
    """The shape with output channels whose codes fill bytes."""
    c, k = shape.channels
    step = 4 * shape.groups
    return replace(shape, channels=(c, -(-k // step) * step))


@pytest.mark.parametrize(
    ("name", "relu"), [*((name, True) for name in FUSED), ("uneven", False), ("box", False)]
)
@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_fused_pooling_is_separate_pooling(
    name: str, suffix: str, relu: bool, dtype: torch.dtype, generator: torch.Generator
) -> None:
    layer = make(with_whole_bytes(SHAPES[name]), dtype, generator)
    layer.x[-1, -1, -1, 0] = torch.nan
    packed, settings = layer.packed(dtype), layer.shape.settings
    whole = poisoned_like(layer.dy)
    launch = getattr(conv, "conv2d" + suffix)
    launch(layer.x, packed, layer.bias, whole, relu=relu, **settings)
    maxima, codes = pooled(whole)
    y, y_codes = poisoned_like(maxima), torch.full_like(codes, 0xA5)
    launch = getattr(conv, "conv2d_max_pool" + suffix)
    launch(layer.x, packed, layer.bias, y, y_codes, relu=relu, **settings)
    assert torch.equal(y.nan_to_num(), maxima.nan_to_num())
    assert torch.equal(y.isnan(), maxima.isnan())
    assert torch.equal(y_codes, codes)


@pytest.mark.parametrize("groups", [1, 3])
def test_packing_is_exact(groups: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    weight = randn((6, 5, 3, 2), torch.float32, generator)
    for source in (weight, weight.to(memory_format=torch.channels_last), weight[:, 1:, :, ::2]):
        k, c, r, s = source.shape
        packed = poisoned((k, r, s, c), dtype, weight.device)
        expected = poisoned_like(packed)
        pack_weight(source, packed, groups=groups)
        pack_weight_reference(source, expected, groups=groups)
        assert torch.equal(packed, expected)
        packed = poisoned((c * groups, r, s, k // groups), dtype, weight.device)
        expected = poisoned_like(packed)
        pack_weight_grad_input(source, packed, groups=groups)
        pack_weight_grad_input_reference(source, expected, groups=groups)
        assert torch.equal(packed, expected)


@pytest.mark.parametrize("name", BANDS)
def test_bands_are_packed_with_zeros_between_groups(
    name: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    shape = BANDS[name]
    layer = make(shape, dtype, generator)
    packings = (
        (pack_weight, layer.packed(dtype)),
        (pack_weight_grad_input, layer.packed_grad(dtype)),
    )
    for launch, expected in packings:
        packed = poisoned_like(expected)
        launch(layer.weight, packed, groups=shape.groups)
        assert torch.equal(packed, expected)
        values, own = (each[each != 0].sort().values for each in (packed, layer.weight.to(dtype)))
        assert torch.equal(values, own)


@pytest.mark.parametrize(
    ("channels", "groups", "dtype", "band"),
    [
        ((128, 128), 32, torch.bfloat16, 64),  # ResNeXt-50 from its first stage
        ((1024, 1024), 32, torch.bfloat16, 64),  # to its last
        ((216, 216), 9, torch.bfloat16, 128),  # RegNetY-3.2GF: 64 channels lie in up to four groups
        ((448, 448), 8, torch.bfloat16, 64),  # RegNetY-8GF: groups have tiles of their own
        ((224, 224), 2, torch.bfloat16, 128),  # RegNetY-16GF
        ((528, 528), 2, torch.bfloat16, 320),  # RegNetY-128GF
        ((720, 720), 10, torch.float32, 96),
        ((88, 88), 2, torch.bfloat16, 128),  # 44 channels: descriptors of a group are not aligned
        ((96, 96), 3, torch.float32, 64),
        ((256, 256), 2, torch.float32, 128),
        ((64, 64), 1, torch.bfloat16, 64),
        ((24, 24), 3, torch.bfloat16, 8),  # fewer than 32 outputs take pointers
        ((100, 100), 25, torch.bfloat16, 4),  # TMA moves multiples of 16 bytes
    ],
)
def test_bands_hold_the_groups_of_a_block(
    channels: tuple[int, int], groups: int, dtype: torch.dtype, band: int
) -> None:
    assert band_channels(channels, groups, dtype, "tf32") == band
    width = channels[0] // groups
    assert band_channels(channels, groups, torch.float32, "ieee") == width


POINTS = {"size": (1, 1), "padding": (0, 0), "precision": "tf32"}
RANGES = {
    "few channels": Shape((1, 9, 8), (5, 16), stride=(2, 2), precision="tf32"),
    "groups": Shape((1, 4, 4), (40, 16), groups=2),
    "eights": Shape((1, 4, 4), (104, 104), groups=13, precision="tf32"),
    "eights, one block": Shape((1, 4, 4), (48, 48), stride=(2, 2), groups=6, precision="tf32"),
    "fours, stride 2": Shape((1, 4, 4), (128, 128), stride=(2, 2), groups=32, precision="tf32"),
    "forties": Shape((1, 4, 4), (80, 80), groups=2, precision="tf32"),
    "hundred and twelves": Shape((1, 4, 4), (224, 224), groups=2, precision="tf32"),
    "stride 2": Shape((1, 7, 6), (19, 12), stride=(2, 2)),
    "box": Shape((1, 4, 4), (64, 64), precision="tf32"),
    "box, stride 2": Shape((1, 4, 4), (64, 64), (2, 2), (2, 2), (0, 0), precision="tf32"),
    "box, odd channels": Shape((2, 5, 3), (32, 40), **POINTS),
    "box, one by one, stride 2": Shape((2, 6, 5), (64, 32), stride=(2, 2), **POINTS),
}


def in_and_out_of(layer: Layer, place: Callable[[Tensor], Tensor]) -> tuple[list[Tensor], Tensor]:
    """The launchers' results and codes, of maps that lie where `place` puts them."""
    settings, like_x, like_y = layer.shape.settings, poisoned_like(layer.x), poisoned_like(layer.dy)
    x, dy, mask = (place(maps) for maps in (layer.x, layer.dy, layer.x.relu()))
    y, dx, maxima = (place(maps) for maps in (like_y, like_x, like_y[:, 1::2, 1::2]))
    packed, bias = layer.packed(x.dtype), layer.bias
    codes = torch.zeros(*maxima.shape[:3], y.shape[3] // 4, dtype=torch.uint8, device=y.device)
    conv.conv2d(x, packed, bias, y, relu=True, **settings)
    conv.conv2d_max_pool(x, packed, bias, maxima, codes, **settings)
    conv.conv2d_grad_input(dy, layer.packed_grad(x.dtype), dx, mask=mask, **settings)
    return [y, dx, maxima], codes


@pytest.mark.parametrize("name", RANGES)
def test_ranges_of_wider_maps(name: str, generator: torch.Generator) -> None:
    """Ranges have the bits of maps of their own. Nothing beside them is read or written."""
    layer = make(RANGES[name], torch.bfloat16, generator)
    expected, expected_codes = in_and_out_of(layer, torch.clone)
    made, codes = in_and_out_of(layer, as_range)
    assert torch.equal(codes, expected_codes)
    for part, whole in zip(made, expected, strict=True):
        assert torch.equal(part, whole)
        assert is_poisoned_beside(part)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_runs_have_the_bits_of_the_whole(
    name: str, suffix: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Samples [group, N) have the same bits computed alone as in a launch over all samples."""
    layer = make(RUNS[name], dtype, generator)
    settings, group = layer.shape.settings, layer.shape.group
    x, dy = layer.x[group:], layer.dy[group:]

    def launch(name: str, *arguments: object) -> None:
        getattr(conv, name + suffix)(*arguments, **settings)

    whole, part = poisoned_like(layer.dy), poisoned_like(dy)
    launch("conv2d", layer.x, layer.packed(dtype), layer.bias, whole)
    launch("conv2d", x, layer.packed(dtype), layer.bias, part)
    assert torch.equal(whole[group:], part)
    whole, part = poisoned_like(layer.x), poisoned_like(x)
    launch("conv2d_grad_input", layer.dy, layer.packed_grad(dtype), whole)
    launch("conv2d_grad_input", dy, layer.packed_grad(dtype), part)
    assert torch.equal(whole[group:], part)


@pytest.mark.parametrize("name", ["first layer", "box"])
def test_empty_batch(name: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    layer = make(replace(SHAPES[name], x=(0, *SHAPES[name].x[1:])), dtype, generator)
    settings, device = layer.shape.settings, generator.device
    room = [poisoned((1, *maps.shape[1:]), dtype, device) for maps in (layer.dy, layer.x)]
    y, dx = (each[:0] for each in room)
    for suffix in ("", "_reference"):
        getattr(conv, "conv2d" + suffix)(layer.x, layer.packed(dtype), layer.bias, y, **settings)
        getattr(conv, "conv2d_grad_input" + suffix)(
            layer.dy, layer.packed_grad(dtype), dx, **settings
        )
    assert all(each.isnan().all() for each in room)


def test_boxes_waste_little() -> None:
    for height in (224, 112, 56, 28, 14):
        samples, rows, columns = box_of(height, height, 256)
        assert samples * rows * columns == 256
        assert height % rows == 0
        assert height % columns == 0
    assert box_of(7, 7, 256) == (32, 1, 8)
