"""Residual networks whose last gradient terms come masked by signs, wherever maps are and move."""

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.networks.sign_bits import NETWORKS, Bottleneck
from tests.support.running import random_batches
from tvdnn.engine import Trainer, training_graph
from tvdnn.engine.build import training_variants
from tvdnn.graph import Graph
from tvdnn.optim import SGD
from tvdnn.planner import make as planning

BATCH, SHAPE, CLASSES = 5, (3, 4, 4), 4
CHUNK_SIZE = 8192  # of a map of 128 bfloat16 channels two samples
STEPS = 2


def make_net() -> nn.Module:
    return NETWORKS["residual"].network()


def graph_of(*, fused: bool = True, low_memory: bool = False, dtype: str = "bf16") -> Graph:
    options = {"dtype": dtype, "chunk_size": CHUNK_SIZE, "optimizer": SGD()}
    variants = training_variants(make_net(), torch.empty(BATCH, *SHAPE), **options)
    return variants.graph(fused=fused, low_memory=low_memory)


def trained(policy: str, device: torch.device, **options: object) -> list[Tensor]:
    """The losses of the steps, and parameters and running statistics after them."""
    net, batches = (
        make_net().to(device),
        random_batches(STEPS, (BATCH, *SHAPE), CLASSES, seed=6),
    )
    given = [(x.to(device), y.to(device)) for x, y in batches]
    how = {"optimizer": SGD(lr=0.1), "dtype": "bf16", "chunk_size": CHUNK_SIZE, "policy": policy}
    trainer = Trainer(net, given[0][0], **how | options)
    losses = [trainer.step(x, y).clone() for x, y in given]
    trainer.close()
    return [*losses, *copy.deepcopy(net.state_dict()).values()]


def test_last_terms_are_added_where_they_are_made() -> None:
    """Layers of single taps add them. The next block's first is the last in backward."""
    graph = graph_of()
    last = [each.op for each in graph.passes if each.role == "grad_last"]
    assert last == ["3.narrow", "2.narrow", "1.narrow"]
    sums = {each.op: each for each in graph.passes if each.role == "grad_sums"}
    assert [len(sums[f"{block}.last"].writes) for block in range(4)] == [1, 1, 1, 2]
    assert len(sums["1.last"].reads) == 3  # what was normalized, statistics and the gradient
    for other in (graph_of(fused=False), graph_of(dtype="tf32"), graph_of(low_memory=True)):
        assert not any(each.role == "grad_last" for each in other.passes)


def test_ranges_of_wider_maps_have_no_signs() -> None:
    """A low-memory step would read it by narrower loads, which may add up in another order."""

    class Joined(nn.Module):
        def __init__(self, shared: bool) -> None:
            super().__init__()
            self.block = Bottleneck(3, nn.Conv2d(3, 128, 1))
            self.last = nn.Linear(131 if shared else 128, CLASSES)
            self.shared = shared

        def forward(self, x: Tensor) -> Tensor:
            y = self.block(x)
            y = torch.cat([y, x], 1) if self.shared else y
            return self.last(y.mean((2, 3)))

    for shared in (False, True):
        example = torch.empty(BATCH, *SHAPE)
        options = {"dtype": "bf16", "chunk_size": CHUNK_SIZE, "fuse": True}
        graph = training_graph(Joined(shared), example, optimizer=SGD(), **options)
        assert bool(graph.optional_maps) is not shared


@pytest.mark.parametrize("kernels", ["torch", pytest.param("triton", marks=pytest.mark.gpu)])
def test_every_policy_trains_to_the_same_bits(
    kernels: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that keep no signs, for want of room or since their ops are not fused."""
    steps = {"kernels": kernels, "order_seed": 5}
    kept = trained("keep", device, **steps)
    assert all(value.isfinite().all() for value in kept)
    found = [trained("vdnn-all:m", device, **steps)]
    monkeypatch.setattr(planning, "OPTIONAL_SHARE", 0.0)
    found.append(trained("keep", device, **steps, budget=1 << 30))
    for moved in found:
        assert all(torch.equal(one, other) for one, other in zip(kept, moved, strict=True))
