"""Softmax and its logarithm against torch in float64, with gradients, in place too."""

from functools import partial

import pytest
import torch

from tests.kernels.numerics import assert_rounds, by_autograd, poisoned_like, randn, rms_error
from tvdnn.kernels.pointwise import softmax as kernels
from tvdnn.kernels.pointwise.softmax import FUNCTIONS

SHAPES = [(1, 1), (3, 10), (700, 21), (5, 1000), (2, 2049), (1, 16384), (0, 4)]
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_follows_float64(
    function: str,
    shape: tuple[int, int],
    dtype: torch.dtype,
    suffix: str,
    generator: torch.Generator,
) -> None:
    softmax, softmax_grad = (
        getattr(kernels, name + suffix) for name in ("softmax", "softmax_grad")
    )
    x, dy = (randn(shape, dtype, generator, scale) for scale in (3.0, 1.0))
    y, dx = poisoned_like(x), poisoned_like(x)
    softmax(x, y, function=function)
    exact = getattr(torch, function)(x.double(), 1)
    assert rms_error(y, exact) <= TOLERANCE[dtype]
    softmax_grad(y, dy, dx, function=function)
    values, wide = y.double(), dy.double()
    total = (wide if function == "log_softmax" else values * wide).sum(1, keepdim=True)
    exact = wide - values.exp() * total if function == "log_softmax" else values * (wide - total)
    assert rms_error(dx, exact) <= TOLERANCE[dtype]
    softmax_grad(y, dy, dy, function=function)
    assert torch.equal(dy, dx)
    softmax(x, x, function=function)
    assert torch.equal(x, y)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradient_is_autograds(function: str, generator: torch.Generator) -> None:
    x, dy = (randn((4, 9), torch.float64, generator) for _ in range(2))
    y, expected = by_autograd(lambda leaf: getattr(torch, function)(leaf, 1), x, dy)
    for launch in (kernels.softmax_grad, kernels.softmax_grad_reference):
        dx = torch.empty(4, 9, device=dy.device)
        launch(y.float(), dy.float(), dx, function=function)
        assert rms_error(dx, expected) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_by_input_have_the_bits_of_those_by_output(
    function: str, suffix: str, generator: torch.Generator
) -> None:
    x, dy = (randn((70, 21), torch.float32, generator, scale) for scale in (8.0, 1.0))
    y, dx, other = (poisoned_like(x) for _ in range(3))
    softmax, softmax_grad = (
        getattr(kernels, name + suffix) for name in ("softmax", "softmax_grad")
    )
    softmax(x, y, function=function)
    softmax_grad(y, dy, dx, function=function)
    softmax_grad(x, dy, other, function=function, by_input=True)
    assert torch.equal(dx, other)


def test_bits_do_not_depend_on_the_run(generator: torch.Generator) -> None:
    x = randn((301, 21), torch.float32, generator)
    whole, parts = poisoned_like(x), poisoned_like(x)
    kernels.softmax(x, whole, function="softmax")
    for rows in (slice(0, 7), slice(7, 301)):
        kernels.softmax(x[rows], parts[rows], function="softmax")
    assert torch.equal(whole, parts)


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_results_are_rounded_for_products(suffix: str, generator: torch.Generator) -> None:
    x, dy = (randn((9, 21), torch.float32, generator) for _ in range(2))
    for name, read in (("softmax", (x,)), ("softmax_grad", (x, dy))):
        launch = getattr(kernels, name + suffix)
        assert_rounds(partial(launch, *read, function="softmax"), x)
