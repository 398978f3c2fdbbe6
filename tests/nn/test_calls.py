"""Calls under autocast and torch.fx, second derivatives, and refusals."""

import pytest
import torch

from tests.support.layers import TOLERANCE, error
from tvdnn import nn
from tvdnn.errors import InputError


def test_autocast_asks_for_bfloat16(device: torch.device) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2)).to(device)
    x = torch.randn(2, 3, 5, 5, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        y = net(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, net(x.bfloat16()))


def test_plain_fx_sees_torchs_functions(device: torch.device) -> None:
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.LocalResponseNorm(3), nn.Flatten()]
    net = nn.Sequential(nn.BatchNorm2d(3), *layers, nn.Linear(4, 2)).to(device)
    x = torch.randn(2, 3, 4, 4, device=device)
    assert error(torch.fx.symbolic_trace(net)(x), net(x)) <= TOLERANCE[torch.float32]


def test_second_derivatives_are_refused(device: torch.device) -> None:
    x = torch.randn(2, 3, 5, 5, device=device, requires_grad=True)
    y = nn.Conv2d(3, 4, 3).to(device)(x)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_refusals_name_the_fault(device: torch.device) -> None:
    x = torch.randn(3, 8, 8, device=device)
    conv = nn.Conv2d(3, 4, 3).to(device)
    with pytest.raises(InputError, match=r"shape \(3, 8, 8\); maps are \[N, C, H, W\]"):
        conv(x)
    with pytest.raises(InputError, match=r"shape \(3, 8, 8\)"):
        nn.MaxPool2d(2)(x)
    with pytest.raises(InputError, match="the input is float16"):
        conv(x[None].half())
    with pytest.raises(InputError, match=r"shape \(2, 4\); weight is \(3, 5\)"):
        nn.Linear(5, 3).to(device)(torch.randn(2, 4, device=device))
    with pytest.raises(
        InputError, match=r"shape \(1, 2, 8, 8\).* weight is \(4, 3, 3, 3\) in 1 group"
    ):
        conv(x[None, :2])
    with pytest.raises(InputError, match=r"shape \(3, 8, 8\); normalized_shape is \(7,\)"):
        nn.LayerNorm(7)(x)
    with pytest.raises(ValueError, match="median"):
        nn.CrossEntropyLoss(reduction="median")(x[0], x.new_zeros(8, dtype=torch.int64))
