"""Convolutions of bands of a map: images with the rows beside them, padded at the map's edges."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.conv.conv_layers import PARTIAL_TOLERANCE, Layer, Shape, make, tolerance_of
from tests.kernels.numerics import poisoned, poisoned_like, rms_error
from tvdnn.graph import Op
from tvdnn.kernels.conv import conv2d as conv
from tvdnn.kernels.conv.grad_weight import launch as conv_grad_weight
from tvdnn.kernels.conv.grad_weight import split_plan as conv_grad_weight_plan
from tvdnn.kernels.conv.grad_weight.split_plan import grad_weight_plan
from tvdnn.ops.row_tiles import Halo, grad_rows_beside, rows_beside

BANDS = 3
SHAPES = {
    "first layer": Shape((1, 12, 7), (3, 20)),
    "pointers": Shape((1, 12, 5), (17, 33), (5, 3), padding=(2, 1)),
    "stride 2": Shape((1, 12, 8), (19, 10), stride=(2, 2)),
    "box": Shape((1, 6, 5), (32, 32), precision="tf32"),
    "box, stride 2": Shape((1, 12, 6), (32, 32), stride=(2, 2), precision="tf32"),
    "box, more outputs": Shape((1, 6, 5), (32, 72), precision="tf32"),
}


@pytest.fixture(autouse=True)
def plans_of_large_maps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Weight gradients are summed as for maps of that many pixels that are cut into bands."""
    monkeypatch.setattr(conv_grad_weight_plan, "SMALL_MAP", 1)
    conv_grad_weight_plan.forget()
    yield
    conv_grad_weight_plan.forget()


@pytest.fixture(params=["", "_reference"], ids=["kernels", "references"])
def suffix(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def layer(request: pytest.FixtureRequest, suffix: str, generator: torch.Generator) -> Layer:
    """References compute in float32, and so do these layers for them."""
    shape = request.param
    if generator.device.type == "cuda":
        shape = replace(shape, precision="ieee")
    return make(shape, torch.float32 if suffix else torch.bfloat16, generator)


def op_of(shape: Shape) -> Op:
    return Op("", "conv2d", (), "", (), shape.settings)


def images(maps: Tensor, halo: Halo) -> Iterator[tuple[Tensor, int]]:
    """Each band with the rows beside it that there are, and how many of these are above."""
    height, rows = maps.shape[1], maps.shape[1] // BANDS
    for start in range(0, height, rows):
        above, below = min(start, halo[0]), min(height - start - rows, halo[1])
        yield maps[:, start - above : start + rows + below], above


def bands(maps: Tensor) -> tuple[Tensor, ...]:
    return maps.split(maps.shape[1] // BANDS, 1)


def padded(shape: Shape, rows: int) -> dict[str, Any]:
    """The layer's settings with so many rows of padding more."""
    return {**shape.settings, "padding": (shape.padding[0] + rows, shape.padding[1])}


def test_forward(layer: Layer, suffix: str) -> None:
    shape, packed = layer.shape, layer.packed(layer.x.dtype)
    out, expected = poisoned_like(layer.dy), poisoned_like(layer.dy)
    halo = rows_beside(op_of(shape), shape.size[0])
    for (x, above), y in zip(images(layer.x, halo), bands(out), strict=True):
        launch = getattr(conv, "conv2d" + suffix)
        launch(x, packed, layer.bias, y, **padded(shape, -above))
    conv.conv2d_reference(layer.x, packed, layer.bias, expected, **shape.settings)
    assert rms_error(out, expected) < tolerance_of(shape, layer.x.dtype)


def test_grad_input(layer: Layer, suffix: str) -> None:
    shape, packed = layer.shape, layer.packed_grad(layer.x.dtype)
    out, expected = poisoned_like(layer.x), poisoned_like(layer.x)
    halo = grad_rows_beside(op_of(shape), shape.size[0])
    for (dy, above), dx in zip(images(layer.dy, halo), bands(out), strict=True):
        launch = getattr(conv, "conv2d_grad_input" + suffix)
        launch(dy, packed, dx, **padded(shape, shape.stride[0] * above))
    conv.conv2d_grad_input_reference(layer.dy, packed, expected, **shape.settings)
    assert rms_error(out, expected) < tolerance_of(shape, layer.x.dtype)


def test_grad_weight(layer: Layer, suffix: str) -> None:
    """Bands add to the same sums, planned alike at the edges of the map and between."""
    shape, (k, c, r, s) = layer.shape, layer.weight.shape
    own = [layer.x.shape[1] // BANDS, layer.dy.shape[1] // BANDS]
    sides = ((rows, maps.shape[2]) for rows, maps in zip(own, (layer.x, layer.dy), strict=True))
    plan = grad_weight_plan(*sides, (k, c, r, s), **shape.settings, dtype=layer.x.dtype)
    sums = poisoned((plan.splits, k, r, s, c), torch.float32, layer.x.device)
    expected = poisoned((1, k, r, s, c), torch.float32, layer.x.device)
    halo = rows_beside(op_of(shape), r)
    launch = getattr(conv_grad_weight, "conv2d_grad_weight" + suffix)
    for number, ((x, above), dy) in enumerate(
        zip(images(layer.x, halo), bands(layer.dy), strict=True)
    ):
        settings = padded(shape, -above) | {"own_rows": own[0]}
        launch(x, dy, sums, first=number == 0, **settings)
    conv_grad_weight.conv2d_grad_weight_reference(
        layer.x, layer.dy, expected, first=True, **shape.settings
    )
    assert rms_error(sums.sum(0), expected[0]) < PARTIAL_TOLERANCE
