"""Weight gradients in TF32 by columns of channels and taps, and their plans."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.conv.conv_layers import PARTIAL_TOLERANCE, Shape
from tests.kernels.conv.test_grad_weight import (
    assert_sums_by_warpgroups,
    plan_on_h200,
    planned,
    rounded_layer,
)
from tests.kernels.conv.test_grad_weight_few_samples import plan_of, sums_of
from tests.kernels.numerics import rms_error
from tvdnn.kernels.conv.grad_weight import split_plan as conv_grad_weight_plan
from tvdnn.kernels.conv.grad_weight.columns_plan import columns_unit
from tvdnn.kernels.conv.grad_weight.shape import GradWeightShape
from tvdnn.kernels.conv.grad_weight.split_plan import filter_of_sums

COLUMNS = {
    "pointwise": Shape((70, 14, 14), (256, 512), (1, 1), padding=(0, 0), precision="tf32"),
    "pointwise, part of a tile": Shape(
        (70, 7, 7), (132, 172), (1, 1), padding=(0, 0), precision="tf32"
    ),
    "pointwise, strided": Shape((66, 9, 8), (128, 200), (1, 1), (2, 2), (0, 0), precision="tf32"),
    "columns of several taps": Shape((150, 5, 3), (36, 300), stride=(2, 2), precision="tf32"),
    "strided": Shape((130, 9, 8), (64, 256), stride=(2, 2), precision="tf32"),
    "strided and dilated": Shape(
        (67, 9, 8), (20, 168), stride=(2, 1), padding=(2, 1), dilation=(1, 2), precision="tf32"
    ),
    "a column of seven taps": Shape(
        (66, 9, 11), (64, 192), (7, 1), padding=(3, 0), precision="tf32"
    ),
}

FEW = {
    "one unit": Shape((5, 7, 7), (132, 172), (1, 1), padding=(0, 0), precision="tf32"),
    "units of one sample": Shape((5, 8, 8), (128, 200), (1, 1), padding=(0, 0), precision="tf32"),
    "units and a rest": Shape((33, 6, 6), (128, 168), (1, 1), padding=(0, 0), precision="tf32"),
    "strided": Shape((9, 9, 8), (36, 168), stride=(2, 2), precision="tf32"),
}


@pytest.fixture(autouse=True)
def own_plans() -> Iterator[None]:
    """Plans made under a test's constants end with it."""
    yield
    conv_grad_weight_plan.forget()


@pytest.mark.gpu
@pytest.mark.parametrize("name", COLUMNS)
def test_transposed_columns(
    name: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `test_transposed_maps` says, of pointwise and strided convolutions."""
    planned(monkeypatch, columns=True, UNIT_STEPS=1)
    assert_sums_by_warpgroups(COLUMNS[name], generator)


@pytest.mark.gpu
@pytest.mark.parametrize("name", FEW)
def test_columns_of_few_samples(
    name: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One unit, whole ones, or units and a rest; a last step may be a part of one."""
    planned(monkeypatch, columns=True, UNIT_STEPS=1)
    layer = rounded_layer(FEW[name], generator)
    assert plan_of(layer, len(layer.x)).kernel == "columns"
    found = sums_of(layer)
    assert rms_error(found.sum(0), sums_of(layer, exact=True).sum(0)) < PARTIAL_TOLERANCE
    assert torch.equal(sums_of(layer, cut=True), found)


@pytest.mark.parametrize(
    ("side", "channels", "size", "stride", "splits", "unit"),
    [
        (14, (256, 1024), 1, 1, 16, 64),
        (7, (512, 2048), 1, 1, 4, 64),
        (28, (512, 1024), 1, 2, 8, 64),
        (28, (256, 256), 3, 2, 7, 64),
    ],
)
def test_plans_of_transposed_columns_fill_an_h200(
    side: int, channels: tuple[int, int], size: int, stride: int, splits: int, unit: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Programs of 256 x 128 sums, one to each SM."""
    plan = plan_on_h200(side, channels, torch.float32, monkeypatch, size=size, stride=stride)
    assert (plan.splits, plan.unit) == (splits, unit)


@pytest.mark.parametrize("side", [1, 7, 14, 15, 28, 112])
def test_units_of_columns_have_whole_steps(side: int) -> None:
    taps = filter_of_sums((256, 256, 1, 1), (1, 1), (0, 0), (1, 1), 1, torch.float32, "tf32")
    maps = (side, side), (side, side), taps, torch.float32, "tf32", (256, 256)
    for least in (1, 64, 2048):
        unit, steps = columns_unit(GradWeightShape(*maps), least, 64)
        assert unit * side**2 == 32 * steps
        assert unit <= 64
        assert steps >= least or unit > 32
    few = GradWeightShape(*maps, 5)
    unit, _ = columns_unit(GradWeightShape(*maps), 1, 64)
    assert columns_unit(few, 1, 64) == (min(unit, 5), -(-min(unit, 5) * side**2 // 32))
