"""gist-lossless in training: keep's bits in a user's own loop, at its floor, and after a spill."""

import copy
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from tests.networks.gist import Joined, pairs
from tests.support.running import random_batches, train
from tests.support.simulated import h200
from tvdnn.engine import Trainer, training_graph, virtualize
from tvdnn.errors import InputError
from tvdnn.graph import BITS
from tvdnn.optim import SGD
from tvdnn.planner.make import make_schedule
from tvdnn.runtime.binding import Tensors
from tvdnn.runtime.runner import Runner

pytestmark = pytest.mark.filterwarnings("ignore:.*packed codes of a step:RuntimeWarning")

BATCH, SHAPE, CLASSES = 5, (3, 8, 8), 4
CHUNK_SIZE = 1200
POLICIES = ("gist-lossless", "gist-lossless:ssdc=40", "gist-lossless:fused:bitmap=40")


def joined() -> Joined:
    torch.manual_seed(3)
    return Joined(forked=False)


def gradients(policy: str) -> list[Tensor]:
    """Of two steps of a loop of one's own."""
    net = joined()
    batches = random_batches(2, (BATCH, *SHAPE), CLASSES, seed=4)
    virtual = virtualize(
        net, batches[0][0], policy=policy, chunk_size=CHUNK_SIZE, dtype="fp32", order_seed=2
    )
    found = []
    for x, y in batches:
        net.zero_grad()
        loss = nn.functional.cross_entropy(virtual(x), y)
        loss.backward()
        found += [loss.detach().clone(), *(param.grad.clone() for param in net.parameters())]
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_codes_pass_from_one_half_of_a_step_to_the_other(policy: str) -> None:
    kept, stored = gradients("keep"), gradients(policy)
    assert all(torch.equal(one, other) for one, other in zip(kept, stored, strict=True))


def trained(policy: str, **limits: str) -> tuple[Trainer, list[Tensor]]:
    torch.manual_seed(3)
    net, batches = pairs(), random_batches(3, (BATCH, *SHAPE), CLASSES, seed=5)
    how = {"optimizer": SGD(lr=0.1), "chunk_size": CHUNK_SIZE, "order_seed": 7}
    trainer = Trainer(net, batches[0][0], policy=policy, **how, **limits)
    losses = [trainer.step(*batch).clone() for batch in batches]
    return trainer, [*losses, *copy.deepcopy(net.state_dict()).values()]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_floor_trains_to_the_bits_of_keep(policy: str) -> None:
    (keeps, kept), (trainer, stored) = trained("keep"), trained(policy, budget="min")
    assert trainer.schedule.peak_nbytes <= keeps.schedule.peak_nbytes
    assert all(torch.equal(one, other) for one, other in zip(kept, stored, strict=True))


def test_each_map_gets_the_room_that_its_values_take() -> None:
    """The stated density is that of the first plan. A spill is counted, and planned for by map."""
    trainer, _ = trained("gist-lossless:bitmap=20")
    trainer.settle()
    for x, y in random_batches(1, (BATCH, *SHAPE), CLASSES, seed=6):
        trainer.step(x, y)
    packed = [each for each in trainer.schedule.plan.bridges if each.form != BITS]
    assert len({each.form.share for each in packed}) > 1
    assert all(each.density < 1 for each in trainer.code_counts)
    assert not any(each.spilled for each in trainer.code_counts)


@pytest.mark.parametrize("codec", ["ssdc", "bitmap"])
def test_references_encode_no_packed_codes_on_a_gpu(codec: str) -> None:
    options = {"chunk_size": CHUNK_SIZE, "fuse": False}
    graph = training_graph(pairs(), torch.empty(BATCH, *SHAPE), **options)
    schedule = make_schedule(graph, h200(graph), policy=f"gist-lossless:{codec}=40")
    gpu = SimpleNamespace(device=torch.device("cuda"))
    with pytest.raises(InputError, match=f'codec {codec}: .*; pass kernels="triton", or a policy'):
        Runner(schedule, Tensors({}, {}, None), kernels="torch", arena=gpu, slab=None)


def rows() -> nn.Sequential:
    """Convolutions that read rows of pixels beside their own, and a class a pixel."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, CLASSES, 1),
    )


@pytest.mark.parametrize(
    ("dtype", "policy"), [*product(["fp32"], POLICIES[:2]), ("tf32", "gist-lossless:tf32")]
)
def test_row_tiles_are_coded_with_the_rows_beside_them(dtype: str, policy: str) -> None:
    """A tile is decoded for the tiles above and below it, too."""
    net, generator = rows(), torch.Generator().manual_seed(1)
    shape = 3, 3, 16, 16
    batches = [
        (torch.randn(shape, generator=generator), torch.randint(CLASSES, (3, 4, 4)))
        for _ in range(2)
    ]
    found = []
    for name in ("keep", policy):
        graph = training_graph(
            net,
            batches[0][0],
            optimizer=SGD(),
            dtype=dtype,
            coded_pools=name != "keep",
            row_tiles=2,
            chunk_size=600,
        )
        schedule = make_schedule(graph, h200(graph), policy=name)
        found.append((schedule, train(net, schedule, batches, order_seed=3)))
    (_, kept), (schedule, stored) = found
    assert stored.equals(kept)
    tiled = {use.buffer for each in schedule.graph.passes for use in each.reads if use.neighbour}
    coded = {each.buffer for each in schedule.plan.bridges if each.form != BITS}
    assert bool(tiled & coded) is (policy != "gist-lossless")
