"""Measuring accuracy: the piece of a network that a run took gives that run's gradients."""

import torch
from torch import nn

from tests.support.accuracy import gradients, recorded, relative_errors, taking


def test_the_piece_that_a_run_took_has_its_gradients() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)
    ).double()
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    y = torch.randint(0, 5, (4,))
    with recorded(net) as taken:
        plain = gradients(net, x, y)
    assert set(taken) == {"1", "2"}
    same = relative_errors(gradients(taking(net, taken), x, y), plain)
    assert max(same.values()) < 1e-12
    taken["1"] = ~taken["1"]
    other = relative_errors(gradients(taking(net, taken), x, y), plain)
    assert other["0.weight"] > 0.1
