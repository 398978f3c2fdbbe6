"""Weight and bias gradients of convolutions against references, and these against autograd."""

from dataclasses import replace
from math import ceil

import pytest
import torch

from tvdnn.kernels import conv_grad_weight, conv_tiles

from .conv_layers import (
    DTYPES,
    PARTIAL_TOLERANCE,
    RUNS,
    SHAPES,
    TOLERANCE,
    Layer,
    Shape,
    gradients,
    make,
)
from .numerics import assert_repeatable, poisoned, poisoned_like, rms_error


@pytest.fixture(params=DTYPES, ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def layer(request: pytest.FixtureRequest, dtype: torch.dtype, generator: torch.Generator) -> Layer:
    shape = request.param
    if generator.device.type == "cuda":
        shape = replace(shape, precision="ieee")
    return make(shape, dtype, generator)


def test_references_match_autograd(layer: Layer, dtype: torch.dtype) -> None:
    _, _, dweight, dbias = gradients(layer)
    shape, partials = layer.shape, layer.partials()
    conv_grad_weight.conv2d_grad_weight_reference(
        layer.x, layer.dy, partials, group=shape.group, splits=shape.splits, **shape.settings
    )
    bias_partials = poisoned((len(partials), len(dbias)), torch.float32, dbias.device)
    conv_grad_weight.conv2d_grad_bias_reference(layer.dy, bias_partials, group=shape.group)
    assert rms_error(partials.sum((0, 1)).permute(0, 3, 1, 2), dweight) < TOLERANCE[dtype]
    assert rms_error(bias_partials.sum(0), dbias) < TOLERANCE[dtype]


def test_grad_weight(layer: Layer) -> None:
    out, expected = layer.partials(), layer.partials()
    cut = {"group": layer.shape.group, "splits": layer.shape.splits}
    conv_grad_weight.conv2d_grad_weight(layer.x, layer.dy, out, **cut, **layer.shape.settings)
    conv_grad_weight.conv2d_grad_weight_reference(
        layer.x, layer.dy, expected, **cut, **layer.shape.settings
    )
    assert rms_error(out.sum(1), expected.sum(1)) < PARTIAL_TOLERANCE


@pytest.mark.parametrize("name", ["box", "box, odd channels", "box, dilated"])
def test_pointers_take_every_shape(
    name: str, dtype: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv_tiles, "capability", lambda: (8, 0))
    test_grad_weight(make(replace(SHAPES[name], precision="ieee"), dtype, generator))


def test_grad_bias(layer: Layer) -> None:
    group = layer.shape.group
    num_groups, splits = ceil(len(layer.x) / group), layer.shape.splits
    out = poisoned((num_groups, splits, layer.dy.shape[3]), torch.float32, layer.dy.device)
    expected = poisoned_like(out)
    conv_grad_weight.conv2d_grad_bias(layer.dy, out, group=group)
    conv_grad_weight.conv2d_grad_bias_reference(layer.dy, expected, group=group)
    assert rms_error(out, expected) < PARTIAL_TOLERANCE


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_runs_have_the_bits_of_the_whole(
    name: str, suffix: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Partials of samples [group, N), computed alone, are what a launch over all makes of them."""
    layer = make(RUNS[name], dtype, generator)
    group = layer.shape.group
    whole = layer.partials()
    part = poisoned_like(whole[1:])
    launch = getattr(conv_grad_weight, "conv2d_grad_weight" + suffix)
    cut = {"group": group, "splits": layer.shape.splits}
    launch(layer.x, layer.dy, whole, **cut, **layer.shape.settings)
    launch(layer.x[group:], layer.dy[group:], part, **cut, **layer.shape.settings)
    assert torch.equal(whole[1:], part)


@pytest.mark.parametrize("name", ["first layer", "box"])
def test_empty_batch(name: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    layer = make(replace(SHAPES[name], x=(0, *SHAPES[name].x[1:])), dtype, generator)
    for suffix in ("", "_reference"):
        getattr(conv_grad_weight, "conv2d_grad_weight" + suffix)(
            layer.x, layer.dy, layer.partials(), group=2, splits=1, **layer.shape.settings
        )


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["large", "small", "few channels"])
def test_repeats_to_the_bit(name: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    shape = {
        "large": Shape((16, 56, 56), (128, 256), group=4, splits=4, precision="tf32"),
        "small": Shape((64, 14, 14), (256, 256), group=64, splits=8, precision="tf32"),
        "few channels": Shape((8, 112, 112), (3, 64), group=4, splits=4, precision="tf32"),
    }[name]
    layer = make(shape, dtype, generator)
    partials = layer.partials()

    def launch() -> None:
        conv_grad_weight.conv2d_grad_weight(
            layer.x, layer.dy, partials, group=shape.group, splits=shape.splits, **shape.settings
        )

    assert_repeatable(launch, partials)
