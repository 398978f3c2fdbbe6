"""Networks that have no parameters: they compute where their inputs lie."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tvdnn
from tvdnn.errors import BudgetError


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(torch.relu(x), 2) * 0.5


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_network_without_parameters_computes_where_its_inputs_lie(name: str) -> None:
    x = torch.randn(2, 3, 8, 8, device=name, requires_grad=True)
    net = tvdnn.virtualize(Pooled(), x)
    y = net(x)
    y.sum().backward()
    assert y.device == x.device
    torch.testing.assert_close(y, Pooled()(x))
    torch.testing.assert_close(x.grad, torch.where(x > 0, 0.125, 0.0))


def test_an_example_on_the_meta_device_stands_for_the_cpu() -> None:
    net = tvdnn.virtualize(Pooled(), torch.empty(2, 3, 8, 8, device="meta"))
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(net(x), Pooled()(x))


class Larger(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, x)[:, :, ::2, ::2]


def test_the_floor_that_is_named_is_enough_for_the_gradient_of_the_input() -> None:
    x = torch.randn(4, 8, 8, 7, requires_grad=True)
    with pytest.raises(BudgetError) as refused:
        tvdnn.virtualize(Larger(), x, policy="auto", budget=1)
    net = tvdnn.virtualize(Larger(), x, policy="auto", budget=refused.value.floor_nbytes)
    net(x).sum().backward()
    expected = torch.zeros_like(x)
    expected[:, :, ::2, ::2] = 1
    torch.testing.assert_close(x.grad, expected)
