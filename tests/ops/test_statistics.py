"""Convolutions before batch normalization leave its moments, wherever maps are and move."""

import copy
import random

import pytest
import torch
from torch import Tensor, nn

from tests.networks.statistics import Bottleneck
from tests.support.lowered import lower
from tests.support.plans import random_plan
from tests.support.running import random_batches, train
from tvdnn.engine import Trainer, training_graph
from tvdnn.engine.build import default_costs
from tvdnn.graph import Graph
from tvdnn.kernels.conv.batch_stats import MomentCells
from tvdnn.ops import conv
from tvdnn.optim import SGD
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.verify.check import check

BATCH, SHAPE, CLASSES = 9, (3, 8, 8), 4
CHUNK_SIZE = 16384  # of a map of 32 bfloat16 channels four samples
STEPS = 2


def net() -> nn.Module:
    torch.manual_seed(4)
    return Bottleneck()


def graph_of(**settings: object) -> Graph:
    options = {"chunk_size": CHUNK_SIZE, "dtype": "bf16"} | settings
    return training_graph(net(), torch.empty(BATCH, *SHAPE), optimizer=SGD(), **options)


def makers(graph: Graph, role: str) -> list[str]:
    return [each.op for each in graph.passes if each.role == role]


def trained(policy: str, dtype: str, device: torch.device, **options: object) -> list[Tensor]:
    """The losses of the steps, and parameters and running statistics after them."""
    ours, batches = net().to(device), random_batches(STEPS, (BATCH, *SHAPE), CLASSES, seed=6)
    given = [(x.to(device), y.to(device)) for x, y in batches]
    how = {"optimizer": SGD(lr=0.1), "dtype": dtype, "chunk_size": CHUNK_SIZE, "policy": policy}
    trainer = Trainer(ours, given[0][0], **how | options)
    losses = [trainer.step(x, y).clone() for x, y in given]
    trainer.close()
    return [*losses, *copy.deepcopy(ours.state_dict()).values()]


def test_normalizations_merge_what_convolutions_leave() -> None:
    norms = ["first", "second", "third", "last"]
    graph = graph_of()
    assert makers(graph, "merge_cells") == norms
    assert makers(graph, "moments") == []
    assert makers(graph_of(fuse=True), "merge_cells") == norms
    written = {each.op: len(each.writes) for each in graph.passes if each.role == "forward"}
    assert (written["stem"], written["wide"]) == (2, 2)
    assert written["plain"] == 1  # which no normalization follows


def test_exact_products_and_short_runs_leave_none() -> None:
    """Whole cells would make launches longer than runs of chunks."""
    assert makers(graph_of(dtype="fp32"), "merge_cells") == []
    graph = graph_of(chunk_size=64)
    assert makers(graph, "moments") == ["last"]
    assert makers(graph, "merge_cells") == ["first", "second", "third"]


def test_any_plan_trains_to_the_same_bits() -> None:
    """Also where maps are made again, with the moments of their cells."""
    batches = random_batches(STEPS, (BATCH, *SHAPE), CLASSES, seed=6)
    graph = training_graph(net(), batches[0][0], optimizer=SGD(), dtype="tf32", chunk_size=8192)
    assert makers(graph, "merge_cells") == ["first", "second", "third"]
    costs, again = default_costs(graph), 0
    kept = train(net(), lower(graph, keep(graph), costs), batches)
    for seed in range(6):
        plan = random_plan(graph, random.Random(seed))
        schedule = lower(graph, plan, costs)
        check(schedule)
        assert train(net(), schedule, batches, order_seed=seed).equals(kept)
        again += sum(step.recompute for step in schedule.steps)
    assert again > 0


def test_kernels_train_to_the_same_bits_where_maps_move(device: torch.device) -> None:
    layers = nn.Conv2d(32, 32, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten()
    x, y = torch.randn(5, 32, 4, 8, device=device), torch.arange(5, device=device) % CLASSES
    first = nn.Sequential(*layers, nn.Linear(1024, CLASSES)).to(device)
    found = []
    for policy in ("keep", "vdnn-all:m"):
        ours = copy.deepcopy(first)
        options = {"kernels": "triton", "dtype": "bf16", "chunk_size": 4096, "policy": policy}
        trainer = Trainer(ours, x, optimizer=SGD(lr=0.1), **options)
        assert any(each.role == "merge_cells" for each in trainer.graph.passes)
        found.append([trainer.step(x, y).clone(), *ours.state_dict().values()])
        trainer.close()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_what_is_left_is_what_a_pass_of_its_own_finds(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = trained("keep", "tf32", device, kernels="torch")

    def none(*_: object, **__: object) -> MomentCells | None:
        return None

    monkeypatch.setattr(conv, "moment_cells", none)
    assert makers(graph_of(), "merge_cells") == []
    apart = trained("keep", "tf32", device, kernels="torch")
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)
