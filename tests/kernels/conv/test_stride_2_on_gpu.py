"""Layers of few channels at stride 2, which specialized warps compute on Hopper.

Their boxes are wider than a pixel has channels. What lies behind must read as zeros.
"""

from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from tests.kernels.conv.conv_layers import TOLERANCE, Layer, Pair, Shape, gradients, make
from tests.kernels.numerics import as_range, is_poisoned_beside, poisoned_like, rms_error
from tvdnn.kernels.conv import conv2d as conv
from tvdnn.kernels.language.gluon import available

pytestmark = pytest.mark.gpu
LAYERS = [
    ((48, 48), 6),
    ((72, 72), 3),
    ((24, 96), 1),
    ((48, 192), 1),
    ((32, 64), 1),
    ((120, 72), 1),
    ((104, 104), 13),
    ((80, 80), 2),
]
OTHERS = [((32, 64), 1), ((24, 96), 1)]  # by products of windows of rows, and by pointers
SIDES = [(28, 36), (2, 2), (30, 10), (6, 110)]
ODD_SIDES = [(27, 36), (28, 35), (13, 13)]  # of which odd columns or rows are fewer: by pointers
HALF = torch.bfloat16


@pytest.fixture(params=LAYERS, ids=str)
def kind(request: pytest.FixtureRequest) -> tuple[Pair, int]:
    return request.param


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts the launches of specialized warps."""
    counted = Mock(wraps=conv.launch_specialized)
    monkeypatch.setattr(conv, "launch_specialized", counted)
    return counted


def layer_of(kind: tuple[Pair, int], sides: Pair, generator: torch.Generator) -> Layer:
    channels, groups = kind
    shape = Shape((5, *sides), channels, stride=(2, 2), groups=groups, precision="tf32")
    return make(shape, HALF, generator)


def output(layer: Layer, x: Tensor) -> Tensor:
    y = poisoned_like(layer.dy)
    conv.conv2d(x, layer.packed(HALF), layer.bias, y, **layer.shape.settings)
    return y


def among_nan(x: Tensor) -> Tensor:
    """x with NaN in the channels beside it, and in the samples before and after."""
    return as_range(pad(x, (0, 0, 0, 0, 0, 0, 1, 1), value=torch.nan))[1:-1]


@pytest.mark.parametrize("sides", [*SIDES, *ODD_SIDES], ids=str)
def test_outputs_are_autograds(
    kind: tuple[Pair, int], sides: Pair, generator: torch.Generator, spy: Mock
) -> None:
    layer = layer_of(kind, sides, generator)
    exact = gradients(layer)[0].detach()
    ys = output(layer, layer.x), output(layer, among_nan(layer.x))
    assert rms_error(ys[0], exact) < TOLERANCE[HALF]
    assert torch.equal(*ys)
    assert (spy.call_count == 2) is (available() and kind not in OTHERS and sides in SIDES)


@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize("special", [torch.inf, torch.nan])
def test_infinity_and_nan_of_a_pixel_stay_in_its_windows(
    kind: tuple[Pair, int], sides: Pair, special: float, generator: torch.Generator
) -> None:
    layer, (height, width) = layer_of(kind, sides, generator), sides
    before = output(layer, layer.x)
    assert before.isfinite().all()
    for row, column in ((0, 0), (height - 1, width - 1), (height // 2, width // 2 - 1)):
        x, marks = layer.x.clone(), layer.x.new_zeros(5, 1, *sides)
        x[2, row, column] = special
        marks[2, :, row, column] = 1
        reached = max_pool2d(marks, 3, 2, 1)[:, 0] > 0
        y = output(layer, x)
        assert torch.equal(y[~reached], before[~reached])
        assert not y[reached].isfinite().any()


@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_nothing_is_written_beside_a_range(
    kind: tuple[Pair, int], sides: Pair, generator: torch.Generator
) -> None:
    layer = layer_of(kind, sides, generator)
    wide = as_range(poisoned_like(layer.dy))
    settings = layer.shape.settings
    conv.conv2d(layer.x, layer.packed(HALF), layer.bias, wide, relu=True, **settings)
    assert torch.equal(wide, output(layer, layer.x).relu())
    assert is_poisoned_beside(wide)


def test_pooled_maxima_are_those_of_outputs(
    kind: tuple[Pair, int], generator: torch.Generator, spy: Mock
) -> None:
    layer = layer_of(kind, (64, 64), generator)
    y = output(layer, layer.x).relu()
    maxima = poisoned_like(y[:, 1::2, 1::2])
    codes = torch.zeros(*maxima.shape[:3], y.shape[3] // 4, dtype=torch.uint8, device=y.device)
    operands = (layer.packed(HALF), layer.bias, maxima, codes)
    conv.conv2d_max_pool(layer.x, *operands, **layer.shape.settings)
    expected = max_pool2d(y.permute(0, 3, 1, 2).float(), 2).permute(0, 2, 3, 1)
    assert torch.equal(maxima.float(), expected)
    assert (spy.call_count == 2) is (available() and kind not in OTHERS)
