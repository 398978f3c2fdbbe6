"""Networks of every activation function: the bits of keep under any plan, gradients as torch's."""

import pytest
import torch
from torch import Tensor, nn

from tests.support import twins
from tests.support.networks import activations
from tests.support.running import random_batches
from tests.support.twins import assert_gradients_are_torchs
from tvdnn.engine import training_graph
from tvdnn.graph import Graph, Kind

BATCH, SHAPE, CLASSES = 5, (3, 4, 4), 4
STEPS = {"torch": (2, BATCH), "triton": (1, 2)}  # of so many samples: the interpreter takes long
CHUNK_SIZE = 300  # bytes: a sample a section


def make_net() -> nn.Sequential:
    """Each function behind a convolution, which it may overwrite, and one behind the input."""
    torch.manual_seed(4)
    blocks = [layer for each in activations() for layer in (nn.Conv2d(4, 4, 3, padding=1), each)]
    return nn.Sequential(nn.SiLU(), nn.Conv2d(3, 4, 1), *blocks, nn.Flatten(), nn.Linear(64, 4))


def trained(kernels: str, policy: str, dtype: str, device: torch.device) -> list[Tensor]:
    """The losses of some steps, and the parameters after them."""
    net = make_net()
    steps, samples = STEPS[kernels]
    batches = random_batches(steps, (samples, *SHAPE), CLASSES, seed=5)
    options = {"policy": policy, "dtype": dtype, "kernels": kernels}
    return twins.trained(net, batches, device, chunk_size=CHUNK_SIZE, **options)


@pytest.mark.parametrize(
    ("kernels", "dtype"), [("torch", "fp32"), ("torch", "bf16"), ("triton", "tf32")]
)
def test_every_policy_trains_to_the_same_bits(
    kernels: str, dtype: str, device: torch.device
) -> None:
    kept, moved = (trained(kernels, policy, dtype, device) for policy in ("keep", "vdnn-all:m"))
    assert all(torch.equal(one, other) for one, other in zip(kept, moved, strict=True))
    assert all(torch.isfinite(value).all() for value in kept)


@pytest.mark.parametrize("policy", ["keep", "vdnn-all:m"])
def test_gradients_are_torchs(policy: str) -> None:
    (batch,) = random_batches(1, (BATCH, *SHAPE), CLASSES, seed=6)
    assert_gradients_are_torchs(
        make_net(), batch, policy=policy, chunk_size=CHUNK_SIZE, order_seed=1
    )


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
