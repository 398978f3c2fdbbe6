"""Requests, trainers, virtualized networks and their kernels use tuned settings."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.support.running import random_batches
from tests.support.tuning import BATCH, CLASSES, FASTER, SHAPE, lenet, make_net
from tvdnn.engine import Trainer, virtualize
from tvdnn.errors import InputError
from tvdnn.experiment.request import as_tuned, chosen, network_of
from tvdnn.graph import ChunkSizes, size_class
from tvdnn.kernels.language.overrides import Configurations
from tvdnn.planner.ir.settings import Choice, Table, Tuned
from tvdnn.runtime import runner
from tvdnn.runtime.autotune import Autotuner
from tvdnn.runtime.kernel_set import kernel_set
from tvdnn.runtime.tuning_store import TuningStore
from tvdnn.trace.trace import trace
from tvdnn.units import KIB

pytestmark = pytest.mark.usefixtures("own_cache")


def store(tuned: Tuned) -> None:
    """Have this settled for `make_net` in float32."""
    network = trace(make_net(), (torch.empty(BATCH, *SHAPE),))
    TuningStore("H200", network, "fp32").set_tuned(tuned)


def test_requests_take_what_was_settled() -> None:
    stored = Tuned(ChunkSizes(4 * KIB), {"min": Choice("tvdnn-heuristic", 3)})
    TuningStore("H200", network_of(lenet()), "fp32").set_tuned(stored)
    request = as_tuned(lenet(), "H200")
    assert request.chunks == ChunkSizes(4 * KIB)
    assert chosen(request, None, "min") == Choice("tvdnn-heuristic", 3)
    assert chosen(request, None, None) == Choice()
    assert as_tuned(lenet(), "A100") == lenet()


@pytest.mark.usefixtures("units_of_one")
def test_trainers_use_what_was_settled_to_the_bits_of_keep() -> None:
    chunks = ChunkSizes(8 * KIB, ((size_class(8 * 16 * 16 * 4), 16 * KIB),))
    store(Tuned(chunks, {"min": Choice("tvdnn-heuristic", 1, "kernel")}))
    nets, x = [make_net() for _ in range(2)], torch.empty(BATCH, *SHAPE)
    kept = Trainer(nets[0], x, policy="keep")
    tuned = Trainer(nets[1], x, budget="min", order_seed=3)
    assert tuned.plan.policy == "tvdnn-heuristic"
    assert tuned.schedule.offloaded_nbytes > 0
    assert {trainer.graph.chunk_size for trainer in (kept, tuned)} == {8 * KIB}
    for x, y in random_batches(3, (BATCH, *SHAPE), CLASSES, 1):
        assert torch.equal(kept.step(x, y), tuned.step(x, y))
    assert all(map(torch.equal, nets[0].parameters(), nets[1].parameters()))


@pytest.mark.usefixtures("units_of_one")
def test_virtualized_networks_use_what_was_settled() -> None:
    store(Tuned(ChunkSizes(8 * KIB)))
    x = torch.empty(BATCH, *SHAPE)
    assert virtualize(make_net(), x).schedule.graph.chunk_size == 8 * KIB
    assert virtualize(make_net(), x, chunk_size="4KiB").schedule.graph.chunk_size == 4 * KIB
    with pytest.raises(InputError, match="copies 'fax' are not known"):
        virtualize(make_net(), x, copies="fax")


def test_engines_run_their_kernels_as_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Table | None] = []

    def spied(name: str, configurations: Configurations | None = None) -> SimpleNamespace:
        given.append(configurations and configurations.table)
        return kernel_set(name, configurations)

    monkeypatch.setattr(runner, "kernel_set", spied)
    x = torch.empty(BATCH, *SHAPE)
    Trainer(make_net(), x)
    store(Tuned(configurations=FASTER))
    Trainer(make_net(), x)
    Trainer(make_net(), x, chunk_size="8KiB", policy="keep")
    virtualize(make_net(), x)
    assert given == [None, FASTER, FASTER, FASTER]


@pytest.mark.gpu
def test_kernels_of_the_gpu_are_tuned_to_the_same_bits() -> None:
    """The network is small: a few launches make most of its step."""
    device, shape = torch.device("cuda"), (64, 64, 56, 56)

    def make() -> nn.Module:
        torch.manual_seed(0)
        convs = [nn.Conv2d(64, 64, 3, padding=1) for _ in range(2)]
        body = [each for conv in convs for each in (conv, nn.ReLU())]
        return nn.Sequential(*body, nn.AvgPool2d(56), nn.Flatten(), nn.Linear(64, CLASSES)).cuda()

    x, y = torch.randn(shape, device=device), torch.zeros(64, dtype=torch.int64, device=device)
    by_rule = Trainer(make(), x, dtype="bf16", policy="keep")
    losses = [by_rule.step(x, y) for _ in range(2)]
    configuring = Autotuner(by_rule.graph, device, "triton")
    every = configuring.worth(by_rule.costs)
    assert every
    configuring.compile(every)
    table = {}
    for each in every:
        shares = [configuring.share(each, way) for way in each.candidates]
        assert all(share is None or share > 0 for share in shares)
        if any(shares):
            table[each.key] = next(each.candidates[i] for i, share in enumerate(shares) if share)
    assert table
    hardware = torch.cuda.get_device_name(device)
    network = trace(make(), (torch.empty(shape, device="meta"),))
    TuningStore(hardware, network, "bf16").set_tuned(Tuned(configurations=table))
    tuned = Trainer(make(), x, dtype="bf16", policy="keep")
    assert [float(tuned.step(x, y)) for _ in range(2)] == list(map(float, losses))
