"""Sums in a fixed order: partial gradients and rows."""

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import poisoned, poisoned_like, randn, rms_error
from tvdnn.kernels.reduce.partials import (
    sum_partials,
    sum_partials_reference,
    sum_rows,
    sum_rows_reference,
)

TOLERANCE = 2e-6


def weight_gradients(device: torch.device) -> list[Tensor]:
    """Float32 gradients of several layouts, and the shape of a partial of each."""
    dense = poisoned((6, 5, 3, 2), torch.float32, device)
    return [
        dense,
        dense.clone().to(memory_format=torch.channels_last),
        poisoned((12, 7, 3, 2), torch.float32, device)[::2, 2:],
        poisoned((37,), torch.float32, device),
        poisoned((9, 131), torch.float32, device),
        poisoned((131, 9), torch.float32, device).T,
        poisoned((67, 1, 1), torch.float32, device),
        poisoned((2, 3, 5, 3, 2), torch.float32, device),
    ]


def partial_shape(grad: Tensor) -> tuple[int, ...]:
    return tuple(grad.permute(0, 2, 3, 1).shape if grad.dim() == 4 else grad.shape)


@pytest.mark.parametrize("index", range(8))
def test_partials_add_in_order(index: int, generator: torch.Generator) -> None:
    """The kernel has the reference's bits, in one call or in consecutive pieces."""
    grad, expected, pieces = (weight_gradients(generator.device)[index] for _ in range(3))
    partials = randn((3, 2, *partial_shape(grad)), torch.float32, generator)
    sum_partials(partials, grad, first=True)
    sum_partials_reference(partials, expected, first=True)
    assert torch.equal(grad, expected)
    sum_partials(partials[:1], pieces, first=True)
    sum_partials(partials[1:], pieces, first=False)
    assert torch.equal(pieces, expected)
    in_order = torch.zeros_like(expected)
    for partial in partials.flatten(0, 1):
        in_order += partial.permute(0, 3, 1, 2) if grad.dim() == 4 else partial
    assert torch.equal(expected, in_order)


def test_partials_continue_a_gradient(generator: torch.Generator) -> None:
    grad = randn((1025,), torch.float32, generator)
    partials = randn((4, 1025), torch.float32, generator)
    expected = grad.clone()
    for partial in partials:
        expected += partial
    sum_partials(partials, grad, first=False)
    assert torch.equal(grad, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("num_rows", "num_columns", "group", "splits"),
    [(1, 1, 1, 1), (7, 10, 3, 1), (257, 65, 100, 1), (301, 64, 150, 4), (5, 3, 9, 4)],
)
def test_rows(
    num_rows: int, num_columns: int, group: int, splits: int,
    dtype: torch.dtype, generator: torch.Generator,
) -> None:  # fmt: skip
    rows = randn((num_rows, num_columns), dtype, generator)
    num_groups = -(-num_rows // group)
    out = poisoned((num_groups, splits, num_columns), torch.float32, generator.device)
    expected = poisoned_like(out)
    sum_rows(rows, out, group=group)
    sum_rows_reference(rows, expected, group=group)
    assert rms_error(out, expected) < TOLERANCE
    assert rms_error(expected.sum((0, 1)), rows.double().sum(0)) < TOLERANCE
    if splits == 1:
        plain = poisoned_like(out[:, 0])
        sum_rows(rows, plain, group=group)
        assert torch.equal(plain, out[:, 0])


def test_rows_of_later_groups_stand_alone(generator: torch.Generator) -> None:
    rows = randn((300, 33), torch.float32, generator)
    whole = poisoned((3, 2, 33), torch.float32, generator.device)
    part = poisoned((2, 2, 33), torch.float32, generator.device)
    sum_rows(rows, whole, group=130)
    sum_rows(rows[130:], part, group=130)
    assert torch.equal(whole[1:], part)


def test_no_rows(generator: torch.Generator) -> None:
    rows = randn((0, 8), torch.float32, generator)
    room = poisoned((1, 8), torch.float32, generator.device)
    sum_rows(rows, room[:0], group=4)
    sum_rows_reference(rows, room[:0], group=4)
    assert room.isnan().all()
