"""Activation functions against their references, and the references against autograd."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.kernels.numerics import (
    as_range,
    assert_repeatable,
    assert_same_bits_in_runs,
    by_autograd,
    is_poisoned_beside,
    poisoned_like,
    randn,
    rms_error,
)
from tvdnn.kernels.pointwise.activation import (
    BY_EXACT_OUTPUT,
    BY_OUTPUT,
    FUNCTIONS,
    activate,
    activate_grad,
    activate_grad_reference,
    activate_reference,
    relu,
    relu_grad,
    relu_grad_reference,
    relu_reference,
)

SHAPES = [(1,), (3, 5, 7, 11), (4097,), (2, 4, 8, 64), (0, 4, 4, 8)]
DTYPES = [torch.float32, torch.bfloat16]
ULP = 2.0**-23
TOLERANCE = {torch.float32: 3 * ULP, torch.bfloat16: 4e-3}
COEFFICIENT = 0.3
SOME = ("leaky_relu", "silu")  # by output and by input
# The number of first ends, NaN and infinity, at which torch differs between CPUs and GPUs.
UNSURE = {"relu6": 2, "gelu": 2, "elu": 1, "hardswish": 1}
LAUNCHERS = [(activate, activate_grad), (activate_reference, activate_grad_reference)]
TORCHS: dict[str, Callable[[Tensor], Tensor]] = {
    "leaky_relu": lambda x: functional.leaky_relu(x, COEFFICIENT),
    "elu": lambda x: functional.elu(x, COEFFICIENT),
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "relu6": functional.relu6,
}


def same_bits(actual: Tensor, expected: Tensor) -> bool:
    return torch.equal(actual.nan_to_num(7e7), expected.nan_to_num(7e7))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_forward_equals_reference(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> None:
    x = randn(shape, dtype, generator)
    y, expected = poisoned_like(x), poisoned_like(x)
    relu(x, y)
    relu_reference(x, expected)
    assert torch.equal(y, expected)
    relu(x, x)
    assert torch.equal(x, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_equals_reference(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> None:
    y, dy = randn(shape, dtype, generator).relu(), randn(shape, dtype, generator)
    dx, expected = poisoned_like(y), poisoned_like(y)
    relu_grad(y, dy, dx)
    relu_grad_reference(y, dy, expected)
    assert torch.equal(dx, expected)
    relu_grad(y, dy, dy)
    assert torch.equal(dy, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_is_autograd_with_nan(dtype: torch.dtype, generator: torch.Generator) -> None:
    x = randn((2, 3, 5, 8), dtype, generator)
    x.view(-1)[:4] = torch.tensor([math.nan, math.inf, -math.inf, 0.0])
    dy = randn(x.shape, dtype, generator)
    leaf = x.clone().requires_grad_()
    torch.relu(leaf).backward(dy)
    y, dx = poisoned_like(x), poisoned_like(x)
    for forward, backward in [(relu, relu_grad), (relu_reference, relu_grad_reference)]:
        forward(x, y)
        backward(y, dy, dx)
        assert same_bits(y, torch.relu(x))
        assert leaf.grad is not None
        assert same_bits(dx, leaf.grad)


def settings_of(function: str) -> dict[str, str | float]:
    return {"function": function, "coefficient": COEFFICIENT}


def test_every_function_is_tested() -> None:
    assert TORCHS.keys() == set(FUNCTIONS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_equal_their_references(
    function: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> None:
    x, dy = (randn(shape, dtype, generator) for _ in range(2))
    settings = settings_of(function)
    y, expected = poisoned_like(x), poisoned_like(x)
    activate(x, y, **settings)
    activate_reference(x, expected, **settings)
    assert rms_error(y, expected) <= TOLERANCE[dtype]

    values = expected if function in BY_OUTPUT else x
    dx, expected = poisoned_like(x), poisoned_like(x)
    activate_grad(values, dy, dx, **settings)
    activate_grad_reference(values, dy, expected, **settings)
    assert rms_error(dx, expected) <= TOLERANCE[dtype]

    activate_grad(values, dy, dy, **settings)
    assert torch.equal(dy, dx)
    activate(x, x, **settings)
    assert torch.equal(x, y)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3.0])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_are_exact_to_float32(
    function: str, scale: float, generator: torch.Generator
) -> None:
    """Errors are in ulps of the RMS. Gradients found from outputs near 1 have their error too."""
    x, dy = (randn((4099,), torch.float32, generator, spread) for spread in (scale, 1.0))
    exact_y, exact_dx = by_autograd(TORCHS[function], x.double(), dy.double())
    for (forward, backward), ulps in zip(LAUNCHERS, (2.0, 0.7), strict=True):
        y, dx = poisoned_like(x), poisoned_like(x)
        forward(x, y, **settings_of(function))
        backward(y if function in BY_OUTPUT else x, dy, dx, **settings_of(function))
        assert rms_error(y, exact_y) <= ulps * ULP
        assert rms_error(dx, exact_dx) <= ulps * ULP


@pytest.mark.parametrize("function", ["tanh", "elu", "silu", "gelu"])
def test_small_values_keep_their_digits(function: str, generator: torch.Generator) -> None:
    x = randn((4099,), torch.float32, generator, 1e-5)
    exact_y, _ = by_autograd(TORCHS[function], x.double(), x.double())
    for forward, _ in LAUNCHERS:
        y = poisoned_like(x)
        forward(x, y, **settings_of(function))
        assert ((y.double() - exact_y).abs() <= 2 * ULP * exact_y.abs()).all()


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("function", BY_EXACT_OUTPUT)
def test_gradients_by_input_have_the_bits_of_those_by_output(
    function: str, beside: bool, generator: torch.Generator
) -> None:
    """In whole maps, and in ranges of wider ones."""
    x, dy = (randn((7, 5, 5, 16), torch.float32, generator, spread) for spread in (8.0, 1.0))
    x = x[..., 4:12] if beside else x
    dy = dy[..., : x.shape[-1]]
    for forward, backward in LAUNCHERS:
        y, dx, other = (poisoned_like(x) for _ in range(3))
        forward(x, y, **settings_of(function))
        backward(y, dy, dx, **settings_of(function))
        backward(x, dy, other, **settings_of(function), by_input=True)
        assert torch.equal(dx, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_end_as_torchs(
    function: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """The ends are NaN, infinities, large values and corners."""
    ends = [math.nan, math.inf, -math.inf, 0.0, -0.0, 3.0, -3.0, 6.0, 100.0, -100.0, 2.984375]
    x = torch.tensor(ends, dtype=dtype, device=generator.device)
    dy = torch.full_like(x, 3.0)
    torchs_y, torchs_dx = by_autograd(TORCHS[function], x, dy)
    sure = slice(UNSURE.get(function, 0), None)
    for forward, backward in LAUNCHERS:
        y, dx = poisoned_like(x), poisoned_like(x)
        forward(x, y, **settings_of(function))
        backward(y if function in BY_OUTPUT else x, dy, dx, **settings_of(function))
        assert y[0].isnan()
        options = {"rtol": 2 * torch.finfo(dtype).eps, "equal_nan": True}
        torch.testing.assert_close(y[sure], torchs_y[sure], atol=1e-6, **options)
        torch.testing.assert_close(dx[sure], torchs_dx[sure], atol=3.0 * 1e-6, **options)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bits_do_not_depend_on_where_launches_are_cut(
    function: str, generator: torch.Generator
) -> None:
    x, dy = (randn((19, 577), torch.float32, generator) for _ in range(2))
    for forward, backward in LAUNCHERS:
        launches = (partial(each, **settings_of(function)) for each in (forward, backward))
        assert_same_bits_in_runs(*launches, x, dy)


@pytest.mark.parametrize(("before", "after"), [(8, 16), (1, 2)])
@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        (relu, relu_grad),
        *((partial(activate, function=f), partial(activate_grad, function=f)) for f in SOME),
    ],
    ids=["relu", *SOME],
)
def test_ranges_of_wider_maps(
    forward: Callable[..., None],
    backward: Callable[..., None],
    before: int,
    after: int,
    generator: torch.Generator,
) -> None:
    """Ranges have the bits of maps of their own. Nothing beside them is read or written."""
    x, dy = (randn((3, 5, 7, 72), torch.bfloat16, generator) for _ in range(2))
    y, dx = poisoned_like(x), poisoned_like(x)
    wide = {"before": before, "after": after}
    part, other, part_y, part_dx = (as_range(each, **wide) for each in (x, dy, y, dx))
    for maps, made in (((x, dy), (y, dx)), ((part, dy), (part_y, part_dx))):
        forward(maps[0], made[0])
        backward(maps[0], maps[1], made[1])
    backward(x, other, other)
    assert torch.equal(part_y, y)
    for gradient in (part_dx, other):
        assert torch.equal(gradient, dx)
        assert is_poisoned_beside(gradient)


@pytest.mark.gpu
def test_repeats_and_large_offsets(generator: torch.Generator) -> None:
    x = randn((3, 37, 41, 64), torch.bfloat16, generator)
    y = poisoned_like(x)
    assert_repeatable(lambda: relu(x, y), y)
    large = torch.full(((1 << 31) + 5000,), -1.0, dtype=torch.bfloat16, device=x.device)
    large[-5000:] = 3.0
    relu(large, large)
    assert large[-5000:].eq(3.0).all()
    assert large[-10000:-5000].eq(0.0).all()
