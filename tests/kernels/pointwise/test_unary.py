"""Elementwise functions with numbers: kernels and references against torch in float64."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.kernels.numerics import (
    as_range,
    assert_rounds,
    assert_same_bits_in_runs,
    by_autograd,
    is_poisoned_beside,
    poisoned_like,
    randn,
    rms_error,
)
from tvdnn.kernels.pointwise.unary import (
    FUNCTIONS,
    NUMBERS,
    unary,
    unary_grad,
    unary_grad_reference,
    unary_reference,
)

LAUNCHERS = [(unary, unary_grad), (unary_reference, unary_grad_reference)]
ULP = 2.0**-23
TOLERANCE = {torch.float32: 4 * ULP, torch.bfloat16: 4e-3}
SHAPES = [(2,), (3, 5, 7, 11), (4097,), (0, 4, 4, 8)]
POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal", "pow")  # tested where they are smooth
CASES: dict[str, tuple[float, float, Callable[[Tensor], Tensor]]] = {
    "mish": (0, 0, functional.mish),
    "softplus": (1.5, 2.0, lambda x: functional.softplus(x, 1.5, 2.0)),
    "celu": (0.7, 0, lambda x: functional.celu(x, 0.7)),
    "selu": (0, 0, functional.selu),
    "log_sigmoid": (0, 0, functional.logsigmoid),
    "softsign": (0, 0, functional.softsign),
    "hardtanh": (-0.5, 1.5, lambda x: functional.hardtanh(x, -0.5, 1.5)),
    "clamp": (-0.5, 1.5, lambda x: torch.clamp(x, -0.5, 1.5)),
    "threshold": (0.25, 3.0, lambda x: functional.threshold(x, 0.25, 3.0)),
    "abs": (0, 0, torch.abs),
    "exp": (0, 0, torch.exp),
    "log": (0, 0, torch.log),
    "sin": (0, 0, torch.sin),
    "cos": (0, 0, torch.cos),
    "sqrt": (0, 0, torch.sqrt),
    "rsqrt": (0, 0, torch.rsqrt),
    "square": (0, 0, torch.square),
    "cube": (0, 0, lambda x: x**3),
    "reciprocal": (2.5, 0, lambda x: 2.5 / x),
    "pow": (1.7, 0, lambda x: x**1.7),
}
ENDS = [math.nan, math.inf, -math.inf, 0.0, 100.0, -100.0, 0.25, -0.5, 1.5]
# The numbers of first ends at which torch's values and gradients differ between CPUs and GPUs.
UNSURE = {
    "mish": (0, 3),
    "softplus": (0, 3),
    "log_sigmoid": (0, 3),
    "softsign": (0, 3),
    "celu": (0, 1),
    "selu": (0, 1),
    "hardtanh": (0, 1),
    "pow": (3, 3),
}


def settings_of(function: str) -> dict[str, str | float]:
    a, b, _ = CASES[function]
    return {"function": function, "a": a, "b": b}


def operands(
    function: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    x, dy = (randn(shape, dtype, generator) for _ in range(2))
    return (x.abs() + 0.25 if function in POSITIVE else x), dy


def test_every_function_is_tested() -> None:
    assert set(CASES) == set(FUNCTIONS)
    assert set(NUMBERS) <= set(FUNCTIONS)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_follows_float64(
    function: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> None:
    x, dy = operands(function, shape, dtype, generator)
    exact_y, exact_dx = by_autograd(CASES[function][2], x.double(), dy.double())
    for forward, backward in LAUNCHERS:
        y, dx = poisoned_like(x), poisoned_like(x)
        forward(x, y, **settings_of(function))
        backward(x, dy, dx, **settings_of(function))
        assert rms_error(y, exact_y) <= TOLERANCE[dtype]
        assert rms_error(dx, exact_dx) <= TOLERANCE[dtype]
        read, overwritten = x.clone(), dy.clone()
        backward(x, overwritten, overwritten, **settings_of(function))
        forward(read, read, **settings_of(function))
        assert torch.equal(read, y)
        assert torch.equal(overwritten, dx)


@pytest.mark.parametrize("exponent", [-2.0, -1.5, 0.0, 0.3, 4.0, 5.0])
def test_powers_of_any_sign(exponent: float, generator: torch.Generator) -> None:
    x, dy = (randn((999,), torch.float32, generator) for _ in range(2))
    x[:2] = 0.0
    x[2:5] = torch.tensor([1.0, -1.0, -2.0])
    expected, gradient = by_autograd(lambda leaf: leaf**exponent, x.double(), dy.double())
    for forward, backward in LAUNCHERS:
        y, dx = poisoned_like(x), poisoned_like(x)
        forward(x, y, function="pow", a=exponent)
        backward(x, dy, dx, function="pow", a=exponent)
        options = {"rtol": 64 * ULP, "atol": 0.0, "equal_nan": True}
        torch.testing.assert_close(y.double(), expected, **options)
        torch.testing.assert_close(dx.double(), gradient, **options)


@pytest.mark.parametrize("scale", [1e-4, 10.0])
@pytest.mark.parametrize("function", ["mish", "softplus", "log_sigmoid", "celu", "selu"])
def test_small_and_large_values_keep_their_digits(
    function: str, scale: float, generator: torch.Generator
) -> None:
    x, dy = (randn((4099,), torch.float32, generator, each) for each in (scale, 1.0))
    exact_y, exact_dx = by_autograd(CASES[function][2], x.double(), dy.double())
    for forward, backward in LAUNCHERS:
        y, dx = poisoned_like(x), poisoned_like(x)
        forward(x, y, **settings_of(function))
        backward(x, dy, dx, **settings_of(function))
        assert ((y - exact_y).abs() <= 32 * ULP * exact_y.abs() + 1e-38).all()
        least = dy.abs() * ULP if function == "mish" else 1e-38  # Mish has a slope of 0
        assert ((dx - exact_dx).abs() <= 32 * ULP * exact_dx.abs() + least).all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_ends_as_torchs(function: str, generator: torch.Generator) -> None:
    """The ends are NaN, infinities, zero, large values and corners."""
    x = torch.tensor(ENDS, device=generator.device)
    dy = torch.full_like(x, 3.0)
    exact_y, exact_dx = by_autograd(CASES[function][2], x.double(), dy.double())
    sure_y, sure_dx = (slice(count, None) for count in UNSURE.get(function, (0, 0)))
    for forward, backward in LAUNCHERS:
        y, dx = poisoned_like(x), torch.zeros_like(x)
        forward(x, y, **settings_of(function))
        backward(x, dy, dx, **settings_of(function))
        assert y[0].isnan()
        options = {"rtol": 64 * ULP, "atol": 1e-6, "equal_nan": True}
        torch.testing.assert_close(y[sure_y], exact_y.float()[sure_y], **options)
        torch.testing.assert_close(dx[sure_dx], exact_dx.float()[sure_dx], **options)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bits_do_not_depend_on_where_launches_are_cut(
    function: str, generator: torch.Generator
) -> None:
    x, dy = operands(function, (19, 577), torch.float32, generator)
    for forward, backward in LAUNCHERS:
        launches = (partial(each, **settings_of(function)) for each in (forward, backward))
        assert_same_bits_in_runs(*launches, x, dy)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_ranges_of_wider_maps(function: str, generator: torch.Generator) -> None:
    """Ranges have the bits of maps of their own. Nothing beside them is read or written."""
    x, dy = operands(function, (3, 5, 7, 24), torch.bfloat16, generator)
    y, dx = poisoned_like(x), poisoned_like(x)
    part, other, part_y, part_dx = (as_range(each) for each in (x, dy, y, dx))
    for maps, made in (((x, dy), (y, dx)), ((part, other), (part_y, part_dx))):
        unary(maps[0], made[0], **settings_of(function))
        unary_grad(maps[0], maps[1], made[1], **settings_of(function))
    for written, whole in ((part_y, y), (part_dx, dx)):
        assert torch.equal(written, whole)
        assert is_poisoned_beside(written)


def test_results_are_rounded_for_products(generator: torch.Generator) -> None:
    x, dy = (randn((999,), torch.float32, generator) for _ in range(2))
    for forward, backward in LAUNCHERS:
        assert_rounds(partial(forward, x, function="mish"), x)
        assert_rounds(partial(backward, x, dy, function="mish"), x)
