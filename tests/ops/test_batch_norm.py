"""Networks with batch normalization: statistics of the whole batch, tracked as torch does."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.batch_norm import Dense, Residual, activated, residual
from tests.support.running import Batch, random_batches
from tvdnn.engine import Trainer, training_graph, virtualize
from tvdnn.errors import InputError
from tvdnn.graph import Kind
from tvdnn.graph.fusion import ACTIVATIONS
from tvdnn.kernels.pointwise.activation import FUNCTIONS
from tvdnn.optim import SGD
from tvdnn.trace.trace import trace

BATCH, SHAPE, CLASSES = 5, (3, 6, 6), 4
CHUNK_SIZE = 600  # bytes: a sample a section
STEPS = 5


def make_net(**settings: Any) -> Residual:
    torch.manual_seed(7)
    return residual(**settings)


def batches() -> list[Batch]:
    return random_batches(STEPS, (BATCH, *SHAPE), CLASSES, seed=8)


def trained(
    net: nn.Module, policy: str, device: torch.device, steps: int = STEPS, **options: Any
) -> list[Tensor]:
    """The losses of the steps, and parameters and running statistics after them."""
    net = copy.deepcopy(net).to(device)
    given = [(x.to(device), y.to(device)) for x, y in batches()[:steps]]
    how = {"dtype": "fp32", "chunk_size": CHUNK_SIZE} | options
    trainer = Trainer(net, given[0][0], optimizer=SGD(lr=0.1), policy=policy, **how)
    losses = [trainer.step(x, y).clone() for x, y in given]
    trainer.close()
    return [*losses, *net.state_dict().values()]


def by_torch(net: nn.Module) -> list[Tensor]:
    """The same of torch's autograd and optimizer, in float64."""
    net = copy.deepcopy(net).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        losses.append(functional.cross_entropy(net(x.double()), y))
        losses[-1].backward()
        optimizer.step()
    return [*(loss.detach() for loss in losses), *net.state_dict().values()]


def close(ours: list[Tensor], exact: list[Tensor]) -> None:
    for mine, theirs in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.cpu().to(theirs.dtype), theirs, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}],
    ids=lambda settings: "".join(settings) or "plain",
)
def test_training_follows_torch(settings: dict[str, Any], device: torch.device) -> None:
    net = make_net(**settings)
    close(trained(net, "keep", device), by_torch(net))


class Twice(nn.Module):
    """Normalizes a map twice, and the features of it viewed as others are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 1, 3)
        self.norms = nn.ModuleList((nn.BatchNorm2d(1), nn.BatchNorm2d(1, eps=0.1, momentum=0.5)))
        self.features = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        first, second = (norm(x) for norm in self.norms)
        return self.head((first + 2 * second).flatten(1) + self.features(x.flatten(1)))


def test_moments_of_a_map_are_made_once(device: torch.device) -> None:
    torch.manual_seed(3)
    net = Twice()
    graph = training_graph(net, batches()[0][0], chunk_size=CHUNK_SIZE)
    made = [each.op for each in graph.passes if each.role == "moments"]
    assert made == ["norms.0", "features"]
    close(trained(net, "keep", device), by_torch(net))


def test_residuals_and_relus_are_taken_in() -> None:
    """The later of a sum's two normalizations makes the other's result as it adds it."""
    graph = training_graph(make_net(), torch.empty(BATCH, *SHAPE), fuse=True)
    kinds = [op.kind for op in graph.network.ops if op.kind.startswith("batch_norm")]
    joined = "batch_norm_add_relu"
    assert kinds == ["batch_norm_relu", "batch_norm", joined, joined, "batch_norm"]
    assert not any(op.kind in ("add", "relu") for op in graph.network.ops)
    made = {each.op: each for each in graph.passes if each.role == "forward"}
    assert "second" not in made
    assert [use.buffer for use in made["side"].reads[2:]] == ["conv", "statistics second"]


def test_sums_of_two_normalizations_are_found_together() -> None:
    graph = training_graph(make_net(), torch.empty(BATCH, *SHAPE), fuse=True)
    sums = {each.op: each for each in graph.passes if each.role == "grad_sums"}
    assert "second" not in sums
    assert [use.buffer for use in sums["side"].reads[-2:]] == ["conv", "statistics second"]
    assert sums["side"].writes[-1].buffer == "grad sums second"


def test_functions_are_taken_in() -> None:
    assert set(ACTIVATIONS) == set(FUNCTIONS)
    graph = training_graph(activated(), torch.empty(BATCH, *SHAPE), fuse=True)
    taken = [op.attrs["function"] for op in graph.network.ops if "function" in op.attrs]
    assert sorted(taken) == sorted(FUNCTIONS)
    assert not any(op.kind in FUNCTIONS for op in graph.network.ops)


def test_what_is_normalized_is_the_only_other_map_that_is_kept() -> None:
    """Backward reads inputs and outputs of convolutions, but nothing in between."""
    graph = training_graph(make_net(), torch.empty(BATCH, *SHAPE), fuse=True)
    maps = {name for name, each in graph.buffers.items() if each.kind is Kind.MAP}
    wide = {name for name in maps if graph.buffers[name].shape == (BATCH, 6, 6, 8)}
    assert wide == {"stem", "relu", "conv", "down", "relu#2", "conv#2", "relu#3"}


def test_ranges_of_concatenations_are_normalized_in_place() -> None:
    """The features of a dense block are one map: no range of it is copied to be normalized."""
    graph = training_graph(Dense(), torch.empty(BATCH, *SHAPE), fuse=True)
    norms = ("norms.1 forward", "norms.2 forward")
    reads = [each.reads[0] for each in graph.passes if each.name in norms]
    assert len({read.buffer for read in reads}) == 1
    assert [read.channels for read in reads] == [(0, 12), None]


def test_kernels_train_to_the_same_bits_where_maps_move(device: torch.device) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    net.append(nn.Linear(288, CLASSES))
    options = {"kernels": "triton", "steps": 1, "chunk_size": 2400}
    kept, moved = (trained(net, policy, device, **options) for policy in ("keep", "vdnn-all:m"))
    assert all(torch.equal(one, other) for one, other in zip(kept, moved, strict=True))


def test_sections_do_not_show(device: torch.device) -> None:
    """Outputs, gradients and running statistics have the same bits however maps are cut."""
    found = []
    x = torch.randn(9, 3, 6, 6, device=device)
    for sections in (1, 2, 4, 9):
        torch.manual_seed(1)
        net = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3), nn.MaxPool2d(2))
        net = net.to(device)
        virtual = virtualize(net, x, sections=sections, policy="vdnn-all:m", dtype="fp32")
        leaf = x.clone().requires_grad_()
        y = virtual(leaf)
        y.square().sum().backward()
        assert leaf.grad is not None
        grads = [param.grad for param in net.parameters() if param.grad is not None]
        found.append([y.detach(), leaf.grad, *grads, *net.buffers()])
    for one, other in pairwise(found):
        assert len(one) == 12
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def test_modes_and_gradients_are_torchs(device: torch.device) -> None:
    """Forwards without gradients count, evaluation does not; frozen layers hand gradients on."""
    net = make_net().to(device)
    net.side.eval()
    net.second.requires_grad_(False)
    twin = copy.deepcopy(net).double()
    ((x, y), *_) = [(x.to(device), y.to(device)) for x, y in batches()]
    virtual = virtualize(net, x, policy="vdnn-all:m", chunk_size=CHUNK_SIZE, dtype="fp32")
    with torch.no_grad():
        virtual(x)
        twin(x.double())
    leaves = (x.clone().requires_grad_(), x.double().requires_grad_())
    for each, leaf in zip((virtual, twin), leaves, strict=True):
        functional.cross_entropy(each(leaf), y).backward()
    assert net.first.num_batches_tracked == 2
    assert net.side.num_batches_tracked == 0
    close([leaves[0].grad], [leaves[1].grad])
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None and theirs.grad is not None:
            close([mine.grad], [theirs.grad])
    for each in (virtual, twin):
        each.eval()
    close([virtual(x).detach()], [twin(x.double()).detach()])
    close(list(net.buffers()), list(twin.buffers()))
    assert net.first.num_batches_tracked == 2


def test_accumulated_parts_track_each(device: torch.device) -> None:
    net = make_net().to(device)
    twin = copy.deepcopy(net).double()
    x, y = random_batches(1, (6, *SHAPE), CLASSES, seed=2)[0]
    x, y = x.to(device), y.to(device)
    trainer = Trainer(net, x[:3], optimizer=SGD(lr=0.1), dtype="fp32", policy="vdnn-all:m")
    trainer.step(x, y, accumulate=2)
    trainer.close()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for part in (slice(0, 3), slice(3, 6)):
        (functional.cross_entropy(twin(x[part].double()), y[part]) / 2).backward()
    optimizer.step()
    close(list(net.state_dict().values()), list(twin.state_dict().values()))
    assert net.first.num_batches_tracked == 2


def test_statistics_move_and_load_with_the_network(device: torch.device) -> None:
    """state_dict is torch's; statistics that were loaded are those that are tracked on."""
    net = make_net().to(device)
    ((x, y), *_) = [(x.to(device), y.to(device)) for x, y in batches()]
    trainer = Trainer(net, x, policy="keep", dtype="fp32", chunk_size=CHUNK_SIZE)
    before = copy.deepcopy(net.state_dict())
    assert list(before) == list(Residual().state_dict())
    trainer.step(x, y)
    first = copy.deepcopy(net.state_dict())
    net.load_state_dict(before)
    trainer.step(x, y)
    trainer.close()
    statistics = [name for name in before if "running" in name or "tracked" in name]
    assert all(torch.equal(net.state_dict()[name], first[name]) for name in statistics)


def test_statistics_are_in_the_budget() -> None:
    graph = training_graph(make_net(), torch.empty(BATCH, *SHAPE))
    bare = training_graph(make_net(track_running_stats=False), torch.empty(BATCH, *SHAPE))
    tracked = 4 * (2 * 4 * 8 + 8) + (2 * 4 * 10 + 8)
    assert graph.fixed_nbytes == bare.fixed_nbytes + tracked
    tracking = [each for each in graph.passes if each.effects]
    assert len(tracking) == 5
    assert not [each for each in bare.passes if each.effects]


def test_one_value_a_channel_is_refused() -> None:
    with pytest.raises(InputError, match="more than 1 value per channel"):
        trace(nn.BatchNorm1d(4), (torch.empty(1, 4),))


def test_sequences_are_normalized_as_maps_of_one_row() -> None:
    class Sequences(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.batch_norm(x[:, None], None, None, training=True)

    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(virtualize(Sequences(), x)(x), Sequences()(x))
