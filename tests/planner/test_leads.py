"""Leads: makers run ahead of the blocks of passes that read the rows beside their own."""

import random

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.planner.test_weave import drawn_schedule, layers, of_backward, peak_nbytes
from tests.support.drawn_chains import random_costs
from tests.support.examples import examples
from tests.support.lowered import lower
from tests.support.running import Batch, train
from tests.support.simulated import h200
from tvdnn.engine import training_graph
from tvdnn.graph import Graph
from tvdnn.optim import SGD
from tvdnn.planner.ir.plan import Plan, Segment, Slot
from tvdnn.planner.lowering.build_program import build_program
from tvdnn.planner.lowering.leads import leads
from tvdnn.planner.lowering.segments import Variant
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.recompute.supplies import Supplies
from tvdnn.planner.recompute.weave import Making, weave
from tvdnn.planner.verify.check import check

SIDE, CLASSES, BANDS = 16, 3, 4


class Windows(nn.Module):
    """A chain of convolutions and normalizations, a pooling, and a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
            *(nn.Conv2d(4, 4, 5, padding=2), nn.BatchNorm2d(4), nn.ReLU()),
            *(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()),
        )
        self.deep = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1), nn.Upsample(scale_factor=2)
        )
        self.last = nn.Sequential(nn.Conv2d(8, 4, 3, padding=1), nn.ReLU())
        self.classifier = nn.Conv2d(4, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        y: Tensor = self.classifier(self.last(torch.cat([x, self.deep(x)], 1)))
        return y


def graph_of(net: nn.Module, chunk_size: int = 256, bands: int = BANDS, side: int = SIDE) -> Graph:
    x = torch.empty(1, 3, side, side, device="meta")
    how = {"optimizer": SGD(momentum=0.9), "chunk_size": chunk_size, "row_tiles": bands}
    return training_graph(net, x, **how)


@pytest.fixture(scope="module")
def net() -> Windows:
    torch.manual_seed(5)
    return Windows()


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(1, 3, SIDE, SIDE, generator=generator),
            torch.randint(0, CLASSES, (1, SIDE, SIDE), generator=generator),
        )
        for _ in range(2)
    ]


def made_afresh(graph: Graph) -> tuple[Segment, ...]:
    """The segments in which each reader of backward has all maps made just before it."""
    supplies = Supplies(graph)
    made = of_backward(graph, supplies, Making.AFRESH)
    runs = layers(graph, Variant.MEMORY)
    return tuple(weave(graph, supplies, runs, made, Variant.MEMORY))


def test_makers_are_a_section_ahead_for_each_window_between(net: Windows) -> None:
    """The normalization is one ahead of the window's gradient, the convolution before it too."""
    graph = graph_of(net)
    slots = [
        (graph.passes[slot.pass_index], slot) for part in made_afresh(graph) for slot in part.slots
    ]
    units = {pass_.unit for pass_, slot in slots if slot.lead}
    ahead = {slot.lead // pass_.unit for pass_, slot in slots}
    assert units == {1}
    assert ahead >= {0, 1, 2}
    assert all(slot.recompute for _, slot in slots if slot.lead)


def test_a_slot_ahead_takes_its_lead_with_the_first_block(net: Windows) -> None:
    graph = graph_of(net)
    program = build_program(graph, Plan("ahead", made_afresh(graph)))
    slots = program.plan.slots
    lead = max(slot.lead for slot in slots)
    number = next(number for number, slot in enumerate(slots) if slot.lead == lead)
    launches = [each for each in program.launches if each.slot == number]
    assert [(each.start, each.stop) for each in launches] == [(n, n + 1) for n in range(BANDS)]
    first = [each.slot for each in program.launches if each.segment == launches[0].segment]
    assert first[: first.index(number + 1)].count(number) == min(BANDS, 1 + lead)


def test_a_slot_is_ahead_of_a_later_one_that_writes_over_rows_beside_its_own(net: Windows) -> None:
    passes = graph_of(net).passes
    writer, reader = next(
        (writer, reader)
        for reader, each in enumerate(passes)
        for use in each.reads
        for writer in range(reader)
        if use.neighbour and use.buffer in passes[writer].written_buffers
    )
    assert leads(graph_of(net), [Slot(writer), Slot(reader)]) == [1, 0]
    assert leads(graph_of(net), [Slot(reader), Slot(writer)]) == [1, 0]
    assert leads(graph_of(net), [Slot(writer), Slot(reader), Slot(writer)]) == [2, 1, 0]
    assert leads(graph_of(net), [Slot(reader), Slot(reader)]) == [0, 0]


def test_maps_that_windows_read_are_made_again_in_few_bytes() -> None:
    """Three quarters of what they take where no maker joins the blocks of its reader."""
    with torch.device("meta"):
        graph = graph_of(Windows(), 2048, 16, 64)
    parts = made_afresh(graph)
    check(lower(graph, Plan("woven", parts), h200(graph)))
    supplies = Supplies(graph)
    made = of_backward(graph, supplies, Making.AFRESH)
    runs = layers(graph, Variant.MEMORY, joins=False)
    apart = tuple(weave(graph, supplies, runs, made, Variant.MEMORY))
    assert peak_nbytes(graph, parts) < 0.75 * peak_nbytes(graph, apart)


@pytest.mark.usefixtures("few_trials")
@examples(25, chunk_size=st.integers(200, 3000))
def test_any_decisions_in_bands_train_to_the_bits_of_keep(
    net: Windows, batches: list[Batch], seed: int, chunk_size: int
) -> None:
    rng = random.Random(seed)
    graph = graph_of(net, chunk_size, rng.choice((2, 4, 8)))
    schedule = drawn_schedule(graph, rng)
    check(schedule)
    kept = lower(graph, keep(graph), random_costs(rng))
    outcome = train(net, schedule, batches, order_seed=seed)
    assert outcome.equals(train(net, kept, batches))
