"""Casts, moves and clones of maps change neither type nor device."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

SHAPE = (3, 4, 4)


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.head, self.function = nn.Conv2d(3, 3, 1), nn.Linear(48, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.conv(x)).flatten(1))


SAME: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.float(),
    lambda x: x.to(torch.float32),
    lambda x: x.to(x.dtype),
    lambda x: x.to(dtype=x.dtype, device=x.device),
    lambda x: x.to(x),
    lambda x: x.to(x.device, torch.float32, non_blocking=True),
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.type_as(x),
    lambda x: x.type(torch.float32),
    lambda x: x.cpu(),
]
OTHERS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.half(),
    lambda x: x.bfloat16().float(),
    lambda x: x.double().to(x.dtype),
    lambda x: x.to(torch.bfloat16),
    lambda x: x.to(x.dtype, copy=True),
    lambda x: x.clone(),
    lambda x: torch.clone(x, memory_format=torch.preserve_format),
]


@pytest.mark.parametrize("function", SAME)
def test_what_torch_returns_as_it_is_is_no_op(function: Callable[[Tensor], Tensor]) -> None:
    network = trace(Calls(function), [torch.empty(2, *SHAPE)])
    assert [op.kind for op in network.ops] == ["conv2d", "flatten", "linear"]


@pytest.mark.parametrize("function", OTHERS)
def test_other_casts_and_clones_are_views(function: Callable[[Tensor], Tensor]) -> None:
    network = trace(Calls(function), [torch.empty(2, *SHAPE)])
    assert [op.kind for op in network.ops] == ["conv2d", "view", "flatten", "linear"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clone().mul_(2) * x,
        lambda x: torch.sigmoid_(x.clone()) + x.clone().add_(1),
        lambda x: x.to(x.dtype).mul_(2) * x,
        lambda x: x.to(x.dtype, copy=True).mul_(3) - x,
    ],
)
@pytest.mark.parametrize("policy", ["keep", "vdnn-all:m"])
def test_operations_in_place_do_not_change_what_was_cloned(
    function: Callable[[Tensor], Tensor], policy: str
) -> None:
    torch.manual_seed(1)
    (batch,) = random_batches(1, (3, *SHAPE), 4, seed=2)
    assert_gradients_are_torchs(Calls(function), batch, policy=policy, chunk_size=200, atol=1e-6)


@pytest.mark.parametrize("function", [lambda x: x.to(torch.int64), lambda x: x.type(torch.bool)])
def test_casts_to_integers_are_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UnsupportedOpError, match=r"Calls: (to|type) at"):
        trace(Calls(function), [torch.empty(2, *SHAPE)])
