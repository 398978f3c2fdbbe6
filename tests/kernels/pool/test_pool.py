"""Pooling against its references, and the references against torch.nn.functional and autograd."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.kernels.numerics import (
    assert_repeatable,
    by_autograd,
    poisoned,
    poisoned_like,
    randn,
    rms_error,
)
from tvdnn.kernels.pool import avg as pool_avg
from tvdnn.kernels.pool import max as pool_max
from tvdnn.kernels.pool import max_grad as pool_max_grad

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """A map [N, H, W, C] and the pooling windows over it."""

    shape: tuple[int, int, int, int]
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    ceil: bool = False

    def out_shape(self) -> tuple[int, ...]:
        """Shape of the pools, as torch has it."""
        x = torch.empty(1, 1, *self.shape[1:3])
        settings = (self.kernel, self.stride, self.padding, self.dilation, self.ceil)
        sides = functional.max_pool2d(x, *settings).shape[2:]
        return (self.shape[0], *sides, self.shape[3])

    def settings(self) -> dict[str, Pair]:
        return {name: getattr(self, name) for name in ("kernel", "stride", "padding", "dilation")}


WINDOWS = [
    Window((2, 4, 8, 16), (2, 2), (2, 2)),
    Window((2, 5, 9, 5), (2, 2), (2, 2)),
    Window((1, 5, 9, 5), (2, 2), (2, 2), ceil=True),
    Window((1, 5, 11, 8), (3, 3), (2, 2)),
    Window((1, 5, 12, 33), (3, 3), (2, 2), (1, 1)),
    Window((1, 4, 8, 8), (3, 3), (2, 2), ceil=True),
    Window((1, 4, 6, 3), (3, 2), (1, 1), (1, 1)),
    Window((1, 5, 10, 4), (2, 3), (3, 2), (1, 1)),
    Window((1, 6, 9, 4), (3, 2), (2, 1), (1, 1), dilation=(2, 3)),
    Window((1, 1, 1, 1), (1, 1), (1, 1)),
    Window((1, 6, 6, 257), (5, 5), (6, 6)),
    Window((0, 8, 8, 16), (2, 2), (2, 2)),
]
MAXIMA = [(window, torch.float32) for window in WINDOWS]
MAXIMA += [(window, torch.bfloat16) for window in WINDOWS[:4]]
AVERAGES = [(window, True, None) for window in WINDOWS if window.dilation == (1, 1)]
AVERAGES += [(window, False, None) for window in WINDOWS[4:8]]
AVERAGES += [(window, True, 3) for window in WINDOWS[4:8]]
ADAPTIVE = [
    ((2, 7, 7, 8), (7, 7)),
    ((2, 7, 5, 16), (1, 1)),
    ((1, 11, 13, 5), (4, 3)),
    ((1, 3, 4, 2), (5, 9)),
    ((0, 4, 4, 4), (2, 2)),
]


def nchw(nhwc: Tensor) -> Tensor:
    return nhwc.permute(0, 3, 1, 2).float().contiguous()


def nhwc(nchw: Tensor) -> Tensor:
    return nchw.permute(0, 2, 3, 1)


def tied(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Values of which many are equal."""
    return randn(shape, torch.float32, generator).mul(2).round().to(dtype)


def maximum_and_gradient(window: Window, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """torch's own max pooling and its gradient, in float32."""
    settings = (*window.settings().values(), window.ceil)
    leaf = nchw(x).contiguous()
    y, dx = by_autograd(lambda leaf: functional.max_pool2d(leaf, *settings), leaf, nchw(dy))
    return nhwc(y), nhwc(dx)


@pytest.mark.parametrize(("window", "dtype"), MAXIMA, ids=str)
def test_max_pool2d(window: Window, dtype: torch.dtype, generator: torch.Generator) -> None:
    x = tied(window.shape, dtype, generator)
    dy = randn(window.out_shape(), dtype, generator)
    expected_y, expected_dx = maximum_and_gradient(window, x, dy)
    pairs = [
        (pool_max.max_pool2d, pool_max_grad.max_pool2d_grad),
        (pool_max.max_pool2d_reference, pool_max_grad.max_pool2d_grad_reference),
    ]
    for forward, backward in pairs:
        y, dx = poisoned_like(dy), poisoned_like(x)
        forward(x, y, **window.settings())
        backward(x, dy, dx, **window.settings())
        assert torch.equal(y.float(), expected_y)
        assert rms_error(dx, expected_dx) <= TOLERANCE[dtype]


CODED = [window for window in WINDOWS if window.shape[3] % 2 == 0]
CODED += [
    Window((1, 3, 7, 516), (2, 2), (2, 2)),
    Window((1, 5, 9, 12), (4, 4), (3, 2), (1, 2)),
    Window((1, 5, 6, 6), (3, 3), (1, 2), (1, 1), dilation=(2, 1)),
]
CODED = [w for w in CODED if math.prod(w.kernel) > 4 or w.shape[3] % 4 == 0]


def codes_of(window: Window, device: torch.device) -> Tensor:
    *pixels, channels = window.out_shape()
    a_byte = 4 if math.prod(window.kernel) <= 4 else 2
    return poisoned((*pixels, channels // a_byte), torch.uint8, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", CODED, ids=str)
def test_codes_stand_for_the_map(
    window: Window, dtype: torch.dtype, generator: torch.Generator
) -> None:
    x = tied(window.shape, dtype, generator)
    x[torch.rand(x.shape, generator=generator, device=x.device) < 0.02] = -math.inf
    dy = randn(window.out_shape(), dtype, generator)
    settings = window.settings()
    pools, gradient = poisoned_like(dy), poisoned_like(x)
    pool_max.max_pool2d(x, pools, **settings)
    pool_max_grad.max_pool2d_grad(x, dy, gradient, **settings)
    codes, expected = codes_of(window, x.device), codes_of(window, x.device)
    y, dx, rows = poisoned_like(dy), poisoned_like(x), poisoned_like(x)
    pool_max.max_pool2d_codes(x, y, codes, **settings)
    pool_max_grad.max_unpool2d(dy, codes, dx, **settings)
    assert torch.equal(y, pools)
    assert torch.equal(dx, gradient)
    pool_max.max_pool2d_codes_reference(x, y.fill_(math.nan), expected, **settings)
    pool_max_grad.max_unpool2d_reference(dy, codes, rows, **settings)
    assert torch.equal(y, pools)
    assert torch.equal(codes, expected)
    assert rms_error(rows, gradient) <= TOLERANCE[dtype]


TALL = [  # of more rows of cells than a program has
    Window((1, 9, 11, 8), (3, 3), (2, 2)),
    Window((1, 8, 9, 4), (3, 2), (2, 2), (1, 1), dilation=(2, 3)),
    Window((1, 9, 11, 8), (3, 3), (1, 1), (1, 1)),
    Window((1, 11, 9, 4), (4, 2), (2, 1), (2, 1), dilation=(2, 1)),
]


@pytest.mark.parametrize("window", TALL, ids=str)
def test_rows_of_a_program_change_no_bits(
    window: Window, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = tied(window.shape, torch.bfloat16, generator)
    dy = randn(window.out_shape(), torch.bfloat16, generator)
    results = []
    for programs in (1, 1 << 30):
        monkeypatch.setattr(pool_max, "PROGRAMS", programs)
        y, codes, plain = poisoned_like(dy), codes_of(window, x.device), poisoned_like(dy)
        gathered, found = poisoned_like(x), poisoned_like(x)
        pool_max.max_pool2d_codes(x, y, codes, **window.settings())
        pool_max.max_pool2d(x, plain, **window.settings())
        pool_max_grad.max_unpool2d(dy, codes, gathered, **window.settings())
        pool_max_grad.max_pool2d_grad(x, dy, found, **window.settings())
        results.append((y, codes, plain, gathered, found))
    for some, one in zip(*results, strict=True):
        assert torch.equal(some, one)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_codes_of_nan_and_infinities(
    dtype: torch.dtype, stride: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = Window((2, 9, 11, 8), (3, 3), (stride, stride))
    x = tied(window.shape, dtype, generator)
    chosen = torch.rand(x.shape[1:], generator=generator, device=x.device)
    x[1, chosen < 0.5] = -math.inf
    x[1, chosen < 0.2] = math.nan
    x[1, chosen < 0.1] = math.inf
    expected_y = poisoned(window.out_shape(), x.dtype, x.device)
    y, codes, expected = poisoned_like(expected_y), *(codes_of(window, x.device) for _ in range(2))
    pool_max.max_pool2d_codes_reference(x, expected_y, expected, **window.settings())
    for programs in (1, 1 << 30):
        monkeypatch.setattr(pool_max, "PROGRAMS", programs)
        pool_max.max_pool2d_codes(x, y.fill_(math.nan), codes.fill_(255), **window.settings())
        assert torch.equal(codes, expected)
        assert torch.equal(y.nan_to_num(7.0), expected_y.nan_to_num(7.0))


def test_codes_of_four_channels_share_a_byte(device: torch.device) -> None:
    x = torch.zeros(1, 2, 2, 8, device=device)
    for channel, tap in enumerate([3, 0, 2, 1, 1, 1, 0, 3]):
        x[0, tap // 2, tap % 2, channel] = 1.0
    y, codes = poisoned((1, 1, 1, 8), x.dtype, device), poisoned((1, 1, 1, 2), torch.uint8, device)
    pool_max.max_pool2d_codes(x, y, codes, **Window(tuple(x.shape), (2, 2), (2, 2)).settings())
    assert codes.flatten().tolist() == [0b01_10_00_11, 0b11_00_01_01]


@pytest.mark.parametrize("window", WINDOWS[4:6], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_max_pool2d_of_nan_and_infinities(
    dtype: torch.dtype, window: Window, generator: torch.Generator
) -> None:
    x = torch.full(window.shape, -math.inf, dtype=dtype, device=generator.device)
    chosen = torch.rand(window.shape, generator=generator, device=generator.device)
    x[chosen < 0.2] = 1.0
    x[chosen < 0.1] = math.nan
    dy = randn(window.out_shape(), dtype, generator)
    expected_y, expected_dx = maximum_and_gradient(window, x, dy)
    y, dx = poisoned_like(dy), poisoned_like(x)
    pool_max.max_pool2d(x, y, **window.settings())
    pool_max_grad.max_pool2d_grad(x, dy, dx, **window.settings())
    assert torch.equal(y.float().nan_to_num(7.0), expected_y.float().nan_to_num(7.0))
    assert rms_error(dx, expected_dx) <= TOLERANCE[dtype]


def assert_averages(
    name: str, pool: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor, **settings: object
) -> None:
    """The launchers of this name and their references average as `pool` of torch does."""
    exact_y, exact_dx = map(nhwc, by_autograd(pool, nchw(x), nchw(dy)))
    for suffix in ("", "_reference"):
        y, dx = poisoned_like(dy), poisoned_like(x)
        getattr(pool_avg, name + suffix)(x, y, **settings)
        getattr(pool_avg, f"{name}_grad{suffix}")(dy, dx, **settings)
        assert rms_error(y, exact_y) <= TOLERANCE[x.dtype]
        assert rms_error(dx, exact_dx) <= TOLERANCE[x.dtype]


@pytest.mark.parametrize(
    ("window", "include", "divisor", "dtype"),
    [(*average, torch.float32) for average in AVERAGES]
    + [(*average, torch.bfloat16) for average in AVERAGES[:4]],
    ids=str,
)
def test_avg_pool2d(
    window: Window,
    include: bool,
    divisor: int | None,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> None:
    settings = (window.kernel, window.stride, window.padding, window.ceil, include, divisor)
    x, dy = randn(window.shape, dtype, generator), randn(window.out_shape(), dtype, generator)
    ours = {name: getattr(window, name) for name in ("kernel", "stride", "padding")}
    ours |= {"count_include_pad": include, "divisor_override": divisor}
    assert_averages(
        "avg_pool2d", lambda leaf: functional.avg_pool2d(leaf, *settings), x, dy, **ours
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "sides"), ADAPTIVE)
def test_adaptive_avg_pool2d(
    shape: tuple[int, ...], sides: Pair, dtype: torch.dtype, generator: torch.Generator
) -> None:
    x = randn(shape, dtype, generator)
    dy = randn((shape[0], *sides, shape[3]), dtype, generator)
    pool = partial(functional.adaptive_avg_pool2d, output_size=sides)
    assert_averages("adaptive_avg_pool2d", pool, x, dy)


def in_ranges(*maps: Tensor) -> list[Tensor]:
    """The same values as ranges of the channels of wider maps, each at a pitch of its own."""
    found = []
    for number, values in enumerate(maps, 1):
        channels = values.shape[-1]
        wide = poisoned((*values.shape[:-1], channels + 3 * number), values.dtype, values.device)
        found.append(wide[..., number : number + channels].copy_(values))
    return found


@pytest.mark.parametrize("window", [WINDOWS[1], WINDOWS[4], WINDOWS[10]])
def test_ranges_of_wider_maps(window: Window, generator: torch.Generator) -> None:
    """Pooling a range, and its gradient, into ranges: to the bits of maps of their own."""
    x = tied(window.shape, torch.bfloat16, generator)
    dy = randn(window.out_shape(), torch.bfloat16, generator)
    averages = window.settings() | {"count_include_pad": True, "divisor_override": None}
    del averages["dilation"]
    maxima = window.settings()
    calls: list[tuple[Callable[..., None], list[Tensor], Tensor, dict[str, Any]]] = [
        (pool_max.max_pool2d, [x], dy, maxima),
        (pool_max_grad.max_pool2d_grad, [x, dy], x, maxima),
        (pool_avg.avg_pool2d, [x], dy, averages),
        (pool_avg.avg_pool2d_grad, [dy], x, averages),
        (pool_avg.adaptive_avg_pool2d, [x], dy, {}),
        (pool_avg.adaptive_avg_pool2d_grad, [dy], x, {}),
    ]
    for launch, reads, like, settings in calls:
        expected = poisoned_like(like)
        launch(*reads, expected, **settings)
        *ranges, out = in_ranges(*reads, poisoned_like(like))
        launch(*ranges, out, **settings)
        assert torch.equal(out, expected)


@pytest.mark.gpu
def test_repeats(generator: torch.Generator) -> None:
    window = Window((4, 57, 57, 96), (3, 3), (2, 2), (1, 1))
    x = tied(window.shape, torch.bfloat16, generator)
    dy = randn(window.out_shape(), torch.bfloat16, generator)
    y, dx = poisoned_like(dy), poisoned_like(x)
    settings = window.settings()
    assert_repeatable(lambda: pool_max.max_pool2d(x, y, **settings), y)
    assert_repeatable(lambda: pool_max_grad.max_pool2d_grad(x, dy, dx, **settings), dx)
    codes = codes_of(window, x.device)
    assert_repeatable(lambda: pool_max.max_pool2d_codes(x, y, codes, **settings), y, codes)
    assert_repeatable(lambda: pool_max_grad.max_unpool2d(dy, codes, dx, **settings), dx)


@pytest.mark.gpu
def test_large_offsets(generator: torch.Generator) -> None:
    window = Window((1025, 256, 256, 32), (2, 2), (2, 2))
    x = poisoned(window.shape, torch.bfloat16, generator.device)
    x[-1] = randn(window.shape[1:], torch.bfloat16, generator)
    y = poisoned(window.out_shape(), torch.bfloat16, generator.device)
    pool_max.max_pool2d(x, y, **window.settings())
    last, dx = poisoned_like(y[-1:]), poisoned_like(x[-1:])
    pool_max.max_pool2d_reference(x[-1:], last, **window.settings())
    assert torch.equal(y[-1:], last)
    pool_max_grad.max_pool2d_grad_reference(x[-1:], last, dx, **window.settings())
    whole = poisoned_like(x)
    pool_max_grad.max_pool2d_grad(x, y, whole, **window.settings())
    assert torch.equal(whole[-1:], dx)
