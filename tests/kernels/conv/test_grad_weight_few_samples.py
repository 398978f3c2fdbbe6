"""Weight gradients of batches of few samples, whose plans depend on the samples of the batch."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.conv.conv_layers import PARTIAL_TOLERANCE, Layer, Shape, make
from tests.kernels.conv.test_remade_maps import made_of
from tests.kernels.numerics import as_range, poisoned, rms_error
from tvdnn.kernels.conv.grad_weight import split_plan
from tvdnn.kernels.conv.grad_weight.launch import (
    conv2d_grad_weight,
    conv2d_grad_weight_reference,
)
from tvdnn.kernels.conv.grad_weight.shape import FEW_SAMPLES, GradWeightShape
from tvdnn.kernels.conv.grad_weight.split_plan import LaunchPlan, filter_of_sums, work_of
from tvdnn.kernels.conv.remade import Gated, MadeBy

POINTWISE = {"size": (1, 1), "padding": (0, 0), "precision": "tf32"}
ODD = Shape((16, 5, 5), (72, 40), **POINTWISE)
LAYERS = {
    "odd pixels": ODD,
    "fifteen pixels": replace(ODD, x=(20, 3, 5)),
    "last samples of half a step": replace(ODD, x=(33, 7, 7)),
    "two samples of few pixels": replace(ODD, x=(2, 3, 3)),
    "quarters": replace(ODD, x=(16, 4, 6)),
    "one pixel": replace(ODD, x=(16, 1, 1)),
    "by stride": replace(ODD, x=(20, 6, 6), stride=(2, 2)),
    "three by three": Shape((17, 5, 5), (48, 72), precision="tf32"),
    "a row of taps in groups": Shape((20, 4, 5), (96, 96), groups=3, precision="tf32"),
    "flat": Shape((5, 3, 270), (72, 40), **POINTWISE),
}
TYPES = (torch.bfloat16, torch.float32)
# Layers of EfficientNetV2-L, ConvNeXt-L and ResNet-50: sides, channels, size and stride.
NETWORKS = (
    (15, (640, 3840), 1, 1), (15, (2304, 384), 1, 1), (30, (224, 1344), 1, 1),
    (7, (6144, 1536), 1, 1), (14, (384, 768), 2, 2), (14, (256, 256), 3, 1),
    (56, (64, 64), 3, 1), (56, (256, 64), 1, 1), (112, (3, 64), 7, 2),
)  # fmt: skip


@pytest.fixture(params=LAYERS.values(), ids=LAYERS.keys())
def shape(request: pytest.FixtureRequest) -> Shape:
    found: Shape = request.param
    return found


def plan_of(layer: Layer, batch: int) -> LaunchPlan:
    settings = {name: layer.shape.settings[name] for name in ("stride", "padding", "dilation")}
    kind = {"groups": layer.shape.groups, "dtype": layer.x.dtype, "precision": "tf32"}
    taps = filter_of_sums(tuple(layer.weight.shape), **settings, **kind)
    sides = tuple(layer.x.shape[1:3]), tuple(layer.dy.shape[1:3])
    few = batch if batch < FEW_SAMPLES else 0
    return work_of(GradWeightShape(*sides, taps, layer.x.dtype, "tf32", taps.channels, few))


def sums_of(
    layer: Layer, *, exact: bool = False, cut: bool = False, made_by: MadeBy | None = None
) -> Tensor:
    """The running sums after one launch, or after one for each unit where `cut`."""
    batch = len(layer.x)
    work = plan_of(layer, batch)
    k, c, r, s = layer.weight.shape
    sums = poisoned((work.splits + work.edges, k, r, s, c), torch.float32, layer.x.device)
    kernel = conv2d_grad_weight_reference if exact else conv2d_grad_weight
    for start in range(0, batch, work.unit if cut else batch):
        part = slice(start, start + (work.unit if cut else batch))
        made = made_by
        if isinstance(made_by, Gated):
            made = Gated(made_by.gates[part], made_by.of)
        kernel(
            layer.x[part], layer.dy[part], sums, first=start == 0, made_by=made, batch=batch,
            **layer.shape.settings,
        )  # fmt: skip
    return sums


@pytest.mark.parametrize("dtype", TYPES)
def test_gradients_of_few_samples(
    shape: Shape, dtype: torch.dtype, generator: torch.Generator
) -> None:
    layer = make(shape, dtype, generator)
    found, expected = sums_of(layer), sums_of(layer, exact=True)
    assert rms_error(found.sum(0), expected.sum(0)) < PARTIAL_TOLERANCE
    assert torch.equal(sums_of(layer, cut=True), found)


@pytest.mark.parametrize("maker", ["relu", "gate", "gated silu"])
@pytest.mark.parametrize("samples", [16, 24])
def test_made_maps_have_the_bits_of_stored_ones(
    samples: int, maker: str, generator: torch.Generator
) -> None:
    layer = make(replace(ODD, x=(samples, 5, 5)), torch.bfloat16, generator)
    layer = replace(layer, x=as_range(layer.x))
    made_by, stored = made_of(layer.x, maker)
    made = sums_of(layer, made_by=made_by)
    assert torch.equal(made, sums_of(replace(layer, x=stored)))
    assert torch.equal(made, sums_of(layer, made_by=made_by, cut=True))


@pytest.mark.parametrize("layer", NETWORKS)
@pytest.mark.parametrize("dtype", TYPES)
def test_plans_of_many_samples_are_those_of_any_batch(
    layer: tuple[int, tuple[int, int], int, int], dtype: torch.dtype
) -> None:
    side, (inputs, outputs), size, stride = layer
    sides = (side, side), (side // stride, side // stride)
    settings = {"stride": (stride, stride), "padding": (size // 2, size // 2), "groups": 1}
    settings |= {"dilation": (1, 1), "dtype": dtype, "precision": "tf32"}
    weight = outputs, inputs, size, size
    any_batch = split_plan.grad_weight_plan(*sides, weight, **settings)
    for batch in (64, 100, 256):
        assert split_plan.grad_weight_plan(*sides, weight, **settings, batch=batch) == any_batch


@pytest.mark.parametrize(
    ("samples", "side", "step", "cut"),
    [(256, 15, 64, 1), (16, 15, 16, 1), (24, 15, 32, 1), (32, 15, 32, 1), (16, 14, 64, 4),
     (32, 14, 64, 4), (32, 7, 32, 1), (40, 12, 32, 4), (16, 12, 64, 4)],
)  # fmt: skip
def test_steps_of_few_samples_are_filled(
    samples: int, side: int, step: int, cut: int, generator: torch.Generator
) -> None:
    """A step of 64 of 16 samples would be three quarters empty, where 15x15 has no even parts."""
    layer = make(Shape((samples, side, side), (128, 64), **POINTWISE), torch.bfloat16, generator)
    work = plan_of(layer, samples)
    assert (work.kernel, work.tile.pixels, work.cut) == ("per_sample", step, cut)


def test_flat_units_are_no_longer_than_the_batch(generator: torch.Generator) -> None:
    """Of a longer unit the last splits would have no samples."""
    layer = make(Shape((16, 30, 30), (64, 64), **POINTWISE), torch.bfloat16, generator)
    assert plan_of(layer, 256).unit == 64
    assert plan_of(layer, 16).unit == 16
