"""Logits of pixels lie in padded maps, unless a user reads them."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.padded import OBJECTS, Pixels, Segmentation
from tvdnn.engine import training_graph
from tvdnn.graph import Graph, Pass, Use
from tvdnn.ops.expand import Mode, Settings, expand
from tvdnn.trace.trace import trace

X = torch.empty(2, 3, 8, 8)
PADDED = 24


class Joined(nn.Module):
    """Two resized maps of 18 and 36 channels, which lie side by side in a padded map."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Conv2d(3, width, 3, 2, 1) for width in (18, 36))
        self.last = nn.Conv2d(54, OBJECTS, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = [functional.interpolate(conv(x), scale_factor=2.0) for conv in self.maps]
        y: Tensor = self.last(torch.cat(fine, 1))
        return y


def uses(graph: Graph, role: str) -> list[tuple[bool, tuple[int, int] | None]]:
    """Of the passes of a role: whether padding is theirs, and the channels that they write."""
    found = [each for each in graph.passes if each.role == role and "padded" in each.attrs]
    return [(each.attrs["padded"], each.writes[0].channels) for each in found]


@pytest.mark.parametrize("net", [Pixels(), Segmentation()], ids=["conv", "resize"])
def test_logits_and_their_gradients_are_padded(net: nn.Module) -> None:
    graph = training_graph(net, X)
    (loss,) = (each for each in graph.passes if each.role == "pixels")
    (gradient,) = (each for each in graph.passes if each.name == "loss grad_input")
    for use in (loss.reads[0], gradient.writes[0]):
        assert use.channels == (0, OBJECTS)
        assert graph.buffers[use.buffer].shape[-1] == PADDED
    assert gradient.attrs["padded"]


@pytest.mark.parametrize("mode", [Mode.INFER, Mode.AUTOGRAD])
@pytest.mark.parametrize("net", [Pixels(), Segmentation()], ids=["conv", "resize"])
def test_outputs_are_dense(net: nn.Module, mode: Mode) -> None:
    graph = expand(trace(net, (X,), ordered=True), Settings("bf16", mode=mode))
    (logits,) = graph.output_maps
    assert graph.buffers[logits].shape[-1] == OBJECTS
    assert not any(use.channels for each in graph.passes for use in _of(logits, each))


def _of(buffer: str, each: Pass) -> list[Use]:
    return [use for use in (*each.reads, *each.writes) if use.buffer == buffer]


@pytest.mark.parametrize("loss", ["mse", "bce_with_logits"])
def test_losses_of_elements_read_dense_maps(loss: str) -> None:
    graph = training_graph(Segmentation(), X, loss=loss)
    (each,) = (each for each in graph.passes if each.name == "loss forward")
    assert each.reads[0].channels is None


def test_neighbours_in_a_padded_map_are_no_padding() -> None:
    graph = training_graph(Joined(), X)
    assert uses(graph, "forward") == [(False, (0, 18)), (False, (18, 54))]
