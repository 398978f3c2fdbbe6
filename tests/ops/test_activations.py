"""Networks of every activation function: the bits of keep under any plan, gradients as torch's."""

import pytest
import torch
from torch import nn

from tvdnn.engine import training_graph
from tvdnn.graph import Graph, Kind


def maps_of(layer: nn.Module) -> list[str]:
    """The maps of a step over a convolution, `layer` and another convolution."""
    net = nn.Sequential(nn.Conv2d(3, 3, 1), layer, nn.Conv2d(3, 3, 1), nn.Flatten())
    graph: Graph = training_graph(net, torch.empty(2, 3, 4, 4))
    return [name for name, buffer in graph.buffers.items() if buffer.kind is Kind.MAP]


@pytest.mark.parametrize("layer", [nn.LeakyReLU(), nn.ReLU6(), nn.Sigmoid(), nn.Tanh()])
def test_what_needs_its_output_alone_runs_in_place(layer: nn.Module) -> None:
    assert len(maps_of(layer)) == len(maps_of(nn.ReLU()))


@pytest.mark.parametrize("layer", [nn.SiLU(inplace=True), nn.GELU(), nn.Hardswish(inplace=True)])
def test_what_needs_its_input_keeps_it(layer: nn.Module) -> None:
    assert len(maps_of(layer)) == len(maps_of(nn.ReLU())) + 1
