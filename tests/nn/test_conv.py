"""Transposed convolutions of a given size, and weights that are frozen or bfloat16."""

import pytest
import torch

from tests.support.layers import TOLERANCE, error, twin_of
from tvdnn import nn
from tvdnn.errors import InputError


def test_transposed_convolutions_take_an_output_size(device: torch.device) -> None:
    x, layer = torch.randn(2, 3, 5, 4, device=device), nn.ConvTranspose2d(3, 4, 3, 2).to(device)
    y = layer(x, output_size=(12, 9))
    assert error(y, twin_of(layer, torch.float32)(x.double(), (12, 9))) <= TOLERANCE[torch.float32]
    with pytest.raises(InputError, match=r"shape \(2, 2, 5, 4\); weight is \(3, 4, 3, 3\)"):
        layer(x[:, :2])


def test_frozen_weights_get_no_gradient(device: torch.device) -> None:
    layer = nn.Conv2d(3, 4, 3).to(device)
    layer.weight.requires_grad_(False)
    layer(torch.randn(2, 3, 5, 5, device=device)).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias is not None
    assert torch.equal(layer.bias.grad, torch.full((4,), 18.0, device=device))


def test_bfloat16_weights_have_bfloat16_gradients(device: torch.device) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2)).to(device).bfloat16()
    net.insert(1, nn.BatchNorm2d(4).to(device).bfloat16())
    net(torch.randn(2, 3, 5, 5, device=device, dtype=torch.bfloat16)).sum().backward()
    assert all(param.grad.dtype == torch.bfloat16 for param in net.parameters())


def test_filters_larger_than_the_map_are_refused(device: torch.device) -> None:
    layer = nn.Conv2d(3, 4, 2).to(device)
    with pytest.raises(RuntimeError, match=r"larger than|greater than"):
        layer(torch.zeros(2, 3, 9, 1, device=device))
