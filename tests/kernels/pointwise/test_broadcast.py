"""Operands that broadcast: kernels and references against torch in float64."""

from functools import partial

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import assert_rounds, poisoned, poisoned_like, randn, rms_error
from tvdnn.kernels.pointwise import broadcast as own
from tvdnn.kernels.pointwise.broadcast import FUNCTIONS, sum_slices_of

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
LAUNCHERS = [
    (own.broadcast, own.broadcast_grad, own.broadcast_grad_sums),
    (own.broadcast_reference, own.broadcast_grad_reference, own.broadcast_grad_sums_reference),
]
SHAPES = [
    ((3, 5, 7, 11), (3, 5, 7, 11)),
    ((3, 5, 7, 11), (3, 1, 1, 11)),
    ((3, 5, 7, 11), (3, 5, 7, 1)),
    ((2, 1, 40, 65), (1, 1, 1, 1)),
    ((2, 4, 6, 70), (1, 4, 1, 70)),
    ((3, 5, 1, 11), (3, 1, 7, 1)),
    ((2, 33, 65, 3), (1, 1, 65, 1)),
    ((2, 1, 1, 1), (2, 1, 1, 1)),
    ((0, 2, 3, 4), (0, 1, 3, 1)),
]


def exact(a: Tensor, b: Tensor, dy: Tensor, function: str) -> tuple[Tensor, Tensor, Tensor]:
    """The value in float64, and both gradients."""
    leaves = [each.double().requires_grad_() for each in (a, b)]
    first, second = leaves
    y = {
        "add": lambda: first + 0.3 * second,
        "multiply": lambda: first * second,
        "divide": lambda: first / second,
        "maximum": lambda: torch.maximum(first, second),
        "minimum": lambda: torch.minimum(first, second),
    }[function]()
    return y.detach(), *torch.autograd.grad(y, leaves, dy.double())


def needed(a: Tensor, b: Tensor, function: str, first: bool) -> tuple[Tensor | None, Tensor | None]:
    """The operands that a gradient hangs on."""
    if function == "add":
        return None, None
    needs_a = (function != "multiply" and not (function == "divide" and first)) or not first
    return (a if needs_a else None), (b if function != "multiply" or first else None)


@pytest.mark.parametrize(
    ("function", "shapes", "dtype"),
    [
        *(("divide", shapes, torch.float32) for shapes in SHAPES),
        *((function, shapes, torch.bfloat16) for function in FUNCTIONS for shapes in SHAPES[:2]),
    ],
    ids=str,
)
def test_follows_float64(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], function: str, dtype: torch.dtype,
    generator: torch.Generator,
) -> None:  # fmt: skip
    a, b = (randn(shape, dtype, generator) for shape in shapes)
    if function == "divide":
        b = (b.abs() + 0.5).to(dtype)
    shape = torch.broadcast_shapes(*shapes)
    dy = randn(shape, dtype, generator)
    y_exact, *grads = exact(a, b, dy, function)
    wide = [each.expand(shape) for each in (a, b)]
    _, *terms = exact(*wide, dy, function)  # sums that cancel are as exact as their terms
    for forward, grad, grad_sums in LAUNCHERS:
        y = poisoned_like(dy)
        forward(*wide, y, function=function, scale=0.3)
        assert rms_error(y, y_exact) <= TOLERANCE[dtype]
        for number, expected in enumerate(grads):
            first = number == 0
            settings = {"function": function, "first": first, "scale": 0.3}
            read = needed(*wide, function, first)
            kept = tuple(
                size == full for size, full in zip(shapes[number][1:], shape[1:], strict=True)
            )
            if shapes[number] == tuple(shape):
                dx = poisoned_like(dy)
                grad(dy, *read, dx, **settings)
                assert rms_error(dx, expected) <= TOLERANCE[dtype]
            columns = torch.Size(s for s, k in zip(shape[1:], kept, strict=True) if k).numel()
            repeats = torch.Size(shape[1:]).numel() // columns
            size = (shape[0], sum_slices_of(repeats, columns), columns)
            sums = poisoned(size, torch.float32, dy.device)
            grad_sums(dy, *read, sums, kept=kept, **settings)
            apart = 1 if shapes[number][0] == shape[0] else (0, 1)
            off = sums.double().sum(apart).view(shapes[number]) - expected
            size = terms[number].square().sum_to_size(shapes[number]).sqrt()
            assert rms_error(size + off, size) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("function", ["maximum", "minimum"])
def test_equal_operands_share_the_gradient(function: str, generator: torch.Generator) -> None:
    a = torch.tensor([1.0, 2.0, 3.0, float("nan")], device=generator.device).view(1, 1, 1, 4)
    b = torch.tensor([1.0, 3.0, 2.0, 1.0], device=generator.device).view(1, 1, 1, 4)
    dy = torch.ones_like(a)
    y_exact, *grads = exact(a, b, dy, function)
    for forward, grad, _ in LAUNCHERS:
        y = poisoned_like(a)
        forward(a, b, y, function=function)
        assert torch.equal(y.nan_to_num(7.0), y_exact.float().nan_to_num(7.0))
        for first in (True, False):
            dx = poisoned_like(a)
            grad(dy, a, b, dx, function=function, first=first)
            assert torch.equal(dx[..., :3], grads[not first].float()[..., :3])


def test_bits_do_not_depend_on_the_run(generator: torch.Generator) -> None:
    a, dy = (randn((5, 9, 10, 40), torch.float32, generator) for _ in range(2))
    b = randn((5, 9, 10, 1), torch.float32, generator).expand(a.shape)
    kept = (True, True, False)
    for forward, _, grad_sums in LAUNCHERS:
        y, sums = poisoned_like(a), poisoned((5, 1, 90), torch.float32, a.device)
        settings = {"function": "divide", "first": False, "kept": kept}
        forward(a, b, y, function="divide")
        grad_sums(dy, a, b, sums, **settings)
        for rows in (slice(0, 1), slice(1, 5)):
            part, part_sums = poisoned_like(y[rows]), poisoned_like(sums[rows])
            forward(a[rows], b[rows], part, function="divide")
            grad_sums(dy[rows], a[rows], b[rows], part_sums, **settings)
            assert torch.equal(part, y[rows])
            assert torch.equal(part_sums, sums[rows])


def test_dimensions_in_any_order(generator: torch.Generator) -> None:
    """Operands stored in torch's order of dimensions, as parameters are."""
    x, dy = (randn((3, 4, 5, 6), torch.float32, generator) for _ in range(2))
    param = randn((6, 4, 5), torch.float32, generator)  # [C, H, W]
    y_exact, _, exact_param = exact(x, param.permute(1, 2, 0)[None], dy, "multiply")
    for forward, _, grad_sums in LAUNCHERS:
        y, sums = poisoned_like(x), poisoned((3, 1, 120), torch.float32, x.device)
        forward(x, param.permute(1, 2, 0)[None].expand(x.shape), y, function="multiply")
        by_channel = [each.permute(0, 3, 1, 2) for each in (dy, x)]
        settings = {"function": "multiply", "first": False, "kept": (True, True, True)}
        grad_sums(*by_channel, None, sums, **settings)
        assert rms_error(y, y_exact) <= 1e-6
        total = sums.double().sum((0, 1)).view(6, 4, 5).permute(1, 2, 0)
        assert rms_error(total, exact_param[0]) <= 1e-6


def test_results_are_rounded_for_products(generator: torch.Generator) -> None:
    a, b, dy = (randn((2, 3, 4, 8), torch.float32, generator) for _ in range(3))
    for forward, grad, _ in LAUNCHERS:
        assert_rounds(partial(forward, a, b, function="divide"), a)
        assert_rounds(partial(grad, dy, a, b, function="divide", first=True), a)
