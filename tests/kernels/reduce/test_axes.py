"""Reductions over axes of maps against torch's and their autograd, in float64."""

from functools import partial

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import (
    assert_repeatable,
    assert_rounds,
    poisoned,
    poisoned_like,
    randn,
    rms_error,
)
from tvdnn.kernels.reduce import axes as kernels

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3}
DTYPES = list(TOLERANCE)
SUFFIXES = ["", "_reference"]
K, R = False, True
LAYOUTS = [
    (2, (35, 19), (R, K)),
    (2, (7, 130), (K, R)),
    (1, (3, 5, 7), (K, R, K)),
    (2, (3, 5, 7), (R, K, R)),
    (1, (2, 3, 4, 5), (K, R, K, R)),
    (3, (5000,), (R,)),
    (0, (3, 4), (R, K)),
]


def torchs(x: Tensor, sizes: tuple[int, ...], reduced: tuple[bool, ...], function: str) -> Tensor:
    dims = [1 + i for i, each in enumerate(reduced) if each]
    x = x.view(len(x), *sizes)
    if function in ("max", "min"):
        kept = [1 + i for i, each in enumerate(reduced) if not each]
        rows = x.permute(0, *kept, *dims).flatten(1 + len(kept))
        return getattr(rows, function)(-1).values.reshape(len(x), -1)
    if function in ("var", "std"):
        return getattr(x, function)(dims, correction=1).reshape(len(x), -1)
    if function == "norm":
        return torch.linalg.vector_norm(x, dim=dims).reshape(len(x), -1)
    return getattr(x, function)(dims).reshape(len(x), -1)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", kernels.FUNCTIONS)
@pytest.mark.parametrize(("samples", "sizes", "reduced"), LAYOUTS)
def test_follows_torch(
    samples: int,
    sizes: tuple[int, ...],
    reduced: tuple[bool, ...],
    function: str,
    dtype: torch.dtype,
    suffix: str,
    generator: torch.Generator,
) -> None:
    reduce, grad = (getattr(kernels, each + suffix) for each in ("reduce_axes", "reduce_axes_grad"))
    x = randn((samples, *sizes), dtype, generator)
    if function in ("amax", "amin", "max", "min"):
        x = (2 * x).round()  # several are the largest
    settings = {"sizes": sizes, "reduced": reduced, "function": function}
    settings |= {"correction": 1.0} if function in ("var", "std") else {}
    leaf = x.double().requires_grad_()
    exact = torchs(leaf, sizes, reduced, function) if samples else x.new_zeros(0, sizes[-1])
    y, dx = poisoned(exact.shape, dtype, x.device), poisoned_like(x)
    dy = randn(y.shape, dtype, generator)
    reduce(x, y, **settings)
    assert rms_error(y, exact.detach()) <= TOLERANCE[dtype]
    grad(x if function in kernels.READS_INPUT else None, dy, dx, **settings)
    if samples:
        exact.backward(dy.double())
        assert leaf.grad is not None
        assert rms_error(dx, leaf.grad) <= TOLERANCE[dtype]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("function", ["norm", "std"])
def test_no_gradient_where_all_elements_are_alike(
    function: str, suffix: str, generator: torch.Generator
) -> None:
    grad = getattr(kernels, f"reduce_axes_grad{suffix}")
    x = torch.zeros(1, 3, 4, device=generator.device)
    dx = poisoned_like(x)
    settings = {"sizes": (3, 4), "reduced": (R, K), "function": function}
    grad(x, torch.ones(1, 4, device=x.device), dx, **settings)
    assert not dx.any()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("function", ["amax", "amin"])
def test_extremes_of_what_is_no_number(
    function: str, suffix: str, generator: torch.Generator
) -> None:
    reduce = getattr(kernels, f"reduce_axes{suffix}")
    x = randn((2, 40), torch.float32, generator)
    x[1, 7] = torch.nan
    y = poisoned((2, 1), torch.float32, x.device)
    reduce(x, y, sizes=(40,), reduced=(R,), function=function)
    assert y[1].isnan()
    assert y[0] == getattr(x[0], function)()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_results_are_rounded_for_products(suffix: str, generator: torch.Generator) -> None:
    reduce, grad = (getattr(kernels, each + suffix) for each in ("reduce_axes", "reduce_axes_grad"))
    settings = {"sizes": (5, 7), "reduced": (R, K), "function": "mean"}
    x, dy = randn((2, 5, 7), torch.float32, generator), randn((2, 7), torch.float32, generator)
    assert_rounds(partial(reduce, x, **settings), dy)
    assert_rounds(partial(grad, None, dy, **settings), x)


@pytest.mark.gpu
def test_repeats_and_large_offsets(generator: torch.Generator) -> None:
    x = randn((9, 1 << 20, 256), torch.bfloat16, generator)
    y = poisoned((9, 256), torch.bfloat16, x.device)
    settings = {"sizes": (1 << 20, 256), "reduced": (R, K), "function": "mean"}
    assert_repeatable(lambda: kernels.reduce_axes(x, y, **settings), y)
    assert rms_error(y[8], x[8].double().mean(0)) < 0.01
