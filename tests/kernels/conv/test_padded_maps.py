"""Maps whose channels fill no whole 16 bytes, in wider ones that do: TMA moves them as others."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.conv.conv_layers import Layer, Shape, gradients, make, tolerance_of
from tests.kernels.numerics import as_range, is_poisoned_beside, poisoned, poisoned_like, rms_error
from tvdnn.kernels.conv import conv2d as conv
from tvdnn.kernels.conv.batch_stats import cell_moments_reference, moment_cells
from tvdnn.kernels.conv.grad_weight import launch as grad_weight
from tvdnn.kernels.conv.grad_weight import split_plan
from tvdnn.kernels.conv.tiles import Filter, suits_descriptors

POINTS = {"size": (1, 1), "padding": (0, 0)}
SHAPES = {
    "few channels more": Shape((2, 5, 4), (18, 18), precision="tf32"),
    "odd channels": Shape((2, 4, 5), (27, 19), precision="tf32"),
    "whole outputs": Shape((2, 4, 4), (36, 64), precision="tf32"),
    "whole inputs": Shape((3, 4, 4), (64, 30), precision="tf32"),
    "one by one": Shape((3, 5, 5), (122, 122), **POINTS, precision="tf32"),
    "one by one, stride 2": Shape((2, 6, 4), (26, 52), stride=(2, 2), **POINTS, precision="tf32"),
    "stride 2": Shape((2, 6, 4), (18, 36), stride=(2, 2), precision="tf32"),
    "dilated": Shape((1, 6, 6), (36, 20), padding=(2, 2), dilation=(2, 2), precision="tf32"),
    "many samples": Shape((19, 3, 3), (50, 61), precision="tf32"),
    "few inputs": Shape((2, 6, 6), (3, 18), precision="tf32"),
}
Made = tuple[Layer, Callable[[Tensor], Tensor]]


def padded(maps: Tensor) -> Tensor:
    """The first channels of a wider map, which is poisoned beside them; whole maps as they are."""
    after = -maps.shape[-1] % 8
    return as_range(maps, before=0, after=after) if after else maps


@pytest.fixture(params=SHAPES)
def layer(request: pytest.FixtureRequest, dtype: torch.dtype, generator: torch.Generator) -> Layer:
    return make(SHAPES[request.param], dtype, generator)


def test_results_are_autograds(layer: Layer) -> None:
    """NaN beside a map reaches no result, and nothing is written there."""
    shape, dtype = layer.shape, layer.x.dtype
    y, dx, _, _ = gradients(layer)
    found_y, found_dx = padded(poisoned_like(layer.dy)), padded(poisoned_like(layer.x))
    x, dy = padded(layer.x), padded(layer.dy)
    conv.conv2d(x, layer.packed(dtype), layer.bias, found_y, **shape.settings)
    conv.conv2d_grad_input(dy, layer.packed_grad(dtype), found_dx, **shape.settings)
    for found, exact in ((found_y, y), (found_dx, dx)):
        assert rms_error(found, exact.detach()) < tolerance_of(shape, dtype)
        assert found.is_contiguous() or is_poisoned_beside(found)


def test_gradients_of_weights_are_autograds(layer: Layer) -> None:
    shape, dtype = layer.shape, layer.x.dtype
    k, c, r, s = layer.weight.shape
    x, dy = padded(layer.x), padded(layer.dy)
    sides = (x.shape[1], x.shape[2]), (dy.shape[1], dy.shape[2])
    pitches = x.stride(2), dy.stride(2)
    plan = split_plan.grad_weight_plan(
        *sides, (k, c, r, s), **shape.settings, dtype=dtype, pitches=pitches
    )
    sums = poisoned((plan.splits, k, r, s, c), torch.float32, x.device)
    grad_weight.conv2d_grad_weight(x, dy, sums, first=True, **shape.settings)
    weight = sums.sum(0).permute(0, 3, 1, 2)
    assert rms_error(weight, gradients(layer)[2].detach()) < tolerance_of(shape, dtype)


def test_moments_are_those_of_the_stored_map(layer: Layer) -> None:
    shape, dtype = layer.shape, layer.x.dtype
    x, y = padded(layer.x), padded(poisoned_like(layer.dy))
    sides = (x.shape[1], x.shape[2]), (y.shape[1], y.shape[2])
    settings = shape.settings | {"dtype": dtype, "pitches": (x.stride(2), y.stride(2))}
    cells = moment_cells(*sides, tuple(layer.weight.shape), **settings)
    if cells is None:
        assert shape.stride == (2, 2)
        assert shape.size == (3, 3)
        return
    moments = poisoned(cells.shape(len(y), y.shape[3]), torch.float32, y.device)
    wanted = poisoned_like(moments)
    given = {"moments": moments, "cells": cells}
    conv.conv2d(x, layer.packed(dtype), layer.bias, y, **shape.settings, **given)
    cell_moments_reference(y, wanted, cells=cells)
    assert torch.equal(moments.isnan(), wanted.isnan())
    assert rms_error(moments.nan_to_num(), wanted.nan_to_num()) < 1e-6


@pytest.mark.parametrize("name", ["few channels more", "one by one", "many samples"])
def test_kernels_are_those_of_whole_channels(name: str, generator: torch.Generator) -> None:
    layer = make(SHAPES[name], torch.bfloat16, generator)
    for place, moved in ((padded, True), (torch.clone, False)):
        x, dy = place(layer.x), place(layer.dy)
        taps = sums_of(layer.shape, layer.shape.channels)
        assert suits_descriptors(x, dy, taps, "tf32") is moved
        sides = (x.shape[1], x.shape[2]), (dy.shape[1], dy.shape[2])
        pitches = x.stride(2), dy.stride(2)
        shape = split_plan.GradWeightShape(*sides, taps, x.dtype, "tf32", pitches)
        found = split_plan.work_of(shape).kernel
        if moved:
            whole = replace(shape, taps=sums_of(layer.shape, pitches))
            assert found == split_plan.work_of(whole).kernel
        else:
            assert found in ("gather", "windows")


def sums_of(shape: Shape, channels: tuple[int, int]) -> Filter:
    """The filter of the weight's gradient of a layer of these input and output channels."""
    geometry = (shape.stride, shape.padding, shape.dilation)
    weight = (*reversed(channels), *shape.size)
    return split_plan.filter_of_sums(weight, *geometry, 1, torch.bfloat16, "tf32")
