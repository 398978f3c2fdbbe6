"""Group and instance normalization against their reference, and the reference against torch."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.kernels.numerics import assert_rounds, poisoned, poisoned_like, randn, rms_error
from tvdnn.kernels.language import channel_chunks as chunks
from tvdnn.kernels.norm import group_norm as own

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3}
EPS = 1e-5
PAIRS = [
    (own.group_norm, own.group_norm_grad),
    (own.group_norm_reference, own.group_norm_grad_reference),
]
CASES = [
    *(((2, 49, 96), 32), ((3, 5, 7), 7), ((2, 1, 12), 3), ((1, 300, 130), 10), ((2, 3, 2), 1)),
    *(((1, 4100, 6), 2), ((0, 4, 8), 2)),
]


def room(x: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Poisoned values by group, and sums by chunk."""
    samples, pixels, channels = x.shape
    sums = (samples, chunks.num_chunks(pixels, channels), 2, channels)
    shapes = (samples, groups, 2), sums
    by_group, by_chunk = (poisoned(shape, torch.float32, x.device) for shape in shapes)
    return by_group, by_chunk


@pytest.mark.parametrize(("dtype", "affine"), [(torch.float32, True), (torch.bfloat16, False)])
@pytest.mark.parametrize(("shape", "groups"), CASES)
def test_follows_torch(
    shape: Sequence[int], groups: int, dtype: torch.dtype, affine: bool, generator: torch.Generator
) -> None:
    x, dy = randn(shape, dtype, generator, 2.0) + 5.0, randn(shape, dtype, generator)
    params = [randn(shape[2:], torch.float32, generator) if affine else None for _ in range(2)]
    leaf = x.double().requires_grad_()
    leaves = [None if param is None else param.double().requires_grad_() for param in params]
    if x.numel():
        expected = functional.group_norm(leaf.mT, groups, *leaves, EPS).mT
        expected.backward(dy.double())
    for forward, backward in PAIRS:
        y, dx = poisoned_like(x), poisoned_like(x)
        (moments, partials), (slopes, sums) = room(x, groups), room(x, groups)
        forward(x, *params, y, moments, partials, groups=groups, eps=EPS)
        backward(x, dy, params[0], moments, dx, sums, slopes, groups=groups)
        if leaf.grad is None:
            continue
        assert rms_error(y, expected.detach()) <= TOLERANCE[dtype]
        assert rms_error(dx, leaf.grad) <= TOLERANCE[dtype]
        for kind, param in enumerate(leaves):
            if param is not None:
                error = rms_error(sums[:, :, kind].sum((0, 1)), param.grad)
                assert error <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("samples", [1, 5])
def test_a_group_of_one_value_is_its_bias(samples: int, generator: torch.Generator) -> None:
    """Torch computes so for batches of several samples, of which a section may hold one."""
    x, dy = (randn((samples, 1, 12), torch.float32, generator) for _ in range(2))
    weight, bias = (randn((12,), torch.float32, generator) for _ in range(2))
    for forward, backward in PAIRS:
        y, dx = poisoned_like(x), poisoned_like(x)
        (moments, partials), (slopes, sums) = room(x, 12), room(x, 12)
        forward(x, weight, bias, y, moments, partials, groups=12, eps=EPS)
        backward(x, dy, weight, moments, dx, sums, slopes, groups=12)
        assert torch.equal(y, bias.expand_as(y))
        assert (dx.abs() <= 1e-6 * EPS**-0.5 * (dy * weight).abs()).all()
        assert torch.equal(sums[:, 0, 0], torch.zeros_like(sums[:, 0, 0]))
        assert torch.equal(sums[:, 0, 1], dy[:, 0])


def test_chunks_of_many_tiles(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Means far from zero and drifting over the pixels; chunks of several tiles, the last short."""
    monkeypatch.setattr(chunks, "TILE", 128)
    monkeypatch.setattr(chunks, "MOST_CHUNKS", 4)
    x = randn((2, 333, 5), torch.float32, generator) + torch.linspace(90, 110, 333)[:, None].to(
        generator.device
    )
    assert chunks.num_chunks(333, 5) == 3
    dy, weight = randn(x.shape, torch.float32, generator), randn((5,), torch.float32, generator)
    results = []
    for forward, backward in PAIRS:
        y, dx = poisoned_like(x), poisoned_like(x)
        (moments, partials), (slopes, sums) = room(x, 5), room(x, 5)
        forward(x, weight, None, y, moments, partials, groups=5, eps=EPS)
        backward(x, dy, weight, moments, dx, sums, slopes, groups=5)
        results.append((y, dx, moments, slopes, sums))
    for ours, exact in zip(*results, strict=True):
        assert rms_error(ours, exact) <= 3e-6


def test_gradients_may_lie_in_place_and_alone(generator: torch.Generator) -> None:
    x, dy = (randn((3, 50, 24), torch.float32, generator) for _ in range(2))
    weight = randn((24,), torch.float32, generator)
    moments, partials = room(x, 4)
    own.group_norm(x, weight, None, poisoned_like(x), moments, partials, groups=4, eps=EPS)
    for _, backward in PAIRS:
        dx, (slopes, sums) = poisoned_like(x), room(x, 4)
        backward(x, dy, weight, moments, dx, sums, slopes, groups=4)
        overwritten, (_, again), (_, alone) = dy.clone(), room(x, 4), room(x, 4)
        backward(x, overwritten, weight, moments, overwritten, again, slopes, groups=4)
        backward(x, dy, weight, moments, None, alone, None, groups=4)
        assert torch.equal(overwritten, dx)
        assert torch.equal(alone, sums)


def test_a_sample_has_the_same_bits_in_any_launch(generator: torch.Generator) -> None:
    x, dy = (randn((4, 200, 40), torch.bfloat16, generator) for _ in range(2))

    def run(part: slice) -> list[Tensor]:
        given, upper = x[part], dy[part]
        y, dx = poisoned_like(given), poisoned_like(given)
        (moments, partials), (slopes, sums) = room(given, 8), room(given, 8)
        own.group_norm(given, None, None, y, moments, partials, groups=8, eps=EPS)
        own.group_norm_grad(given, upper, None, moments, dx, sums, slopes, groups=8)
        return [y, moments, dx, sums]

    pieces = [run(slice(0, 1)), run(slice(1, 4))]
    for whole, *parts in zip(run(slice(0, 4)), *pieces, strict=True):
        assert torch.equal(torch.cat(parts), whole)


def test_results_are_rounded_for_products(generator: torch.Generator) -> None:
    x, dy = (randn((2, 9, 8), torch.float32, generator) for _ in range(2))
    for forward, backward in PAIRS:
        (moments, partials), (slopes, sums) = room(x, 2), room(x, 2)
        room_of = {"moments": moments, "partials": partials}
        assert_rounds(partial(forward, x, None, None, groups=2, eps=EPS, **room_of), x)
        room_of = {"sums": sums, "slopes": slopes}
        assert_rounds(partial(backward, x, dy, None, moments, groups=2, **room_of), x)
