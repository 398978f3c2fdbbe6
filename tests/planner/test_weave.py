"""Weaving: decisions of what is made again become segments; any of them train to keep's bits."""

import random
from collections.abc import Iterator, Mapping

import pytest
import torch
from hypothesis import strategies as st

from tests.support.drawn_chains import Drawn, random_costs
from tests.support.examples import CHAIN, examples
from tests.support.lowered import lower
from tests.support.networks import pooled
from tests.support.simulated import h200
from tvdnn import models
from tvdnn.engine import training_graph
from tvdnn.graph import Direction, Graph
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.planner.ir.plan import Plan, Segment
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.lowering.build_program import build_program
from tvdnn.planner.lowering.list_scheduler import required_nbytes
from tvdnn.planner.lowering.segments import Variant, pass_groups, segments
from tvdnn.planner.recompute.joined_passes import JoinedPasses, goes_by_sample
from tvdnn.planner.recompute.supplies import Supplies
from tvdnn.planner.recompute.weave import Decision, Making, PassRun, weave
from tvdnn.planner.verify.check import check
from tvdnn.units import KIB

Made = Mapping[tuple[str, int], Decision]
MOST_PASSES = 6  # of a run


def layers(graph: Graph, block: Variant, *, joins: bool = True) -> list[PassRun]:
    """A run for each layer."""
    return [PassRun(tuple(group), block, joins) for group in pass_groups(graph)]


def of_backward(graph: Graph, supplies: Supplies, making: Making) -> Made:
    """All maps that backward reads are made again for it."""
    forward = {i for i, pass_ in enumerate(graph.passes) if pass_.direction is Direction.FORWARD}
    found = {}
    for index, pass_ in enumerate(graph.passes):
        for name in pass_.read_buffers if index not in forward else ():
            supply = supplies.of(name, index)
            if supply is not None and supply.passes and forward.issuperset(supply.passes):
                found[name, index] = making
    return found


def named(graph: Graph, parts: tuple[Segment, ...]) -> list[list[str]]:
    """The passes of each segment, with marks on those that run again."""
    names = [pass_.name for pass_ in graph.passes]
    return [[names[s.pass_index] + " again" * s.recompute for s in each.slots] for each in parts]


@pytest.fixture(scope="module")
def small() -> Graph:
    network = pooled((8, 8, 8, 4), 8)
    return expand(network, Settings("fp32", 2 * KIB, optimizer=SGD(), fuse=False))


@pytest.mark.parametrize("variant", Variant)
def test_without_decisions_layers_are_as_they_are(small: Graph, variant: Variant) -> None:
    woven = weave(small, Supplies(small), layers(small, variant), {}, variant)
    assert tuple(woven) == segments(small, {}, variant)


def readers_of(graph: Graph, name: str) -> list[int]:
    """The backward passes that read a buffer."""
    return [
        index
        for index, pass_ in enumerate(graph.passes)
        if name in pass_.read_buffers and pass_.direction is Direction.BACKWARD
    ]


def woven(graph: Graph, made: Made, *, joins: bool = True) -> list[list[str]]:
    runs = layers(graph, Variant.MEMORY, joins=joins)
    return named(graph, tuple(weave(graph, Supplies(graph), runs, made, Variant.MEMORY)))


def again_in(parts: list[list[str]]) -> list[list[str]]:
    return [each for each in parts if any(name.endswith("again") for name in each)]


def test_a_map_made_once_stays_for_later_readers(small: Graph) -> None:
    made = dict.fromkeys(
        (("conv2d0", index) for index in readers_of(small, "conv2d0")), Making.ONCE
    )
    makers = [["conv2d0 pack again"], ["conv2d0 forward again", "relu1 forward again"]]
    assert again_in(woven(small, made)) == makers


def test_a_map_made_afresh_is_made_for_each_reader_and_joins_blocks(small: Graph) -> None:
    readers = readers_of(small, "conv2d0")
    made = dict.fromkeys((("conv2d0", index) for index in readers), Making.AFRESH)
    makers = ["conv2d0 forward again", "relu1 forward again"]
    ahead = [["conv2d0 pack again"], makers]
    joined = ["conv2d2 grad_input", *makers, "relu1 grad_input"]
    assert again_in(woven(small, made)) == [*ahead, ["conv2d0 pack again"], joined]
    # Alone they go ahead of the run, which nothing that they read or write stands against.
    assert again_in(woven(small, made, joins=False)) == [*ahead, *ahead]


def test_makers_head_each_block_on_demand(small: Graph) -> None:
    """Unless they need what the passes before their reader have made."""
    names = [pass_.name for pass_ in small.passes]
    made = {("conv2d0", names.index("relu1 grad_input")): Making.AFRESH}
    runs = [run._replace(makers_first=True) for run in layers(small, Variant.MEMORY)]
    parts = tuple(weave(small, Supplies(small), runs, made, Variant.MEMORY))
    makers = ["conv2d0 forward again", "relu1 forward again"]
    joined = [*makers, "conv2d2 grad_input", "relu1 grad_input"]
    assert again_in(named(small, parts)) == [["conv2d0 pack again"], joined]
    made = {("grad relu3", names.index("relu3 grad_input")): Making.AFRESH}
    parts = tuple(weave(small, Supplies(small), runs, made, Variant.MEMORY))
    joined = ["max_pool2d4 grad_input", "max_pool2d4 grad_input again", "relu3 grad_input"]
    assert again_in(named(small, parts)) == [joined]


def test_a_use_that_keeps_the_map_ends_what_was_made_before(small: Graph) -> None:
    first, last = readers_of(small, "conv2d2")
    made = {("conv2d2", first): Making.ONCE}
    assert len(again_in(woven(small, made))) == 2
    made = {("conv2d2", last): Making.ONCE}
    assert len(again_in(woven(small, made))) == 2


def test_a_map_made_from_a_pass_on_stays_only_from_there(small: Graph) -> None:
    readers = readers_of(small, "conv2d0")
    made = dict.fromkeys((("conv2d0", index) for index in readers), Making.AFRESH)
    for since, times in ((readers[0], 1), (readers[-1], 2)):
        later = {("conv2d0", readers[-1]): since}
        assert len(again_in(woven(small, made | later, joins=False))) == 2 * times


def test_a_read_that_finds_a_code_makes_nothing_again(small: Graph) -> None:
    first, last = readers_of(small, "conv2d2")
    made = {("conv2d2", first): Making.CODED, ("conv2d2", last): Making.ONCE}
    assert len(again_in(woven(small, made))) == 2
    assert not again_in(woven(small, dict.fromkeys(made, Making.CODED)))


def test_a_run_is_cut_where_makers_need_what_it_has_made(small: Graph) -> None:
    """The second maker of the gradient cannot go ahead of the first pass of the run."""
    names = [pass_.name for pass_ in small.passes]
    reader = names.index("relu3 grad_input")
    made = {("grad relu3", reader): Making.AFRESH}
    parts = woven(small, made, joins=False)
    assert [*again_in(parts)] == [["max_pool2d4 grad_input again"]]
    place = parts.index(["max_pool2d4 grad_input again"])
    assert parts[place - 1] == ["max_pool2d4 grad_input"]
    assert parts[place + 1] == ["relu3 grad_input"]
    joined = ["max_pool2d4 grad_input", "max_pool2d4 grad_input again", "relu3 grad_input"]
    assert again_in(woven(small, made)) == [joined]


def test_maps_between_passes_of_forward_are_made_again_there(small: Graph) -> None:
    """As barrier stages do it: the second run makes anew what the first one made by block."""
    names = [pass_.name for pass_ in small.passes]
    runs = layers(small, Variant.MEMORY)
    reader = names.index("conv2d2 forward")
    made = {("conv2d0", reader): Making.AFRESH}
    parts = tuple(weave(small, Supplies(small), runs, made, Variant.MEMORY))
    makers = ["conv2d0 forward again", "relu1 forward again"]
    assert again_in(named(small, parts)) == [[*makers, "conv2d2 forward", "relu3 forward"]]
    check(lower(small, Plan("woven", parts), h200(small)))


def peak_nbytes(graph: Graph, parts: tuple[Segment, ...]) -> int:
    return int(required_nbytes(build_program(graph, Plan("woven", parts))).max())


@pytest.mark.parametrize(
    ("net", "batch", "image", "most"), [("resnet50", 32, 224, 0.25), ("unet", 2, 256, 0.5)]
)
def test_all_maps_made_afresh_take_a_share_of_the_memory(
    net: str, batch: int, image: int, most: float
) -> None:
    """Each reader of backward has all that it needs made just before it, down to the input."""
    with torch.device("meta"):
        module, x = models.by_name(net), torch.empty(batch, 3, image, image)
    graph = training_graph(module, x, optimizer=SGD(momentum=0.9), dtype="bf16", fuse=True)
    supplies = Supplies(graph)
    made = of_backward(graph, supplies, Making.AFRESH)
    runs = layers(graph, Variant.PERFORMANCE)
    parts = tuple(weave(graph, supplies, runs, made, Variant.PERFORMANCE))
    kept = segments(graph, {}, Variant.PERFORMANCE)
    assert peak_nbytes(graph, parts) < most * peak_nbytes(graph, kept)
    check(lower(graph, Plan("woven", parts), h200(graph)))


def drawn_runs(graph: Graph, rng: random.Random) -> Iterator[PassRun]:
    """Layers, some of them joined with those before, in blocks of any size."""
    members: list[int] = []
    joined = JoinedPasses()
    for group in pass_groups(graph):
        passes = [graph.passes[index] for index in group]
        before = [graph.passes[index] for index in members]
        alike = {(each.domain, each.direction) for each in (*passes, *before)}
        joins = len(alike) == 1 and all(goes_by_sample(each) for each in (*passes, *before))
        joins = joins and len(members) < MOST_PASSES and group[0] != graph.phase_split
        if members and not (joins and all(map(joined.admits, passes)) and rng.random() < 0.6):
            yield drawn_run(members, rng)
            members, joined = [], JoinedPasses()
        members += group
        for index in group:
            joined.add(graph.passes[index])
    yield drawn_run(members, rng)


def drawn_run(members: list[int], rng: random.Random) -> PassRun:
    block = rng.choice((*Variant, rng.randint(1, 8)))
    return PassRun(tuple(members), block, rng.random() < 0.7, rng.random() < 0.5)


def drawn_schedule(graph: Graph, rng: random.Random) -> Schedule:
    """A schedule of decisions drawn for all reads, those of forward and of gradients included."""
    supplies, share = Supplies(graph), rng.choice((0.1, 0.4, 0.9))
    reads = ((name, i) for i, each in enumerate(graph.passes) for name in sorted(each.read_buffers))
    made = {
        read: rng.choice((Making.ONCE, Making.AFRESH))
        for read in reads
        if supplies.of(*read) is not None and rng.random() < share
    }
    parts = weave(graph, supplies, drawn_runs(graph, rng), made, rng.choice(tuple(Variant)))
    return lower(graph, Plan("woven", tuple(parts)), random_costs(rng))


@pytest.mark.usefixtures("units_of_one", "few_trials")
@examples(60, **CHAIN, forks=st.booleans(), fuse=st.booleans())
def test_any_decisions_train_to_the_bits_of_keep(
    seed: int, batch: int, image: int, channels: int, chunk_size: int, forks: bool, fuse: bool
) -> None:
    rng = random.Random(seed)
    shape, how = (batch, channels, image, image), {"chunk_size": chunk_size, "fuse": fuse}
    drawn = Drawn.chain(rng, seed, shape, forks=forks, **how)
    schedule = drawn_schedule(drawn.graph, rng)
    check(schedule)
    drawn.assert_bits(schedule, drawn.kept(random_costs(rng)))
