"""Gates against float64: their products and sums, and gradients that are sums over pixels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.kernels.numerics import (
    as_range,
    assert_repeatable,
    is_poisoned_beside,
    poisoned,
    poisoned_like,
    randn,
    rms_error,
)
from tvdnn.kernels.language.rounding import stored_reference
from tvdnn.kernels.pointwise import channel_broadcast, channel_broadcast_grad
from tvdnn.kernels.pointwise.channel_broadcast import FUNCTIONS, gate, gate_slices
from tvdnn.kernels.pointwise.channel_broadcast_grad import gate_grad, sum_slices

SHAPES = [(1, 1, 1), (3, 35, 11), (2, 519, 96), (1, 300, 64), (5, 49, 130), (0, 9, 8)]
TOLERANCE = {torch.float32: 5e-7, torch.bfloat16: 4e-3}
DTYPES = list(TOLERANCE)


def launchers(suffix: str) -> tuple[Callable[..., None], ...]:
    """The launchers of gates and their gradients, or their references."""
    modules = channel_broadcast, channel_broadcast_grad, channel_broadcast_grad
    names = "gate", "gate_grad", "sum_slices"
    return tuple(getattr(*each) for each in zip(modules, (n + suffix for n in names), strict=True))


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_follows_float64(
    shape: tuple[int, int, int], dtype: torch.dtype, suffix: str, generator: torch.Generator
) -> None:
    gate, gate_grad, sum_slices = launchers(suffix)
    samples, pixels, channels = shape
    x, dy = (randn(shape, dtype, generator) for _ in range(2))
    y, dx = poisoned_like(x), poisoned_like(x)
    for count in (samples, 1):
        gates = randn((count, channels), dtype, generator)
        factor = gates.double()[:, None]
        for function in FUNCTIONS:
            gate(x, gates, y, function=function)
            exact = x.double() * factor if function == "multiply" else x.double() + factor
            assert rms_error(y, exact) <= TOLERANCE[dtype]
        sums = poisoned((samples, gate_slices(pixels, channels), channels), torch.float32, x.device)
        gate_grad(x, gates, dy, dx, sums)
        assert rms_error(dx, dy.double() * factor) <= TOLERANCE[dtype]
        exact = (dy.double() * x.double()).sum(1)
        assert rms_error(sums.double().sum(1), exact) <= TOLERANCE[torch.float32]
    dgates = poisoned((samples, channels), dtype, x.device)
    sum_slices(sums, dgates)
    assert rms_error(dgates, exact) <= TOLERANCE[dtype]
    gate_grad(None, None, dy, None, sums)
    assert rms_error(sums.double().sum(1), dy.double().sum(1)) <= TOLERANCE[torch.float32]
    gate_grad(None, gates, dy, dy, None)
    assert torch.equal(dy, dx)
    gate(x, gates, x, function=FUNCTIONS[-1])
    assert torch.equal(x, y)


def gradient(*operands: Any) -> torch.Tensor:
    x = operands[0]
    sums = poisoned((len(x), gate_slices(*x.shape[1:]), x.shape[2]), torch.float32, x.device)
    gate_grad(*operands, poisoned_like(x), sums)
    return sums


def test_sums_do_not_depend_on_the_run(generator: torch.Generator) -> None:
    x, dy = (randn((5, 700, 40), torch.float32, generator) for _ in range(2))
    gates = randn((5, 40), torch.float32, generator)
    whole = gradient(x, gates, dy)
    for rows in (slice(0, 1), slice(1, 5)):
        assert torch.equal(gradient(x[rows], gates[rows], dy[rows]), whole[rows])


def test_ranges_of_wider_maps(generator: torch.Generator) -> None:
    """Ranges have the bits of maps of their own. Nothing beside them is read or written."""
    x, dy = (randn((3, 35, 18), torch.bfloat16, generator) for _ in range(2))
    gates, results = randn((3, 18), torch.bfloat16, generator), []
    for place in (torch.clone, as_range):
        y, dx, dgates = (place(poisoned_like(each)) for each in (x, x, gates))
        sums = poisoned((3, gate_slices(35, 18), 18), torch.float32, x.device)
        gate(place(x), place(gates), y)
        gate_grad(place(x), place(gates), place(dy), dx, sums)
        sum_slices(sums, dgates)
        results.append((y, dx, dgates, sums))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert all(is_poisoned_beside(part) for part in results[1][:3])


@pytest.mark.gpu
def test_repeats_and_large_offsets(generator: torch.Generator) -> None:
    x = randn((9, 12544, 24576), torch.bfloat16, generator)
    gates, y = randn((9, 24576), torch.bfloat16, generator), poisoned_like(x)
    gate(x, gates, y)
    assert torch.equal(y[8], x[8] * gates[8])
    sums = poisoned((2, gate_slices(12544, 96), 96), torch.float32, x.device)
    parts = tuple(each.view(-1)[: 2 * 12544 * 96].view(2, 12544, 96) for each in (x, y))
    run = gate_grad
    assert_repeatable(lambda: run(parts[0], None, parts[1], None, sums), sums)


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_results_are_rounded_for_products(suffix: str, generator: torch.Generator) -> None:
    gate, gate_grad, sum_slices = launchers(suffix)
    x, gates = (randn(shape, torch.float32, generator) for shape in ((2, 35, 24), (2, 24)))
    for launch, read, written in (
        (gate, (x, gates), (x,)),
        (gate_grad, (None, gates, x), (x, None)),
        (sum_slices, (x,), (gates,)),
    ):
        results = []
        for precision in ("ieee", "tf32"):
            outputs = [None if each is None else poisoned_like(each) for each in written]
            launch(*read, *outputs, precision=precision)
            results.append(outputs[0])
        assert torch.equal(results[1], stored_reference(results[0], torch.float32, "tf32"))
