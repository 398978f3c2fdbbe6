"""Bands of rows: samples too large for the device train as whole ones, to the same bits."""

import copy
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tvdnn
from tests.support.lowered import lower
from tests.support.plans import random_plan
from tests.support.running import Outcome, train
from tvdnn import models
from tvdnn.engine import training_graph
from tvdnn.engine.build import default_costs
from tvdnn.errors import InputError, ScheduleError
from tvdnn.graph import Graph
from tvdnn.ops.expand import Settings, expand
from tvdnn.ops.row_tiles import grad_rows_beside, rows_beside
from tvdnn.optim import SGD
from tvdnn.planner import make as planning
from tvdnn.planner.ir.plan import Plan
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.lowering.floor import MinimumSchedule
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.verify.check import check
from tvdnn.trace.trace import trace
from tvdnn.units import MIB

pytestmark = pytest.mark.usefixtures("few_trials")

SIDE, CLASSES, BANDS = 32, 3, 4
NOISE = 1e-6  # of float32 over two steps of sums in another order, relative


class Segmenter(nn.Module):
    """Windows of every sort: wide, strided and dilated ones, pooling, two ways up, a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.BatchNorm2d(8), nn.ReLU())
        self.stride = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.far = nn.Sequential(nn.Conv2d(8, 16, 3, padding=2, dilation=2), nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.deep = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Dropout(0.2))
        self.grow = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.up = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(8, 8, 1),
            nn.Upsample(scale_factor=2),
        )
        self.last = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.classifier = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.wide(x)
        small = self.pool(self.pool(self.far(self.stride(x))))
        grown = self.up(self.grow(self.deep(small)))
        y: Tensor = self.classifier(self.last(torch.cat([x, grown], 1)))
        return y


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(3)
    return Segmenter()


def batches(samples: int, count: int = 2) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(samples)
    return [
        (
            torch.randn(samples, 3, SIDE, SIDE, generator=generator),
            torch.randint(0, CLASSES, (samples, SIDE, SIDE), generator=generator),
        )
        for _ in range(count)
    ]


def graph_of(net: nn.Module, bands: int, samples: int = 1, **options: object) -> Graph:
    x = torch.empty(samples, 3, SIDE, SIDE, device="meta")
    settings = {"optimizer": SGD(momentum=0.9), "chunk_size": 8192, **options}
    return training_graph(net, x, row_tiles=bands, **settings)  # type: ignore[arg-type]


def lowered(graph: Graph, plan: Plan) -> Schedule:
    """The schedule of the plan in the fewest bytes, checked."""
    costs = default_costs(graph)
    schedule = lower(graph, plan, costs, budget=MinimumSchedule.of(graph, plan, costs).floor[0])
    check(schedule)
    return schedule


def kept(net: nn.Module, graph: Graph, data: Sequence[tuple[Tensor, Tensor]]) -> Outcome:
    return train(net, lowered(graph, keep(graph)), data)


def far_apart(mine: Outcome, theirs: Outcome) -> float:
    """The largest difference of a parameter or buffer, relative to its largest value."""
    pairs = zip(mine.params, theirs.params, strict=True)
    return max(
        float((a.double() - b).abs().max() / b.double().abs().max().clamp(1e-3)) for a, b in pairs
    )


# What is cut


def test_an_image_is_cut_so_that_the_bands_of_its_largest_map_fit_a_chunk() -> None:
    with torch.device("meta"):
        net, x = models.unet(width=1 / 16), torch.empty(1, 3, 64, 64)
    graph = training_graph(net, x, chunk_size=16 << 10)
    assert graph.row_tiles == 4  # its concatenated maps have 128 KiB; of the deepest no more fit
    assert graph.batch == 4
    assert graph.buffers["x"].shape == (4, 16, 64, 3)
    assert graph.network.values["x"].shape == (1, 64, 64, 3)


def test_small_images_and_batches_stay_whole(net: nn.Module) -> None:
    x = torch.empty(1, 3, SIDE, SIDE, device="meta")
    assert training_graph(net, x).row_tiles == 1
    x = torch.empty(2, 3, SIDE, SIDE, device="meta")
    assert training_graph(net, x, chunk_size=16 << 10).row_tiles == 1
    assert (
        training_graph(net, x, chunk_size=512).row_tiles == 4  # a map has 128 chunks
    )  # a map has 24 chunks, the deepest 8 rows


@pytest.mark.parametrize(
    ("layers", "name", "most"),
    [
        ([nn.Conv2d(3, 8, 3)], "0", 1),
        ([nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(3, 2, 1)], "1", 1),
        ([nn.Conv2d(3, 8, 3, padding=1), nn.Flatten()], "1", 1),
        ([nn.Conv2d(3, 8, 3, padding=1), nn.AdaptiveAvgPool2d(2)], "1", 1),
        ([nn.Conv2d(3, 8, 3, padding=1), nn.UpsamplingBilinear2d(scale_factor=2)], "1", 1),
        ([nn.Conv2d(3, 8, 7, padding=3)], "0", 8),
        ([nn.MaxPool2d(4), nn.Conv2d(3, 8, 3, padding=1)], "0", 8),
    ],
)
def test_an_op_that_windows_do_not_suit_is_named(
    layers: list[nn.Module], name: str, most: int
) -> None:
    net = nn.Sequential(*layers)
    with pytest.raises(InputError, match=f"into 16 row tiles: {name} allows {most}"):
        training_graph(net, torch.empty(1, 3, SIDE, SIDE, device="meta"), row_tiles=16)


@pytest.mark.parametrize(
    ("taps", "stride", "padding", "dilation"),
    [(3, 1, 1, 1), (5, 1, 2, 1), (3, 2, 1, 1), (3, 1, 2, 2), (7, 2, 3, 1)],
)
def test_rows_beside_a_band_are_those_that_windows_meet(
    taps: int, stride: int, padding: int, dilation: int
) -> None:
    conv = nn.Conv2d(8, 8, taps, stride, padding, dilation)
    network = training_graph(conv, torch.empty(1, 8, 32, 32, device="meta")).network
    op, rows = network.ops[0], 8
    met = [o * stride - padding + r * dilation for o in range(rows) for r in range(taps)]
    assert rows_beside(op, taps) == (-min(met), max(met) + 1 - rows * stride)
    spread = [(i + padding - r * dilation) for i in range(rows * stride) for r in range(taps)]
    made = [row // stride for row in spread if row % stride == 0]
    assert grad_rows_beside(op, taps) == (-min(made), max(made) + 1 - rows)


# What is computed


@pytest.mark.parametrize(("dtype", "samples"), [("fp32", 1), ("tf32", 2), ("bf16", 1)])
def test_bits_are_the_same_wherever_bands_lie(net: nn.Module, dtype: str, samples: int) -> None:
    """Under any plan: in sections or whole, in any runs, moved, made again, in any order."""
    data = batches(samples, count=1)
    graph = graph_of(net, BANDS, samples, dtype=dtype, fuse=dtype != "fp32")
    oracle = kept(net, graph, data)
    for seed in range(3):
        schedule = lowered(graph, random_plan(graph, random.Random(seed)))
        assert train(net, schedule, data, order_seed=seed).equals(oracle)


def test_bands_train_as_whole_maps_and_as_torch_does(net: nn.Module) -> None:
    plain = copy.deepcopy(net)
    next(layer for layer in plain.modules() if isinstance(layer, nn.Dropout)).p = 0.0
    data = batches(1)
    found = kept(plain, graph_of(plain, BANDS), data)
    assert far_apart(found, kept(plain, graph_of(plain, 1), data)) < NOISE
    optimizer = torch.optim.SGD(plain.parameters(), 0.05, momentum=0.9)
    for x, target in data:
        optimizer.zero_grad()
        functional.cross_entropy(plain(x), target).backward()
        optimizer.step()
    tensors = (*plain.parameters(), *plain.buffers())
    twin = replace(found, params=tuple(tensor.detach() for tensor in tensors))
    assert far_apart(found, twin) < NOISE


def test_masks_of_dropout_are_those_of_whole_maps(net: nn.Module) -> None:
    data = batches(1)
    bands, whole = (kept(net, graph_of(net, count), data) for count in (BANDS, 1))
    assert far_apart(bands, whole) < NOISE


def test_a_network_of_the_users_loop_hands_out_whole_maps(net: nn.Module) -> None:
    (x, target), _ = batches(1)
    twin, x = copy.deepcopy(net).eval(), x.requires_grad_()
    virtual = tvdnn.virtualize(copy.deepcopy(net).eval(), x, policy="vdnn-all:m", chunk_size=8192)
    grads = []
    for each in (virtual, twin):
        y = each(x)
        loss = functional.cross_entropy(y, target)
        grads.append((y, *torch.autograd.grad(loss, (x, *each.parameters()))))
    assert virtual.schedule.graph.row_tiles > 1
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


# What is planned


def test_a_part_of_a_map_is_enough_for_a_launch() -> None:
    """The budget is less than the decoder's largest map and its output together."""
    with torch.device("meta"):
        net, x = models.unet(width=1 / 8), torch.empty(1, 3, 1024, 1024)
    graph = training_graph(net, x, dtype="bf16", chunk_size=2 * MIB, fuse=True)
    largest = graph.buffers["cat#4"].nbytes
    schedule = planning.make_schedule(
        graph, default_costs(graph), policy="tvdnn-heuristic", budget=5 * largest // 4
    )
    assert schedule.peak_nbytes <= 5 * largest // 4 < largest + graph.buffers["up.3.0"].nbytes


def test_a_window_needs_the_rows_beside_its_own(net: nn.Module) -> None:
    """A launch that reads fewer rows than its window needs is refused."""
    graph = graph_of(net, BANDS)
    plan = keep(graph)
    reader = next(
        i for i, each in enumerate(graph.passes) if each.reads_neighbours and each.reads[0].halo
    )
    name = graph.passes[reader].reads[0].buffer
    assert [use.neighbour for use in graph.passes[reader].reads if use.buffer == name] == [0, -1, 1]
    schedule = lowered(graph, plan)
    index = next(i for i, step in enumerate(schedule.steps) if step.pass_index == reader)
    step = schedule.steps[index]
    short = tuple(each._replace(stop=each.stop - 1) for each in step.reads)
    steps = (*schedule.steps[:index], step._replace(reads=short), *schedule.steps[index + 1 :])
    with pytest.raises(ScheduleError, match="not on"):
        check(replace(schedule, steps=steps))


def test_fused_networks_are_cut_into_as_many_bands_as_those_that_are_not() -> None:
    """The largest map is that of the convolution, which fused with its pooling leaves none."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    network = trace(net, [torch.empty(1, 1, 16, 16)])
    settings = [Settings("fp32", fuse=fuse, chunk_size=1024) for fuse in (True, False)]
    bands = {expand(network, each).row_tiles for each in settings}
    assert bands == {4}
