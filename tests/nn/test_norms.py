"""Normalizations of no samples, of one value, and with running statistics."""

import pytest
import torch

from tvdnn import nn

EMPTY = {
    "batch norm": (lambda layers: layers.BatchNorm2d(3, momentum=None), (0, 3, 4, 4)),
    "batch norm of features": (lambda layers: layers.BatchNorm1d(3), (0, 3)),
    "batch norm of lines in eval": (lambda layers: layers.BatchNorm1d(3).eval(), (0, 3, 5)),
    "layer norm": (lambda layers: layers.LayerNorm(3), (0, 3)),
    "upsample": (lambda layers: layers.Upsample(scale_factor=2), (0, 3, 4, 4)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_batch_of_no_samples_is_taken_as_torch_takes_it(name: str) -> None:
    make, shape = EMPTY[name]
    mine, theirs = make(nn), make(torch.nn)
    x = torch.zeros(shape, requires_grad=True)
    y = mine(x)
    assert y.shape == theirs(x).shape
    y.sum().backward()
    for param in mine.parameters():
        assert torch.equal(param.grad, torch.zeros_like(param))
    for key, value in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[key], value)


def test_a_group_of_one_value_in_all_is_torchs_error() -> None:
    for layers in (nn, torch.nn):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            layers.GroupNorm(4, 4)(torch.randn(1, 4))


def test_instance_norm_with_running_statistics_is_torchs(device: torch.device) -> None:
    x = torch.randn(2, 5, 3, 4, device=device)
    ours, twin = (
        kind.InstanceNorm2d(5, track_running_stats=True).to(device) for kind in (nn, torch.nn)
    )
    assert torch.equal(ours(x), twin(x))
    assert torch.equal(ours.running_mean, twin.running_mean)
    assert torch.equal(ours(x[0]), twin(x[0]))
