"""Depthwise convolution kernels against references, and these against autograd."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.conv.conv_layers import (
    PARTIAL_TOLERANCE,
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
from tvdnn.kernels.conv import depthwise as own
from tvdnn.kernels.conv import depthwise_grad_weight as sums_kernel
from tvdnn.kernels.conv import depthwise_strips_grad_weight as strips_kernel

SHAPES = {
    "3x3": Shape((2, 9, 13), (16, 16), groups=16),
    "5x5": Shape((2, 7, 10), (24, 24), (5, 5), padding=(2, 2), groups=24),
    "7x7": Shape((2, 5, 9), (24, 24), (7, 7), padding=(3, 3), groups=24),
    "11x11": Shape((2, 6, 13), (40, 40), (11, 11), padding=(5, 5), groups=40),
    "9x9, strided": Shape((1, 7, 19), (16, 16), (9, 9), (2, 3), (4, 4), groups=16),
    "3x3, wide padding": Shape((2, 4, 5), (8, 8), (3, 3), padding=(4, 5), groups=8),
    "5x5, wide padding": Shape((2, 5, 9), (8, 8), (5, 5), padding=(6, 7), groups=8),
    "7x7, narrow padding": Shape((2, 9, 12), (8, 8), (7, 7), padding=(1, 0), groups=8),
    "3x3, stride 2": Shape((3, 7, 10), (72, 72), stride=(2, 2), groups=72),
    "5x3, uneven": Shape((1, 6, 17), (8, 8), (5, 3), (1, 2), (2, 0), groups=8),
    "5x5, dilated and strided": Shape((2, 11, 9), (16, 16), (5, 5), (3, 3), (4, 4), (2, 2), 16),
    "3x3, dilated": Shape((2, 9, 11), (8, 8), (3, 3), (1, 1), (2, 3), (2, 3), 8),
    "odd channels": Shape((2, 5, 6), (27, 27), groups=27),
    "uneven channels, stride 2": Shape((2, 7, 9), (34, 34), stride=(2, 2), groups=34),
    "one by one": Shape((2, 1, 1), (8, 8), (1, 1), padding=(0, 0), groups=8),
}
UNEVEN = ("odd channels", "uneven channels, stride 2")
CASES = [
    ("3x3, stride 2", torch.bfloat16),
    (UNEVEN[0], torch.bfloat16),
    *((name, torch.float32) for name in SHAPES),
]


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few splits of the weight's gradient, as the interpreter takes programs one by one."""
    monkeypatch.setattr(sums_kernel, "PROGRAMS", 6)
    monkeypatch.setattr(strips_kernel, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(strips_kernel, "LEAST_STRIP", 2)
    monkeypatch.setattr(strips_kernel, "MOST_STRIP", 4)


@pytest.fixture(params=CASES, ids=[f"{name}, {dtype}" for name, dtype in CASES])
def layer(request: pytest.FixtureRequest, generator: torch.Generator) -> Layer:
    name, dtype = request.param
    return make(SHAPES[name], dtype, generator)


def geometry(layer: Layer) -> dict[str, object]:
    return {name: getattr(layer.shape, name) for name in ("stride", "padding", "dilation")}


def packed(layer: Layer) -> Tensor:
    return layer.weight[:, 0].permute(1, 2, 0).to(layer.x.dtype).contiguous()


def plan_of(layer: Layer) -> sums_kernel.DepthwisePlan:
    _, height, width, channels = layer.dy.shape
    shape = layer.shape
    geometry = shape.size, shape.stride, shape.dilation
    return sums_kernel.depthwise_plan((height, width), channels, *geometry)


def sums_of(layer: Layer) -> Tensor:
    channels, _, *size = layer.weight.shape
    return poisoned((plan_of(layer).splits, channels, *size, 1), torch.float32, layer.x.device)


def test_all_follow_autograd(layer: Layer) -> None:
    y, dx, dweight, _ = (gradient.detach() for gradient in gradients(layer))
    tolerance = tolerance_of(layer.shape, layer.x.dtype)
    settings = geometry(layer)
    for suffix in ("", "_reference"):
        forward, grad_input, grad_weight = (
            getattr(module, name + suffix)
            for module, name in (
                (own, "depthwise_conv2d"),
                (own, "depthwise_conv2d_grad_input"),
                (sums_kernel, "depthwise_conv2d_grad_weight"),
            )
        )
        out, alone, grads, sums = *map(poisoned_like, (layer.dy, layer.dy, layer.x)), sums_of(layer)
        forward(layer.x, packed(layer), layer.bias, out, **settings, precision="ieee")
        forward(layer.x, packed(layer), None, alone, **settings, precision="ieee")
        grad_input(layer.dy, packed(layer), grads, **settings, precision="ieee")
        grad_weight(layer.x, layer.dy, sums, first=True, **settings)
        assert rms_error(out, y) <= tolerance
        assert rms_error(alone, y - layer.bias.double()) <= tolerance
        assert rms_error(grads, dx) <= tolerance
        assert rms_error(sums.sum(0)[..., 0], dweight[:, 0]) <= PARTIAL_TOLERANCE


@pytest.mark.parametrize("name", ["3x3", "3x3, stride 2"])
def test_a_batch_may_be_cut(
    name: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between units for the weight's gradient, which has several here; anywhere for the others."""
    for kernel in (sums_kernel, strips_kernel):
        monkeypatch.setattr(kernel, "UNITS", (1, 2))
    monkeypatch.setattr(sums_kernel, "PROGRAMS", 1)
    monkeypatch.setattr(sums_kernel, "TILE", 64)
    monkeypatch.setattr(strips_kernel, "MULTIPROCESSORS", 1)
    monkeypatch.setattr(strips_kernel, "THREADS", 32)
    shape = replace(SHAPES[name], x=(5, 9, 6), channels=(8, 8), groups=8)
    layer = make(shape, torch.float32, generator)
    settings, unit = geometry(layer), plan_of(layer).unit
    assert 1 <= unit < 5
    y, dx, sums = poisoned_like(layer.dy), poisoned_like(layer.x), sums_of(layer)
    own.depthwise_conv2d(layer.x, packed(layer), None, y, **settings, precision="ieee")
    own.depthwise_conv2d_grad_input(layer.dy, packed(layer), dx, **settings, precision="ieee")
    for suffix in ("", "_reference"):
        grad_weight = getattr(sums_kernel, "depthwise_conv2d_grad_weight" + suffix)
        pieces = sums_of(layer)
        grad_weight(layer.x, layer.dy, sums, first=True, **settings)
        grad_weight(layer.x[:unit], layer.dy[:unit], pieces, first=True, **settings)
        grad_weight(layer.x[unit:], layer.dy[unit:], pieces, first=False, **settings)
        assert torch.equal(pieces, sums)
    for part in (slice(0, 1), slice(1, 5)):
        some_y, some_dx = poisoned_like(y[part]), poisoned_like(dx[part])
        x, dy = layer.x[part], layer.dy[part]
        own.depthwise_conv2d(x, packed(layer), None, some_y, **settings, precision="ieee")
        own.depthwise_conv2d_grad_input(dy, packed(layer), some_dx, **settings, precision="ieee")
        assert torch.equal(some_y, y[part])
        assert torch.equal(some_dx, dx[part])


def test_ranges_of_wider_maps(generator: torch.Generator) -> None:
    """Ranges have the bits of maps of their own. Nothing beside them is read or written."""
    assert_placed_alike(make(SHAPES["3x3, stride 2"], torch.bfloat16, generator), as_range)


@pytest.mark.parametrize("name", UNEVEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padded_maps(name: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    """They have the bits of maps of their own. NaN beside them reaches no result, and stays."""
    layer = make(SHAPES[name], dtype, generator)
    after = -layer.x.shape[3] % 8
    assert_placed_alike(layer, lambda maps: as_range(maps, before=0, after=after))


def assert_placed_alike(layer: Layer, inside: Callable[[Tensor], Tensor]) -> None:
    """Maps `inside` wider ones give the bits of maps of their own. What is beside them stays."""
    settings, results = geometry(layer), []
    for place in (torch.clone, inside):
        x, dy = place(layer.x), place(layer.dy)
        y, dx, sums = place(poisoned_like(dy)), place(poisoned_like(x)), sums_of(layer)
        own.depthwise_conv2d(x, packed(layer), layer.bias, y, precision="ieee", **settings)
        own.depthwise_conv2d_grad_input(dy, packed(layer), dx, precision="ieee", **settings)
        sums_kernel.depthwise_conv2d_grad_weight(x, dy, sums, first=True, **settings)
        results.append((y, dx, sums))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert all(is_poisoned_beside(part) for part in results[1][:2])


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_results_are_rounded_for_products(suffix: str, generator: torch.Generator) -> None:
    x = randn((1, 4, 4, 8), torch.float32, generator)
    taps = randn((3, 3, 8), torch.float32, generator)
    settings = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    for name in ("depthwise_conv2d", "depthwise_conv2d_grad_input"):
        rest = (None,) if name == "depthwise_conv2d" else ()
        out = poisoned_like(x)
        getattr(own, name + suffix)(x, taps, *rest, out, **settings, precision="tf32")
        assert not (out.view(torch.int32) & 0x1FFF).any()
        getattr(own, name + suffix)(x, taps, *rest, out, **settings, precision="ieee")
        assert (out.view(torch.int32) & 0x1FFF).any()


def test_which_layers_suit() -> None:
    assert own.suits_depthwise(96, 96, 96, (7, 7))
    assert not own.suits_depthwise(96, 192, 96, (3, 3))
    assert not own.suits_depthwise(96, 96, 48, (3, 3))
    assert own.suits_depthwise(30, 30, 30, (3, 3))
    assert own.suits_depthwise(8, 8, 8, (3, 3))
    assert not own.suits_depthwise(9, 9, 9, (3, 3))
    assert not own.suits_depthwise(96, 96, 96, (3, 13))


@pytest.mark.gpu
def test_large_offsets(generator: torch.Generator) -> None:
    x = torch.ones(33, 1024, 1024, 64, dtype=torch.bfloat16, device=generator.device)
    x[-1] = randn(x.shape[1:], x.dtype, generator)
    taps = randn((3, 3, 64), x.dtype, generator)
    settings = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "precision": "ieee"}
    for launch, rest in ((own.depthwise_conv2d, (None,)), (own.depthwise_conv2d_grad_input, ())):
        y, last = poisoned_like(x), poisoned_like(x[-1:])
        launch(x, taps, *rest, y, **settings)
        launch(x[-1:].clone(), taps, *rest, last, **settings)
        assert torch.equal(y[-1:], last)
