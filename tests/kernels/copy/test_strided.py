"""Copies between views of any strides against torch's."""

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import assert_repeatable, poisoned, randn
from tvdnn.kernels.copy import strided as kernels
from tvdnn.kernels.language.rounding import stored_reference

SUFFIXES = ["", "_reference"]
DTYPES = [torch.float32, torch.bfloat16]
PERMUTED = [
    ((2, 3, 4, 5, 2, 3), (0, 1, 4, 2, 5, 3)),  # pixels shuffled
    ((1, 35, 19), (0, 2, 1)),
    ((3, 5, 7, 2), (0, 3, 1, 2)),
    ((2, 3, 4), (0, 1, 2)),
    ((2, 1, 1), (0, 2, 1)),
    ((7, 130), (1, 0)),
    ((0, 3, 2), (0, 2, 1)),
    ((2, 3, 2, 3, 2, 3), (5, 3, 1, 4, 2, 0)),
]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "order"), PERMUTED)
def test_permutes(
    shape: tuple[int, ...],
    order: tuple[int, ...],
    dtype: torch.dtype,
    suffix: str,
    generator: torch.Generator,
) -> None:
    copy_strided = getattr(kernels, f"copy_strided{suffix}")
    x = randn(shape, dtype, generator)
    view = x.permute(order)
    y = poisoned(view.shape, dtype, x.device)
    copy_strided(view, y)
    assert torch.equal(y, view)
    back = poisoned(shape, dtype, x.device)
    copy_strided(y, back.permute(order))
    assert torch.equal(back, x)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_writes_a_range_alone(suffix: str, generator: torch.Generator) -> None:
    copy_strided = getattr(kernels, f"copy_strided{suffix}")
    x = randn((2, 3, 4, 5), torch.float32, generator)
    whole = poisoned((2, 3, 9, 5), torch.float32, x.device)
    part: Tensor = whole.narrow(2, 3, 4)
    copy_strided(x, part)
    assert torch.equal(part, x)
    assert whole[:, :, :3].isnan().all()
    assert whole[:, :, 7:].isnan().all()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_results_are_rounded_for_products(suffix: str, generator: torch.Generator) -> None:
    copy_strided = getattr(kernels, f"copy_strided{suffix}")
    x = randn((2, 33, 20), torch.float32, generator)
    y = poisoned((2, 20, 33), torch.float32, x.device)
    copy_strided(x.transpose(1, 2), y, precision="tf32")
    assert torch.equal(y, stored_reference(x.transpose(1, 2), torch.float32, "tf32"))


@pytest.mark.gpu
def test_repeats_and_large_offsets(generator: torch.Generator) -> None:
    x = randn((9, 512, 512, 1024), torch.bfloat16, generator)
    y = poisoned((9, 512, 1024, 512), torch.bfloat16, x.device)
    kernels.copy_strided(x.transpose(2, 3), y)
    assert torch.equal(y[8], x[8].transpose(1, 2))
    assert_repeatable(lambda: kernels.copy_strided(x[:1].transpose(2, 3), y[:1]), y[:1])
