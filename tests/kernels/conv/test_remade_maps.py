"""Convolutions and weight gradients that make a map: the bits of those that read the stored map."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import as_range, poisoned, rms_error
from tvdnn.graph.fusion import ACTIVATIONS
from tvdnn.kernels.conv.batch_stats import moment_cells
from tvdnn.kernels.conv.conv2d import conv2d, conv2d_reference
from tvdnn.kernels.conv.grad_weight.launch import (
    conv2d_grad_weight,
    conv2d_grad_weight_reference,
)
from tvdnn.kernels.conv.grad_weight.split_plan import grad_weight_plan, remakes_maps
from tvdnn.kernels.conv.pack_weight import pack_weight
from tvdnn.kernels.conv.remade import Gated, MadeBy, makes_input
from tvdnn.kernels.language.rounding import stored_reference
from tvdnn.kernels.norm.batch_norm import batch_norm
from tvdnn.kernels.norm.normalized_again import Normalized
from tvdnn.kernels.pointwise.channel_broadcast import gate

POINTWISE = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
BF16, F32 = torch.bfloat16, torch.float32
TYPES = [BF16, F32]


@dataclass(frozen=True, slots=True)
class Layer:
    """A pointwise convolution: samples, sides, input and output channels."""

    samples: int
    sides: tuple[int, int]
    channels: tuple[int, int]


FLAT, PER_SAMPLE = Layer(5, (3, 270), (72, 40)), Layer(70, (2, 3), (136, 144))
LARGE = {  # of every tile that a map in bfloat16 has
    "flat 64->256": Layer(32, (56, 56), (64, 256)),
    "flat 144->24": Layer(32, (56, 56), (144, 24)),
    "flat 128->512": Layer(32, (56, 56), (128, 512)),
    "flat 256->256": Layer(16, (56, 56), (256, 256)),
    "flat 32->16": Layer(32, (112, 112), (32, 16)),
    "per sample 256->1024": Layer(200, (14, 14), (256, 1024)),
    "per sample 672->112": Layer(200, (14, 14), (672, 112)),
    "per sample 512->2048": Layer(200, (7, 7), (512, 2048)),
    "per sample 40->24": Layer(200, (28, 28), (40, 24)),
}
# Layers that columns.py sums in float32, which makes no maps.
BY_COLUMNS = (
    "flat 128->512", "flat 256->256", "per sample 256->1024", "per sample 512->2048",
)  # fmt: skip
LARGE_OF_TYPES = [
    (name, dtype) for name in LARGE for dtype in TYPES if dtype == BF16 or name not in BY_COLUMNS
]
PARTS = Layer(40, (7, 16), (72, 40))  # halves of samples count as samples
SMALL = {"flat": FLAT, "per sample": PER_SAMPLE, "parts of samples": PARTS}
FUNCTIONS = ("", "relu", *ACTIVATIONS)
REPEATS = 10


def precision_of(maps: Tensor) -> str:
    """That of products of maps, float32 ones in TF32."""
    return "ieee" if maps.dtype == BF16 else "tf32"


def type_of(maps: Tensor) -> dict[str, Any]:
    return {"dtype": maps.dtype, "precision": precision_of(maps)}


def maps_of(layer: Layer, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x, in which a range is used, and dy."""
    torch.manual_seed(1)
    in_channels, out_channels = layer.channels
    shape = (layer.samples, *layer.sides)
    x = as_range(torch.randn(*shape, in_channels, device=device).to(dtype))
    dy = torch.randn(*shape, out_channels, device=device).to(dtype)
    return x, stored_reference(dy, dtype, "tf32")


def normalized(
    x: Tensor, function: str, *, affine: bool = True, precision: str | None = None
) -> tuple[Normalized, Tensor]:
    """A way to normalize x, and the map that it makes for products, or for others as precise."""
    channels = x.shape[-1]
    statistics = torch.stack([torch.randn(channels), *torch.rand(2, channels) + 0.5]).to(x.device)
    weight, bias = torch.randn(2, channels).to(x.device) if affine else (None, None)
    made_by = Normalized(statistics, weight, bias, function, 0.5)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    batch_norm(
        x.flatten(1, 2), *made_by[:3], None, y.flatten(1, 2), function=function, coefficient=0.5,
        precision=precision or precision_of(x),
    )  # fmt: skip
    return made_by, y


def gated(x: Tensor) -> tuple[Gated, Tensor]:
    """Gates of x, and the map that they make."""
    made_by = Gated(torch.rand(len(x), x.shape[-1], device=x.device).to(x.dtype))
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    gate(x.flatten(1, 2), made_by.gates, y.flatten(1, 2), precision=precision_of(x))
    return made_by, y


def normalized_and_gated(x: Tensor, function: str) -> tuple[Gated, Tensor]:
    """A way to normalize x and to gate what that makes, and the map that both make."""
    by, normal = normalized(x, function, precision="ieee")
    gates, y = gated(normal)
    return Gated(gates.gates, by), y


def made_of(x: Tensor, maker: str) -> tuple[MadeBy, Tensor]:
    """A way to make a map of x: "gate", a function of a normalization, or both; and the map."""
    *both, function = maker.split(" ")
    if both:
        return normalized_and_gated(x, function)
    return gated(x) if maker == "gate" else normalized(x, function)


def sums_of(x: Tensor, dy: Tensor, made_by: MadeBy | None = None, *, exact: bool = False) -> Tensor:
    """The running sums after two launches, the first over a unit."""
    shape = (dy.shape[-1], x.shape[-1], 1, 1)
    sides = x.shape[1:3], dy.shape[1:3]
    plan = grad_weight_plan(*sides, shape, **POINTWISE, **type_of(x))
    sums = poisoned((plan.splits, shape[0], 1, 1, shape[1]), torch.float32, x.device)
    kernel = conv2d_grad_weight_reference if exact else conv2d_grad_weight
    for part in (slice(0, plan.unit), slice(plan.unit, len(x))):
        made = made_by
        if isinstance(made_by, Gated):
            made = Gated(made_by.gates[part], made_by.of)
        kernel(
            x[part], dy[part], sums, first=part.start == 0, **POINTWISE, made_by=made,
            precision=precision_of(x),
        )  # fmt: skip
    return sums


def output_of(
    x: Tensor, like: Tensor, made_by: MadeBy | None = None, *, exact: bool = False
) -> tuple[Tensor, Tensor]:
    """The convolution's output, in the shape of `like`, and moments of its cells."""
    shape = (like.shape[-1], x.shape[-1], 1, 1)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(x.device)
    packed = torch.empty(shape[0], 1, 1, shape[1], dtype=x.dtype, device=x.device)
    pack_weight(weight, packed, groups=1, precision=precision_of(x))
    cells = moment_cells(x.shape[1:3], like.shape[1:3], shape, **POINTWISE, **type_of(x))
    assert cells is not None
    moments = poisoned(cells.shape(len(x), shape[0]), torch.float32, x.device)
    y = poisoned(like.shape, x.dtype, x.device)
    kernel = conv2d_reference if exact else conv2d
    kernel(
        x, packed, None, y, **POINTWISE, precision=precision_of(x), out_precision="ieee",
        moments=moments, cells=cells, made_by=made_by,
    )  # fmt: skip
    return y, moments.view(-1, *moments.shape[2:])[: cells.count(len(x))]


def assert_remakes(x: Tensor, dy: Tensor, made_by: MadeBy, y: Tensor, *, repeats: int = 1) -> None:
    shape, pitches = (dy.shape[-1], x.shape[-1], 1, 1), (x.stride(2), dy.stride(2))
    assert remakes_maps(
        x.shape[1:3], dy.shape[1:3], shape, **POINTWISE, **type_of(x), pitches=pitches
    )
    assert makes_input(
        x.shape[1:3], dy.shape[1:3], shape, **POINTWISE, **type_of(x), pitches=pitches
    )
    expected, outputs = sums_of(y, dy), output_of(y, dy)
    for _ in range(repeats):
        assert torch.equal(sums_of(x, dy, made_by), expected)
        if isinstance(made_by, Gated) and made_by.of is not None:
            continue  # only gradients of weights make both
        for found, exact in zip(output_of(x, dy, made_by), outputs, strict=True):
            assert torch.equal(found, exact)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layer", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("function", ["", "relu", "silu"])
def test_normalized_maps(layer: Layer, function: str, dtype: torch.dtype) -> None:
    x, dy = maps_of(layer, "cpu", dtype)
    assert_remakes(x, dy, *normalized(x, function, affine=function != "relu"))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("function", ACTIVATIONS)
def test_functions_of_normalized_maps(function: str, dtype: torch.dtype) -> None:
    x, dy = maps_of(Layer(2, (1, 800), (16, 16)), "cpu", dtype)
    assert_remakes(x, dy, *normalized(x, function))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layer", SMALL.values(), ids=SMALL)
def test_gated_maps(layer: Layer, dtype: torch.dtype) -> None:
    x, dy = maps_of(layer, "cpu", dtype)
    assert_remakes(x, dy, *gated(x))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layer", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("function", ["", "relu", "silu"])
def test_normalized_and_gated_maps(layer: Layer, function: str, dtype: torch.dtype) -> None:
    x, dy = maps_of(layer, "cpu", dtype)
    made_by, y = normalized_and_gated(x, function)
    assert_remakes(x, dy, made_by, y)
    exact = sums_of(y, dy, exact=True)
    assert rms_error(sums_of(x, dy, made_by, exact=True), exact) < 1e-3


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layer", SMALL.values(), ids=SMALL)
def test_references_make_the_map_too(layer: Layer, dtype: torch.dtype) -> None:
    x, dy = maps_of(layer, "cpu", dtype)
    for made_by, y in (normalized(x, "relu"), gated(x)):
        found = sums_of(x, dy, made_by, exact=True)
        assert rms_error(found, sums_of(y, dy, exact=True)) < 1e-3
        found, _ = output_of(x, dy, made_by, exact=True)
        assert rms_error(found, output_of(y, dy, exact=True)[0]) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layer", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("function", [*FUNCTIONS, "gate"])
def test_functions_on_gpu(layer: Layer, function: str, dtype: torch.dtype) -> None:
    x, dy = maps_of(layer, "cuda", dtype)
    assert_remakes(x, dy, *made_of(x, function))
    if function != "gate":
        assert_remakes(x, dy, *normalized_and_gated(x, function))


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype"), LARGE_OF_TYPES)
@pytest.mark.parametrize("function", ["", "relu", "silu", "gate", "gated silu", "gated relu"])
def test_tiles_on_gpu(name: str, function: str, dtype: torch.dtype) -> None:
    """Each time: once, 3 in 66 launches wrote registers that products still read."""
    x, dy = maps_of(LARGE[name], "cuda", dtype)
    made_by, y = made_of(x, function)
    assert_remakes(x, dy, made_by, y, repeats=REPEATS)
