"""Depthwise convolutions that make their input of what it was normalized from.

They have the bits of the two steps: the normalized map stored, and a convolution that loads it.
"""

from math import nan
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.conv.conv_layers import PARTIAL_TOLERANCE, TOLERANCE, Layer, Shape, make
from tests.kernels.numerics import as_range, poisoned, poisoned_like, rms_error
from tvdnn.kernels.conv import depthwise as own
from tvdnn.kernels.conv import depthwise_grad_weight as sums_kernel
from tvdnn.kernels.conv import depthwise_moments as cells_of_strips
from tvdnn.kernels.conv import depthwise_strips as strips
from tvdnn.kernels.conv import depthwise_strips_grad_weight as strips_sums
from tvdnn.kernels.conv.depthwise_moments import strip_moments_reference
from tvdnn.kernels.norm.batch_norm import batch_norm
from tvdnn.kernels.norm.normalized_again import Normalized

TYPES = [torch.bfloat16, torch.float32]
SHAPES = {
    "3x3": Shape((3, 9, 11), (24, 24), groups=24),
    "3x3, wide padding": Shape((2, 4, 5), (8, 8), padding=(4, 5), groups=8),
    "3x3, stride 2": Shape((3, 7, 10), (72, 72), stride=(2, 2), groups=72),
    "5x5": Shape((2, 8, 17), (16, 16), (5, 5), padding=(2, 2), groups=16),
    "5x5, stride 2": Shape((2, 11, 9), (16, 16), (5, 5), (2, 2), (2, 2), groups=16),
    "3x5, without padding": Shape((2, 6, 9), (8, 8), (3, 5), padding=(0, 0), groups=8),
    "3x3, dilated columns": Shape((1, 5, 13), (8, 8), padding=(1, 2), dilation=(1, 2), groups=8),
    "1x1": Shape((2, 3, 4), (8, 8), (1, 1), padding=(0, 0), groups=8),
}
LAYERS = [
    *((name, "relu6") for name in SHAPES),
    *(("3x3", function) for function in own.ZERO_AT_ZERO if function != "relu6"),
    ("5x5", "silu"),
    *(("3x3, stride 2", function) for function in ("", "relu", "hardswish")),
]


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few splits and short strips, as the interpreter takes programs one by one."""
    monkeypatch.setattr(sums_kernel, "PROGRAMS", 6)
    monkeypatch.setattr(strips_sums, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(strips_sums, "LEAST_STRIP", 2)
    monkeypatch.setattr(strips_sums, "MOST_STRIP", 4)
    monkeypatch.setattr(strips, "MOST_STRIP", 4)
    monkeypatch.setattr(cells_of_strips, "MOST_STRIP", 5)


def settings_of(layer: Layer) -> dict[str, Any]:
    return {name: getattr(layer.shape, name) for name in ("stride", "padding", "dilation")}


def maker_of(channels: int, function: str, generator: torch.Generator) -> Normalized:
    """A normalization by which most of the padding would be far from 0."""
    values = torch.rand(5, channels, generator=generator, device=generator.device) + 0.5
    return Normalized(values[:3].contiguous(), values[3], values[4], function, 0.5)


def normalized(x: Tensor, made_by: Normalized) -> Tensor:
    *affine, function, coefficient = made_by
    y = poisoned_like(x)
    batch_norm(x, *affine, None, y, function=function, coefficient=coefficient)
    return y


def output_of(
    layer: Layer, x: Tensor, made_by: Normalized | None, suffix: str = "", precision: str = "ieee"
) -> Tensor:
    y, settings = poisoned_like(layer.dy), settings_of(layer) | {"precision": precision}
    packed = layer.weight[:, 0].permute(1, 2, 0).to(x.dtype).contiguous()
    launch = getattr(own, "depthwise_conv2d" + suffix)
    launch(x, packed, layer.bias, y, **settings, made_by=made_by)
    return y


def sums_of(layer: Layer, x: Tensor, made_by: Normalized | None, suffix: str = "") -> Tensor:
    (_, height, width, channels), shape = layer.dy.shape, layer.shape
    plan = sums_kernel.depthwise_plan(
        (height, width), channels, shape.size, shape.stride, shape.dilation
    )
    sums = poisoned((plan.splits, channels, *shape.size, 1), torch.float32, x.device)
    launch = getattr(sums_kernel, "depthwise_conv2d_grad_weight" + suffix)
    launch(x, layer.dy, sums, first=True, **settings_of(layer), made_by=made_by)
    return sums


@pytest.mark.parametrize(("name", "function"), LAYERS)
@pytest.mark.parametrize("dtype", TYPES)
def test_bits_are_those_of_a_stored_map(
    name: str, function: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    layer = make(SHAPES[name], dtype, generator)
    made_by = maker_of(layer.x.shape[3], function, generator)
    stored = normalized(layer.x, made_by)
    for how in ("ieee", "tf32") if dtype == torch.float32 else ("ieee",):
        found = output_of(layer, layer.x, made_by, precision=how)
        assert torch.equal(found, output_of(layer, stored, None, precision=how))
    assert torch.equal(sums_of(layer, layer.x, made_by), sums_of(layer, stored, None))


@pytest.mark.parametrize("name", SHAPES)
def test_references_make_the_same_map(name: str, generator: torch.Generator) -> None:
    layer = make(SHAPES[name], torch.bfloat16, generator)
    made_by = maker_of(layer.x.shape[3], "relu6", generator)
    x = layer.x
    exact = output_of(layer, x, made_by, "_reference")
    assert rms_error(output_of(layer, x, made_by), exact.double()) <= TOLERANCE[x.dtype]
    sums = sums_of(layer, layer.x, made_by, "_reference").sum(0)
    assert rms_error(sums_of(layer, layer.x, made_by).sum(0), sums.double()) <= PARTIAL_TOLERANCE


@pytest.mark.parametrize("name", ["3x3", "3x3, stride 2"])
def test_what_is_made_of_may_be_a_range(name: str, generator: torch.Generator) -> None:
    layer = make(SHAPES[name], torch.bfloat16, generator)
    made_by = maker_of(layer.x.shape[3], "relu", generator)
    wide = as_range(layer.x)
    assert torch.equal(output_of(layer, wide, made_by), output_of(layer, layer.x, made_by))
    assert torch.equal(sums_of(layer, wide, made_by), sums_of(layer, layer.x, made_by))


@pytest.mark.parametrize("name", SHAPES)
def test_moments_are_those_of_the_stored_map(name: str, generator: torch.Generator) -> None:
    """The kernel that makes its input leaves them, and another finds them in a map. A cut is none.

    They are about the means, which are far from 0.
    """
    layer = make(SHAPES[name], torch.bfloat16, generator)
    channels, geometry = layer.x.shape[3], settings_of(layer)
    made_by = maker_of(channels, "relu6", generator)
    cells = own.depthwise_cells(
        layer.dy.shape[1:3], (channels, 1, *layer.shape.size), geometry["stride"],
        geometry["dilation"], layer.x.dtype,
    )  # fmt: skip
    assert (cells is None) == ("stride" in name)
    if cells is None:
        return
    packed = layer.weight[:, 0].permute(1, 2, 0).to(layer.x.dtype).contiguous()
    bias = layer.bias + 30
    found = []
    for x, maker in ((layer.x, made_by), (normalized(layer.x, made_by), None)):
        for cut in (0, 1):
            y, shape = poisoned_like(layer.dy), cells.shape(len(x), channels)
            moments = poisoned(shape, torch.float32, x.device)
            for part in (slice(0, cut), slice(cut, len(x))):
                left = {"moments": moments[part], "cells": cells, "made_by": maker}
                settings = {**geometry, "precision": "ieee", **left}
                own.depthwise_conv2d(x[part], packed, bias, y[part], **settings)
            found.append(moments)
    assert all(torch.equal(each, found[0]) for each in found)
    exact = poisoned_like(found[0])
    strip_moments_reference(y, exact, cells=cells)
    assert torch.allclose(found[0], exact, rtol=1e-4, atol=1e-4)


def test_nan_stays_where_its_windows_are(generator: torch.Generator) -> None:
    layer = make(SHAPES["3x3"], torch.bfloat16, generator)
    layer.x[0, 4, 5, 3] = nan
    y = output_of(layer, layer.x, maker_of(24, "relu6", generator)).isnan()
    assert y[0, 3:6, 4:7, 3].all()
    assert int(y.sum()) == 9


def test_which_layers_make_their_input() -> None:
    def makes(function: str, size: int = 3, stride: int = 1, channels: int = 96) -> bool:
        made: bool = own.makes_depthwise_input(
            (channels, 1, size, size), (stride, stride), (1, 1), maker="normalize",
            function=function,
        )  # fmt: skip
        return made

    assert makes("silu")
    assert makes("relu6", 5, 2)
    assert not makes("silu", 5, 2)
    assert not makes("sigmoid")  # of 0, which inputs on padding are, it is 0.5
    assert not makes("relu", 7)
    assert not makes("relu", channels=122)
    assert not own.makes_depthwise_input((96, 1, 3, 3), (1, 1), (1, 1), maker="gate")
