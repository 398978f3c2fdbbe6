"""Layer normalization against its reference, and the reference against torch in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.kernels.numerics import poisoned, poisoned_like, randn, rms_error
from tvdnn.kernels.norm import layer_norm as own
from tvdnn.kernels.reduce.per_sample import (
    GROUP,
    add_sample_sums,
    add_sample_sums_reference,
    sample_splits,
)

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3}
EPS = 1e-5
PAIRS = [
    (own.layer_norm, own.layer_norm_grad),
    (own.layer_norm_reference, own.layer_norm_grad_reference),
]
SHAPES = [
    *((2, 7, 96), (3, 400, 97), (1, 1, 3), (5, 1, 2049), (1, 2, own.LONGEST + 13)),
    *((2, 3, 5, 8), (0, 2, 8)),
]


def sums_of(x: Tensor) -> Tensor:
    chunks = own.layer_norm_chunks(x[:1].numel() // x.shape[-1], x.shape[-1])
    return poisoned((x.shape[0], chunks, 2, x.shape[-1]), torch.float32, x.device)


@pytest.mark.parametrize(("dtype", "affine"), [(torch.float32, True), (torch.bfloat16, False)])
@pytest.mark.parametrize("shape", SHAPES)
def test_follows_torch(
    shape: tuple[int, ...], dtype: torch.dtype, affine: bool, generator: torch.Generator
) -> None:
    x, dy = randn(shape, dtype, generator, 2.0) + 3.0, randn(shape, dtype, generator)
    columns = shape[-1:]
    params = [randn(columns, torch.float32, generator) for _ in range(2)] if affine else [None] * 2
    leaf = x.double().requires_grad_()
    leaves = [None if param is None else param.double().requires_grad_() for param in params]
    expected = functional.layer_norm(leaf, columns, *leaves, EPS)
    expected.backward(dy.double())
    for forward, backward in PAIRS:
        y, dx, sums = poisoned_like(x), poisoned_like(x), sums_of(x) if affine else None
        forward(x, *params, y, eps=EPS)
        backward(x, dy, params[0], dx, sums, eps=EPS)
        assert rms_error(y, expected.detach()) <= TOLERANCE[dtype]
        assert rms_error(dx, leaf.grad) <= TOLERANCE[dtype]
        for kind, param in enumerate(leaves):
            if param is not None and sums is not None and x.numel():
                error = rms_error(sums[:, :, kind].sum((0, 1)), param.grad)
                assert error <= TOLERANCE[torch.float32]


def test_one_element_is_its_mean(generator: torch.Generator) -> None:
    """Its gradient is the rounding of dy times weight, over the deviation."""
    x, weight, bias = (randn((3, 1), torch.float32, generator) for _ in range(3))
    for forward, backward in PAIRS:
        y, dx, sums = poisoned_like(x), poisoned_like(x), sums_of(x)
        forward(x, weight[0], bias[0], y, eps=EPS)
        backward(x, x, weight[0], dx, sums, eps=EPS)
        assert torch.equal(y, bias[0].expand(3, 1))
        assert dx.abs().max() <= 2.0**-23 * (x * weight[0]).abs().max() / EPS**0.5
        assert torch.equal(sums.flatten(1), torch.cat([torch.zeros_like(x), x], 1))


def test_gradients_may_lie_in_place_and_alone(generator: torch.Generator) -> None:
    x, dy = (randn((3, 50, 24), torch.float32, generator) for _ in range(2))
    weight = randn((24,), torch.float32, generator)
    for _, backward in PAIRS:
        dx, sums = poisoned_like(x), sums_of(x)
        backward(x, dy, weight, dx, sums, eps=EPS)
        overwritten, alone = dy.clone(), sums_of(x)
        backward(x, overwritten, weight, overwritten, None, eps=EPS)
        backward(x, dy, weight, None, alone, eps=EPS)
        assert torch.equal(overwritten, dx)
        assert torch.equal(alone, sums)


@pytest.mark.parametrize("columns", [40, own.LONGEST + 1])
def test_a_row_has_the_same_bits_in_any_launch(columns: int, generator: torch.Generator) -> None:
    x, dy = (randn((4, 3, columns), torch.bfloat16, generator) for _ in range(2))
    weight, bias = (randn((columns,), torch.float32, generator) for _ in range(2))
    y, dx, sums = poisoned_like(x), poisoned_like(x), sums_of(x)
    own.layer_norm(x, weight, bias, y, eps=EPS)
    own.layer_norm_grad(x, dy, weight, dx, sums, eps=EPS)
    for start, stop in ((0, 1), (1, 4)):
        part = slice(start, stop)
        some_y, some_dx = poisoned_like(x[part]), poisoned_like(x[part])
        some_sums = sums_of(x[part])
        own.layer_norm(x[part], weight, bias, some_y, eps=EPS)
        own.layer_norm_grad(x[part], dy[part], weight, some_dx, some_sums, eps=EPS)
        assert torch.equal(some_y, y[part])
        assert torch.equal(some_dx, dx[part])
        assert torch.equal(some_sums, sums[part])


@pytest.mark.parametrize(
    ("samples", "chunks", "columns"), [(37, 3, 65), (GROUP, 40, 7), (1, 1, 1), (2 * GROUP, 1, 64)]
)
def test_sums_of_samples(
    samples: int, chunks: int, columns: int, generator: torch.Generator
) -> None:
    """One launch gives the bits of two that are cut between groups."""
    sums = randn((samples, chunks, 2, columns), torch.float32, generator)
    shape = sample_splits(chunks), columns
    for add in (add_sample_sums, add_sample_sums_reference):
        running, pieces = (poisoned(shape, torch.float32, sums.device) for _ in range(2))
        add(sums, running, kind=1, first=True)
        add(sums[:GROUP], pieces, kind=1, first=True)
        add(sums[GROUP:], pieces, kind=1, first=False)
        assert torch.equal(pieces, running)
        assert rms_error(running.sum(0), sums[:, :, 1].double().sum((0, 1))) <= 2e-6


@pytest.mark.gpu
def test_large_offsets(generator: torch.Generator) -> None:
    x = torch.ones(1, (1 << 25) + 1, 64, dtype=torch.bfloat16, device=generator.device)
    x[:, -1] = randn((64,), x.dtype, generator, 3.0)
    y, last = poisoned_like(x), poisoned_like(x[:, -1:])
    own.layer_norm(x, None, None, y, eps=EPS)
    own.layer_norm(x[:, -1:].clone(), None, None, last, eps=EPS)
    assert torch.equal(y[:, -1:], last)
