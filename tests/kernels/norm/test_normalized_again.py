"""Averages and gates of maps that are normalized on load: the bits of those of stored maps.

The parts that follow a gate have the bits of passes apart.
"""

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import as_range, poisoned, poisoned_like, randn
from tvdnn.graph.fusion import ACTIVATIONS
from tvdnn.kernels.copy.layout import add
from tvdnn.kernels.norm.batch_norm import batch_norm
from tvdnn.kernels.norm.normalized_again import Normalized
from tvdnn.kernels.pointwise.activation import relu, relu_grad
from tvdnn.kernels.pointwise.channel_broadcast import gate, gate_slices
from tvdnn.kernels.pointwise.channel_broadcast_grad import gate_grad
from tvdnn.kernels.pool.avg import adaptive_avg_pool2d
from tvdnn.kernels.pool.global_avg import normalized_avg

HALF = torch.bfloat16
TYPES = [HALF, torch.float32]
FUNCTIONS = ("", "relu", *ACTIVATIONS)
SMALL = [(3, 5, 7, 24), (2, 12, 13, 96), (1, 3, 3, 16), (2, 4, 5, 8)]
LARGE = [  # of SE-ResNet, EfficientNet, RegNet-Y and MobileNet-v3, and with channels of no power
    *((64, 56, 56, 256), (64, 28, 28, 512), (64, 14, 14, 1024), (64, 7, 7, 2048)),
    *((32, 112, 112, 32), (32, 56, 56, 144), (32, 28, 28, 240), (32, 14, 14, 672)),
    *((32, 7, 7, 1152), (32, 56, 56, 48), (32, 28, 28, 120), (32, 14, 14, 888)),
    *((32, 28, 28, 72), (32, 28, 28, 120), (32, 7, 7, 960), (5, 33, 35, 24), (3, 9, 11, 40)),
]


def normalized(
    x: Tensor, function: str, generator: torch.Generator, *, affine: bool
) -> tuple[Normalized, Tensor]:
    """A way to normalize x, and the map that it makes."""
    channels, single = x.shape[-1], torch.float32
    statistics = randn((3, channels), single, generator)
    statistics[1:].abs_().add_(0.1)
    scales = tuple(randn((2, channels), single, generator)) if affine else (None, None)
    made_by, z = (
        Normalized(statistics, *scales, function, 0.5),
        poisoned(x.shape, x.dtype, x.device),
    )
    rows = x.flatten(1, 2), statistics, *scales, None, z.flatten(1, 2)
    batch_norm(*rows, function=function, coefficient=0.5)
    return made_by, z


def means(x: Tensor, made_by: Normalized | None = None) -> Tensor:
    y = poisoned((len(x), 1, 1, x.shape[-1]), x.dtype, x.device)
    if made_by is None:
        adaptive_avg_pool2d(x, y)
    else:
        normalized_avg(x, y, made_by=made_by)
    return y


def gated(
    x: Tensor, gates: Tensor, residual: Tensor | None, made_by: Normalized | None = None
) -> Tensor:
    """The product; with a residual the rectified sum, in one pass."""
    y = poisoned(x.shape, x.dtype, x.device).flatten(1, 2)
    others = () if residual is None else (residual.flatten(1, 2),)
    gate(x.flatten(1, 2), gates, y, *others, relu=residual is not None, made_by=made_by)
    return y


def gradients(
    x: Tensor, gates: Tensor, dy: Tensor, y: Tensor | None, made_by: Normalized | None = None
) -> list[Tensor]:
    """Gradients of the map and of slices of the gates, and the gradient masked by y."""
    rows, channels = dy.flatten(1, 2), x.shape[-1]
    sums = poisoned(
        (len(x), gate_slices(rows.shape[1], channels), channels), torch.float32, x.device
    )
    dx = poisoned_like(rows)
    by = () if y is None else (y, poisoned_like(rows))
    gate_grad(x.flatten(1, 2), gates, rows, dx, sums, *by, made_by=made_by)
    return [dx, sums, *by[1:]]


def assert_same_bits(
    shape: tuple[int, ...], function: str, generator: torch.Generator, dtype: torch.dtype, *,
    affine: bool = True,
) -> None:  # fmt: skip
    x, dy, residual = (randn(shape, dtype, generator) for _ in range(3))
    gates = randn((shape[0], shape[-1]), dtype, generator)
    made_by, z = normalized(x, function, generator, affine=affine)
    assert torch.equal(means(x, made_by), means(z))
    stored, summed = gated(z, gates, None), poisoned(z.flatten(1, 2).shape, x.dtype, x.device)
    assert torch.equal(gated(x, gates, None, made_by), stored)
    add(stored, residual.flatten(1, 2), summed)
    relu(summed, summed)
    for source, by in ((z, None), (x, made_by)):
        assert torch.equal(gated(source, gates, residual, by), summed)
    masked = poisoned_like(summed)
    relu_grad(summed, dy.flatten(1, 2), masked)
    plain, behind = gradients(z, gates, dy, None), gradients(z, gates, masked.view(shape), None)
    packed = poisoned((*summed.shape[:2], shape[-1] // 8), torch.uint8, x.device)
    y = poisoned_like(summed)
    operands = (x.flatten(1, 2), gates, y, residual.flatten(1, 2), packed)
    gate(*operands, relu=True, made_by=made_by)
    assert torch.equal(y, summed)
    for source, by in ((z, None), (x, made_by)):
        assert all(map(torch.equal, gradients(source, gates, dy, None, by), plain))
        for output in (summed, packed):
            found = gradients(source, gates, dy, output, by)
            assert all(map(torch.equal, found, [*behind, masked]))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SMALL)
@pytest.mark.parametrize("function", ["", "relu", "silu", "hardswish"])
def test_maps_have_the_bits_of_stored_ones(
    shape: tuple[int, ...], function: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    assert_same_bits(shape, function, generator, dtype, affine=function != "relu")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("function", ACTIVATIONS)
def test_functions(function: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    assert_same_bits((2, 3, 5, 16), function, generator, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", LARGE)
@pytest.mark.parametrize("function", ["", "relu", "silu", "hardswish"])
def test_layouts_on_gpu(
    shape: tuple[int, ...], function: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Sums follow the layouts of threads, which the compiler chooses."""
    assert_same_bits(shape, function, generator, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_on_gpu(function: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    assert_same_bits((8, 28, 28, 240), function, generator, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_sums_have_the_bits_of_passes_apart(dtype: torch.dtype, generator: torch.Generator) -> None:
    """Of ranges too, and in float32, where a product and its sum could be fused."""
    x, residual = (randn((3, 35, 18), dtype, generator) for _ in range(2))
    gates = randn((3, 18), dtype, generator)
    apart, y = poisoned_like(x), as_range(poisoned_like(x))
    gate(x, gates, apart)
    add(apart, residual, apart)
    gate(as_range(x), gates, y, as_range(residual))
    assert torch.equal(y, apart)
    relu(apart, apart)
    gate(x, gates, residual, residual, relu=True)
    assert torch.equal(residual, apart)


def test_values_behind_the_last_pixel_count_nothing(generator: torch.Generator) -> None:
    """A shift that is infinite for 0 alone."""
    x = torch.full((2, 3, 5, 16), 3.0, dtype=HALF, device=generator.device)
    statistics = torch.full((3, 16), 3.0, device=generator.device)
    statistics[1:] = 3e38
    made_by = Normalized(statistics, None, None)
    assert torch.equal(means(x, made_by), torch.zeros_like(means(x)))
    gates, dy = (randn(shape, HALF, generator) for shape in ((2, 16), x.shape))
    _, sums = gradients(x, gates, dy, None, made_by)
    assert torch.equal(sums, torch.zeros_like(sums))
