"""Sign bits of maps that ReLUs leave behind sums: who leaves and reads them, to the same bits."""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.networks import batch_norm
from tests.networks.sign_bits import NETWORKS, Bottleneck
from tests.support.lowered import lower
from tests.support.running import random_batches, train
from tests.support.simulated import h200
from tvdnn.engine import Trainer, training_graph
from tvdnn.graph import BITS, Graph, Kind, Need, Pass, Use, in_form
from tvdnn.kernels.codec.sign_bits import packed_signs_reference
from tvdnn.ops.bind_pass import bind_pass
from tvdnn.ops.operator import TORCH_DTYPES, Control
from tvdnn.optim import SGD
from tvdnn.planner.ir.plan import Bridge, Plan
from tvdnn.planner.ir.schedule import Action, Schedule
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.verify.check import check
from tvdnn.runtime.kernel_set import kernel_set

BATCH, SHAPE, CLASSES = 5, (3, 4, 4), 4
CHUNK_SIZE = 8192  # of a map of 128 bfloat16 channels two samples
STEPS = 2
KERNELS = ("torch", "triton")
FUSED = ("bf16", "tf32")  # types in which convolutions add last terms
LAYERS = ((3, 16, 1), (16, 32, 1), (32, 32, 1), (32, 8, 1))  # channels of both maps, taps


def make_net() -> nn.Module:
    return NETWORKS["residual"].network()


def masked_convolutions() -> nn.Module:
    """Convolutions of which all but the first mask their data gradients, one behind a pooling."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 40, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(40, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 8, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


class Branches(nn.Module):
    """Normalized and rectified: the input of a layer, of two, and ranges of a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(*each, bias=False) for each in LAYERS)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _, channels, _ in LAYERS)
        self.head = nn.Linear(40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        stem, first, second, third = zip(self.convs, self.norms, strict=True)

        def run(layer: tuple[nn.Module, nn.Module], x: Tensor) -> Tensor:
            return layer[1](layer[0](x)).relu()

        x = run(first, run(stem, x))
        return self.head(torch.cat([run(second, x), run(third, x)], 1).mean((2, 3)))


def graph_of(
    net: nn.Module,
    *,
    dtype: str = "bf16",
    shape: tuple[int, ...] = SHAPE,
    **rewrites: bool,
) -> Graph:
    options = {"dtype": dtype, "chunk_size": CHUNK_SIZE, "fuse": True} | rewrites
    return training_graph(net, torch.empty(BATCH, *shape), optimizer=SGD(), **options)


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


@pytest.mark.parametrize("dtype", FUSED)
def test_last_terms_are_added_where_they_are_made(dtype: str) -> None:
    """Layers of single taps add them. The next block's first is the last in backward."""
    graph = graph_of(make_net(), dtype=dtype)
    last = [each.op for each in graph.passes if each.role == "grad_last"]
    assert last == ["3.narrow", "2.narrow", "1.narrow"]
    sums = {each.op: each for each in graph.passes if each.role == "grad_sums"}
    assert [len(sums[f"{block}.last"].writes) for block in range(4)] == [1, 1, 1, 2]
    assert len(sums["1.last"].reads) == 3  # what was normalized, statistics and the gradient
    for other in ({"dtype": dtype, "fuse": False}, {"dtype": "fp32"}):
        assert not any(each.role == "grad_last" for each in graph_of(make_net(), **other).passes)


def test_other_terms_are_no_factors() -> None:
    """In tf32 a gradient that a product only adds keeps every bit.

    So does the sum, unless a product reads it, as of the convolution without a bias in a shortcut.
    """
    graph = graph_of(make_net(), dtype="tf32")
    last = [each for each in graph.passes if each.role == "grad_last"]
    added = {each.reads[2].buffer for each in last}
    writes = [pair for each in graph.passes for pair in zip(each.writes, each.rounded, strict=True)]
    assert {rounded for use, rounded in writes if use.buffer in added} == {None}
    assert [each.rounded for each in last] == [(None,), (None,), ((0, 128),)]


def test_masks_are_read_as_bits_that_forward_may_leave() -> None:
    graph = graph_of(make_net())
    left = [use for each in graph.passes for use in each.writes if use.also]
    read = [use for each in graph.passes for use in each.reads if use.forms]
    maps = {use.buffer for use in left}
    assert len(left) == len(maps) == 4
    assert {use.buffer for use in read} == maps
    assert all(use == Use(use.buffer, also=(BITS,)) for use in left)
    assert all(use == Use(use.buffer, need=Need.SIGN, forms=(BITS,)) for use in read)
    assert sorted(use_roles(graph)) == ["grad_last", "grad_last", "grad_last", "grad_sums"]


def use_roles(graph: Graph) -> list[str]:
    return [each.role for each in graph.passes for use in each.reads if use.forms]


def test_bits_take_an_eighth_of_a_byte_a_value() -> None:
    """Bits that are left come on top of a pass's bytes. Bits that are read stand for two bytes."""
    graph = graph_of(make_net())
    for each in graph.passes:
        uses = [use for use in (*each.reads, *each.writes) if use.forms or use.also]
        for use in uses:
            values = graph.buffers[use.buffer].nbytes / 2
            assert each.form_nbytes[use.buffer, BITS] == values / 8 - bool(use.forms) * values * 2
        assert len(each.form_nbytes) == len(uses)


def test_normalizations_mask_by_signs_where_maps_may_be_rounded() -> None:
    """The convolution behind masks the gradient where it alone reads the map."""
    graph = graph_of(Branches(), masks_by_signs=True)
    read = [
        (graph.ops[each.op].name, each.role, use.channels)
        for each in graph.passes
        for use in each.reads
        if use.forms
    ]
    assert sorted(read, key=str) == [
        ("convs.1", "grad_input", None),
        ("norms.1", "grad_sums", None),
        ("norms.2", "grad_sums", (0, 32)),
        ("norms.3", "grad_sums", (32, 40)),
    ]
    assert not use_roles(graph_of(Branches()))


@pytest.mark.parametrize(("copies", "reads", "leaves"), [(0, 1, 1), (1, 0, 0), (8, 1, 0)])
def test_bits_of_ranges_are_read_where_they_are_whole_bytes(
    copies: int, reads: int, leaves: int
) -> None:
    """No kernel leaves them."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Bottleneck(3, nn.Conv2d(3, 128, 1))
            self.last = nn.Linear(128 + 3 * copies, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.cat([self.block(x), *[x] * copies], 1).mean((2, 3)))

    graph = graph_of(Joined())
    assert len(use_roles(graph)) == reads
    assert sum(bool(use.also) for each in graph.passes for use in each.writes) == leaves


def test_maps_of_odd_channels_have_no_bits() -> None:
    block = Bottleneck(3, nn.Conv2d(3, 100, 1))
    block.wide, block.last = nn.Conv2d(64, 100, 1), nn.BatchNorm2d(100)
    graph = graph_of(nn.Sequential(block, nn.Flatten(), nn.Linear(1600, CLASSES)))
    assert not use_roles(graph)
    assert "grad_sums" in {each.role for each in graph.passes}


class Operands:
    """The tensors of a launch of a pass over the whole batch."""

    def __init__(self, graph: Graph, pass_: Pass, generator: torch.Generator) -> None:
        self.graph, self.pass_, self.generator = graph, pass_, generator
        self.reads = [self._read(use) for use in pass_.reads]
        self.params = tuple(self._param(name) for name in pass_.params)

    def _read(self, use: Use) -> Tensor:
        assert not use.shape
        values = self._randn(self.graph.buffers[use.buffer].shape)
        if use.need is Need.SIGN:
            values.relu_()[..., ::9] = torch.nan
        if self.graph.buffers[use.buffer].kind is Kind.AUX:
            values.abs_()  # statistics
        return values.to(TORCH_DTYPES[self.graph.buffers[use.buffer].dtype])

    def _param(self, name: str) -> Tensor | None:
        return self._randn(self.graph.network.params[name].shape) if name else None

    def _randn(self, shape: Sequence[int]) -> Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.generator.device)

    def written(self, kernels: str, *, coded: bool) -> list[Tensor]:
        """What the launch writes, where it reads and leaves sign bits or not."""
        graph, uses, device = self.graph, self.pass_.writes, self.generator.device
        wholes = [
            packed_signs_reference(read) if coded and use.forms else read.clone()
            for read, use in zip(self.reads, self.pass_.reads, strict=True)
        ]
        reads = [
            in_range(whole, use, 8 if coded and use.forms else 1)
            for whole, use in zip(wholes, self.pass_.reads, strict=True)
        ]
        places = {use.buffer: read for read, use in zip(wholes, self.pass_.reads, strict=True)}
        writes = [
            in_range(places.get(use.buffer, empty(graph.buffers[use.buffer], device)), use)
            for use in uses
        ]
        if coded:
            codes = [in_form(graph.buffers[use.buffer], BITS) for use in uses if use.also]
            writes += [empty(each, device) for each in codes]
        one = torch.ones(8, device=device)
        control = Control(one, one[:1], torch.zeros(1, dtype=torch.int64, device=device))
        bound = bind_pass(graph, self.pass_)
        rows = (0, self.pass_.domain)
        bound.run(
            bound.launch(
                kernel_set(kernels), tuple(reads), tuple(writes), self.params, (), rows, control
            )
        )
        return writes


def in_range(whole: Tensor, use: Use, a_byte: int = 1) -> Tensor:
    """The channels that a pass uses of a map, or of sign bits of 8 channels a byte."""
    start, stop = use.channels or (0, a_byte * whole.shape[-1])
    return whole[..., start // a_byte : stop // a_byte]


def empty(buffer: Any, device: torch.device) -> Tensor:
    return torch.full(buffer.shape, 77, dtype=TORCH_DTYPES[buffer.dtype], device=device)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "tf32"])
@pytest.mark.parametrize(
    ("net", "shape", "masks_by_signs"),
    [
        (make_net, SHAPE, False),
        (batch_norm.residual, batch_norm.SHAPE, False),
        (masked_convolutions, (3, 8, 8), False),
        (Branches, SHAPE, True),
    ],
    ids=["bottlenecks", "residual", "convolutions", "branches"],
)
def test_launches_have_the_same_bits_by_either_form(
    net: Any,
    shape: tuple[int, ...],
    masks_by_signs: bool,
    dtype: str,
    kernels: str,
    generator: torch.Generator,
) -> None:
    """Every launch that may read or leave sign bits writes what it writes without these."""
    torch.manual_seed(7)
    graph = graph_of(net(), dtype=dtype, shape=shape, masks_by_signs=masks_by_signs)
    passes = [each for each in graph.passes if each.form_nbytes]
    assert len(passes) > 2
    for each in passes:
        operands = Operands(graph, each, generator)
        raw = operands.written(kernels, coded=False)
        coded = operands.written(kernels, coded=True)
        for one, other in zip(raw, coded, strict=False):
            assert not one.isnan().any()
            assert torch.equal(one, other)
        left = [one for one, use in zip(raw, each.writes, strict=True) if use.also]
        for one, bits in zip(left, coded[len(raw) :], strict=True):
            assert torch.equal(bits, packed_signs_reference(one))


def encoding(graph: Graph, plan: Plan) -> Plan:
    """The plan with bits that are encoded behind the last use of a raw map, not left by forward."""
    slots = [graph.passes[slot.pass_index] for slot in plan.slots]

    def last_raw(bridge: Bridge) -> int:
        before = range(bridge.after + 1, bridge.needed_by)
        return max(at for at in before if bridge.buffer in slots[at].read_buffers)

    bridges = (replace(each, after=last_raw(each)) for each in plan.bridges)
    return replace(plan, bridges=tuple(bridges))


def recodes(schedule: Schedule) -> Counter[str]:
    """By buffer, the rows that recodes encode."""
    found: Counter[str] = Counter()
    for step in schedule.steps:
        if step.action is Action.RECODE:
            found[step.reads[0].buffer] += step.stop - step.start
    return found


def test_bits_train_to_the_bits_of_maps() -> None:
    """Bits are left by forward, or encoded later, and read in the place of every map."""
    net = make_net()
    graph = graph_of(net)
    costs, batches = h200(graph), random_batches(STEPS, (BATCH, *SHAPE), CLASSES, seed=6)
    left = keep(graph)
    raw = replace(left, bridges=())
    schedules = [lower(graph, plan, costs) for plan in (raw, left, encoding(graph, left))]
    for each in schedules:
        check(each)
    names = {use.buffer for each in graph.passes for use in each.reads if use.forms}
    assert {each.buffer for each in left.bridges} == names
    coded = [Counter(form for step in each.steps for form in step.forms) for each in schedules]
    assert coded == [{}, {(name, BITS): 2 for name in names}, {(name, BITS): 2 for name in names}]
    recoded = [recodes(each) for each in schedules]
    assert recoded == [Counter(), Counter(), Counter(dict.fromkeys(names, BATCH))]
    kept, *found = (train(net, each, batches, order_seed=5) for each in schedules)
    assert all(each.equals(kept) for each in found)


@pytest.mark.parametrize("kernels", ["torch", pytest.param("triton", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", FUSED)
def test_every_policy_trains_to_the_same_bits(
    dtype: str, kernels: str, device: torch.device
) -> None:
    """Also those that keep no bits, since their ops are not fused."""
    steps = {"kernels": kernels, "order_seed": 5, "dtype": dtype}
    kept = trained("keep", device, **steps)
    assert all(value.isfinite().all() for value in kept)
    moved = trained("vdnn-all:m", device, **steps)
    assert all(torch.equal(one, other) for one, other in zip(kept, moved, strict=True))
