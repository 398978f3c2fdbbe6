"""Dropout of blocks: its mask is the reference's to the bit, a block falls whole, in any run."""

from collections.abc import Callable

import pytest
import torch

from tests.kernels.numerics import poisoned_like, randn
from tvdnn.kernels.language.rounding import stored_reference
from tvdnn.kernels.pointwise.dropout_blocks import PARTS, dropout_parts, dropout_parts_reference

SHAPES = [(1, 1, 1), (3, 35, 11), (2, 150, 96), (0, 4, 8)]
PLACE = {"op_id": 5, "first_sample": 3}


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("part", PARTS)
def test_equals_reference(
    part: str, shape: tuple[int, int, int], dtype: torch.dtype, p: float, generator: torch.Generator
) -> None:
    x = randn(shape, dtype, generator)
    seed = torch.tensor([-(1 << 40) + 17], device=x.device)
    y, expected = poisoned_like(x), poisoned_like(x)
    dropout_parts(x, y, seed, part=part, p=p, **PLACE)
    dropout_parts_reference(x, expected, seed, part=part, p=p, **PLACE)
    assert torch.equal(y, expected)
    if p in (0.0, 1.0):
        assert torch.equal(y, x * (1 - p))
    dropout_parts(x, x, seed, part=part, p=p, **PLACE)
    assert torch.equal(x, expected)


@pytest.mark.parametrize("launch", [dropout_parts, dropout_parts_reference])
@pytest.mark.parametrize("part", PARTS)
def test_parts_fall_whole_and_apart(
    part: str, launch: Callable[..., None], generator: torch.Generator
) -> None:
    x = torch.ones(8, 3, 24, device=generator.device)
    y, falls = poisoned_like(x), []
    for seed in range(12):
        given = torch.tensor([seed], device=x.device)
        launch(x, y, given, part=part, p=0.4, **PLACE)
        assert set(y.unique().tolist()) <= {0.0, y.max().item()}
        falls.append(y == 0)
    fallen = torch.stack(falls)  # [seeds, samples, pixels, channels]
    apart = {
        "channel": fallen[:, :, :1],
        "row": fallen[:, :, :1, :1],
        "batch": fallen[:, :1, :1, :1],
    }
    drawn = apart[part]
    assert torch.equal(fallen, drawn.expand_as(fallen))
    assert abs(float(drawn.float().mean()) - 0.4) < 4 * (0.24 / drawn.numel()) ** 0.5


@pytest.mark.parametrize("launch", [dropout_parts, dropout_parts_reference])
@pytest.mark.parametrize("part", PARTS)
def test_mask_does_not_depend_on_the_run(
    part: str, launch: Callable[..., None], generator: torch.Generator
) -> None:
    x = randn((6, 37, 21), torch.float32, generator)
    seed = torch.tensor([7], device=x.device)
    whole, pieces = poisoned_like(x), poisoned_like(x)
    launch(x, whole, seed, part=part, p=0.5, op_id=1, first_sample=2)
    for rows in (slice(0, 1), slice(1, 6)):
        place = {"op_id": 1, "first_sample": 2 + rows.start}
        launch(x[rows], pieces[rows], seed, part=part, p=0.5, **place)
    assert torch.equal(whole, pieces)
    launch(x, pieces, seed, part=part, p=0.3, op_id=2, first_sample=2, precision="tf32")
    launch(x, whole, seed, part=part, p=0.3, op_id=2, first_sample=2)
    assert torch.equal(pieces, stored_reference(whole, torch.float32, "tf32"))
