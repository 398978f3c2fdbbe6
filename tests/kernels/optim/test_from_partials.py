"""Updates from partial sums equal the sum of the partials and then the update, to the bit."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import poisoned, randn
from tvdnn.kernels.optim import from_partials as optim_partials
from tvdnn.kernels.optim import update as optim
from tvdnn.kernels.reduce import partials as reduce

SHAPES = [
    (7, 5, 3, 3),
    (4, 130, 1, 1),
    (3, 3, 11, 11),
    (2, 33, 3, 2),
    (37,),
    (3, 2500),
    (3, 4, 5),
    (),
]
KERNELS = (optim.sgd, optim_partials.sgd_partials, reduce.sum_partials)
REFERENCES = (
    optim.sgd_reference, optim_partials.sgd_partials_reference, reduce.sum_partials_reference
)  # fmt: skip
ADAMW_KERNELS = (optim.adamw, optim_partials.adamw_partials, reduce.sum_partials)
ADAMW_REFERENCES = (
    optim.adamw_reference, optim_partials.adamw_partials_reference, reduce.sum_partials_reference
)  # fmt: skip
Launchers = tuple[Callable[..., None], ...]


def assert_equal_update(
    launchers: Launchers,
    param: Tensor,
    partials: Tensor,
    states: list[Tensor | None],
    **switches: bool,
) -> None:
    """Results of `launchers`: the plain update, the update from partial sums, and the sum."""
    update, update_partials, add = launchers
    grad, expected = torch.full_like(param, math.nan), param.clone()
    expected_states = [None if state is None else state.clone() for state in states]
    settings = [0.1, 0.9, 0.2, 1e-3, 0.0, 0.7, 0.3, 0.0]
    control = torch.tensor(settings, device=param.device)
    add(partials, grad, first=True)
    update(expected, grad, *expected_states, control, **switches)
    update_partials(param, partials, *states, control, **switches)
    assert torch.equal(param, expected)
    assert param.isfinite().all()
    for state, other in zip(states, expected_states, strict=True):
        assert state is None or torch.equal(state, other)


@pytest.mark.parametrize("splits", [1, 6])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_sum_and_update(
    shape: tuple[int, ...], layout: torch.memory_format, splits: int, generator: torch.Generator
) -> None:
    if layout == torch.channels_last and len(shape) != 4:
        pytest.skip("channels_last is for four dimensions")
    tensors = [randn(shape, torch.float32, generator).to(memory_format=layout) for _ in range(3)]
    by_tap = tensors[0].permute(0, 2, 3, 1).shape if len(shape) == 4 else shape
    partials = randn((splits, *by_tap), torch.float32, generator)
    sgd = {"nesterov": True, "maximize": False}
    for launchers in (KERNELS, REFERENCES):
        param, *states = (tensor.abs() for tensor in tensors)
        assert_equal_update(launchers, param, partials, states[:1], **sgd)
        assert_equal_update(launchers, param, partials, [None], **sgd)
    for launchers in (ADAMW_KERNELS, ADAMW_REFERENCES):
        param, *states = (tensor.abs() for tensor in tensors)
        assert_equal_update(launchers, param, partials, states, maximize=True)


@pytest.mark.parametrize("launchers", [KERNELS, REFERENCES])
def test_filters_of_one_row(launchers: tuple[Any, ...], generator: torch.Generator) -> None:
    param, state = (randn((6, 5, 4), torch.float32, generator) for _ in range(2))
    partials = randn((3, 6, 1, 4, 5), torch.float32, generator)
    grad, add = torch.full_like(param, math.nan), launchers[2]
    add(partials, grad, first=True)
    torch.testing.assert_close(grad, partials.sum(0)[:, 0].transpose(1, 2))
    sgd = {"nesterov": True, "maximize": False}
    assert_equal_update(launchers, param, partials, [state], **sgd)


def test_no_parameters(device: torch.device) -> None:
    room, control = poisoned((1, 4), torch.float32, device), torch.zeros(8, device=device)
    empty = room[:0]
    optim_partials.sgd_partials(empty, empty[None], None, control, nesterov=False, maximize=False)
    optim_partials.adamw_partials(empty, empty[None], empty, empty, control, maximize=False)
    assert room.isnan().all()
