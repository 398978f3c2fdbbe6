"""Maps copied by computed indices against torch's pads, slices, rolls, flips and their autograd."""

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.kernels.numerics import (
    assert_repeatable,
    assert_rounds,
    poisoned,
    poisoned_like,
    randn,
    rms_error,
)
from tvdnn.kernels.copy import remap as kernels
from tvdnn.kernels.copy.remap import Axis

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
DTYPES = list(TOLERANCE)
SUFFIXES = ["", "_reference"]
SAME = Axis()
Torchs = Callable[[Tensor], Tensor]


def padded(mode: str, *pads: int, value: float = 0.0) -> Torchs:
    """Torch's pad of maps [N, A, B, C]; `pads` are those of A and B."""
    top, bottom, left, right = pads
    given = (left, right, top, bottom)

    def pad(x: Tensor) -> Tensor:
        maps = x.permute(0, 3, 1, 2)
        settings = {"value": value} if mode == "constant" else {}
        return functional.pad(maps, given, mode, **settings).permute(0, 2, 3, 1)

    return pad


def pad_axes(mode: str, *pads: int) -> tuple[Axis, ...]:
    return Axis(-pads[0], mode=mode), Axis(-pads[2], mode=mode), SAME


CASES: dict[str, tuple[tuple[int, ...], tuple[Axis, ...], Torchs]] = {
    "zeros": ((2, 3, 4, 16), pad_axes("constant", 1, 2, 3, 0), padded("constant", 1, 2, 3, 0)),
    "crop": ((1, 5, 6, 7), pad_axes("constant", -1, 2, 3, -2), padded("constant", -1, 2, 3, -2)),
    "value": (
        (1, 2, 3, 33),
        pad_axes("constant", 1, 1, 0, 2),
        padded("constant", 1, 1, 0, 2, value=-2.5),
    ),
    "reflect": ((2, 4, 5, 3), pad_axes("reflect", 3, 3, 4, 1), padded("reflect", 3, 3, 4, 1)),
    "reflect less": (
        (1, 6, 5, 3),
        pad_axes("reflect", 2, -3, -1, 4),
        padded("reflect", 2, -3, -1, 4),
    ),
    "replicate": ((1, 3, 1, 9), pad_axes("replicate", 2, 5, 1, 3), padded("replicate", 2, 5, 1, 3)),
    "circular": ((1, 3, 4, 5), pad_axes("circular", 3, 2, 1, 4), padded("circular", 3, 2, 1, 4)),
    "slices": (
        (2, 7, 8, 21),
        (Axis(1, 2), Axis(0, 3), Axis(2, 5)),
        lambda x: x[:, 1::2, ::3, 2::5],
    ),
    "roll": (
        (1, 5, 4, 6),
        (Axis(-2, mode="circular"), Axis(1, mode="circular"), Axis(-7, mode="circular")),
        lambda x: x.roll((2, -1, 7), (1, 2, 3)),
    ),
    "flip": ((1, 5, 4, 6), (Axis(4, -1), SAME, Axis(5, -1)), lambda x: x.flip(1, 3)),
    "repeat": (
        (1, 2, 3, 5),
        (Axis(mode="circular"), SAME, Axis(mode="circular")),
        lambda x: x.repeat(1, 4, 1, 2),
    ),
    "expand": (
        (2, 1, 1, 20),
        (Axis(mode="circular"), Axis(mode="circular"), SAME),
        lambda x: x.expand(-1, 5, 7, -1),
    ),
    "empty": ((0, 3, 3, 4), (SAME, Axis(1), SAME), lambda x: x[:, :, 1:]),
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_follows_torch(
    name: str, dtype: torch.dtype, suffix: str, generator: torch.Generator
) -> None:
    remap, remap_grad = (getattr(kernels, each + suffix) for each in ("remap", "remap_grad"))
    shape, axes, torchs = CASES[name]
    x = randn(shape, dtype, generator)
    leaf = x.double().requires_grad_()
    exact = torchs(leaf)
    y, dx = poisoned(exact.shape, dtype, x.device), poisoned_like(x)
    dy = randn(y.shape, dtype, generator)
    remap(x, y, axes=axes, fill=-2.5 if name == "value" else 0.0)
    assert torch.equal(y, exact.detach().to(dtype))
    remap_grad(dy, dx, axes=axes)
    exact.backward(dy.double())
    assert leaf.grad is not None
    assert rms_error(dx, leaf.grad) <= TOLERANCE[dtype]


@pytest.mark.parametrize("mode", kernels.MODES)
def test_every_element_of_a_result_is_a_copy_of_its_source(mode: str) -> None:
    """`_copies` finds the elements that copy a source, for all starts, steps and sizes."""
    device = torch.device("cpu")
    sizes = itertools.product((1, 2, 5), (1, 3, 4), range(-4, 5), (-2, -1, 1, 2))
    for size, out_size, start, step in sizes:
        axis = Axis(start, step, mode)
        least, most = axis.bounds(out_size)
        if mode == "reflect" and (least <= -size or most >= 2 * size - 1):
            continue
        at, inside = kernels._source_reference(axis, size, out_size, device)
        expected = torch.zeros(size, dtype=torch.double)
        dy = torch.arange(1.0, out_size + 1, dtype=torch.double)
        expected.index_add_(0, at[inside], dy[inside])
        total = kernels._sum_of_copies(dy.view(1, -1, 1, 1), axis, size, 1)
        assert torch.equal(total.flatten(), expected)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_results_are_rounded_for_products(suffix: str, generator: torch.Generator) -> None:
    remap, remap_grad = (getattr(kernels, each + suffix) for each in ("remap", "remap_grad"))
    axes = pad_axes("reflect", 1, 1, 2, 2)
    x, dy = (randn((1, 4 + more, 5 + 2 * more, 7), torch.float32, generator) for more in (0, 2))
    for launch, read, like in ((remap, x, dy), (remap_grad, dy, x)):
        assert_rounds(partial(launch, read, axes=axes), like)


@pytest.mark.gpu
def test_repeats_and_large_offsets(generator: torch.Generator) -> None:
    x = randn((9, 1022, 1022, 256), torch.bfloat16, generator)
    y = poisoned((9, 1024, 1024, 256), torch.bfloat16, x.device)
    axes = pad_axes("reflect", 1, 1, 1, 1)
    kernels.remap(x, y, axes=axes)
    assert torch.equal(y[8, 1:-1, 1:-1], x[8])
    dx = poisoned_like(x[:1])
    assert_repeatable(lambda: kernels.remap_grad(y[:1], dx, axes=axes), dx)
