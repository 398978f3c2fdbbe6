"""Activations in place, and a softmax over rows."""

import pytest
import torch

from tvdnn import nn


def test_inplace_relu_writes_its_input(device: torch.device) -> None:
    x = torch.randn(2, 3, 4, 5, device=device)
    expected = x.clamp(min=0)
    y = nn.ReLU(inplace=True)(x)
    assert y.data_ptr() == x.data_ptr()
    assert torch.equal(x, expected)


def test_inplace_relu_writes_through_a_slice(device: torch.device) -> None:
    whole = torch.randn(4, 6, device=device)
    expected = whole.clone()
    expected[:, 1:4].clamp_(min=0)
    nn.ReLU(inplace=True)(whole[:, 1:4])
    assert torch.equal(whole, expected)


def test_inplace_relu_in_a_graph(device: torch.device) -> None:
    weight = torch.randn(3, 4, device=device, requires_grad=True)
    nn.ReLU(inplace=True)(weight * 2).sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, 2.0 * (weight > 0))


INPLACE = (
    *(nn.LeakyReLU, nn.ReLU6, nn.ELU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Mish, nn.CELU, nn.SELU, nn.Hardtanh),
)


@pytest.mark.parametrize("kind", INPLACE)
def test_inplace_activations_have_the_same_results(
    kind: type[torch.nn.Module], device: torch.device
) -> None:
    """Of a slice too, written through; and gradients do not read the input that is gone."""
    weight = torch.randn(4, 6, device=device, requires_grad=True)
    results = []
    for inplace in (False, True):
        whole = weight * 3
        y = kind(inplace=inplace)(whole[:, 1:4])
        assert inplace == torch.equal(whole[:, 1:4], y)
        (grad,) = torch.autograd.grad(y.square().sum(), weight)
        results += [y, grad]
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])


def test_softmax_over_rows_is_torchs(device: torch.device) -> None:
    x = torch.randn(2, 5, 3, 7, device=device)
    for kind in ("Softmax", "LogSoftmax"):
        ours, twin = (getattr(package, kind)(2) for package in (nn, torch.nn))
        assert torch.equal(ours(x), twin(x))
