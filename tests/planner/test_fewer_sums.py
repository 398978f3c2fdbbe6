"""Fewer sums of weight gradients: the same bits, checked, and chosen where bytes are short."""

import random
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import nn

from tests.support.drawn_chains import CLASSES, Drawn, random_costs
from tests.support.lowered import lower
from tests.support.plans import random_plan
from tests.support.simulated import h200
from tvdnn.engine import training_graph
from tvdnn.errors import ScheduleError
from tvdnn.graph import Buffer, Graph
from tvdnn.kernels.conv.grad_weight.launch import GradWeightPlan
from tvdnn.ops import conv
from tvdnn.optim import SGD
from tvdnn.planner.ir.plan import Plan, Slot
from tvdnn.planner.ir.schedule import Operand, Schedule
from tvdnn.planner.lowering.build_program import build_program
from tvdnn.planner.lowering.launch_lengths import with_longest_launches
from tvdnn.planner.lowering.list_scheduler import required_nbytes
from tvdnn.planner.lowering.segments import Variant, segments
from tvdnn.planner.make import Problem, make_schedule
from tvdnn.planner.timing.simulate import seconds_alone
from tvdnn.planner.verify.check import check
from tvdnn.units import KIB

SPLITS = 7
FAULTS = {
    "read too few": "uses 2 rows of sums for 3",
    "left too few": "leaves 1 rows of sums, which are at least 2",
    "left in a part": "leaves 3 rows of sums, not all 7",
}


@pytest.fixture(scope="module", params=[1, 2])
def step(request: pytest.FixtureRequest) -> Iterator[int]:
    """Weight gradients have several splits, in ranges of a multiple of so many."""
    step: int = request.param
    plan = GradWeightPlan(splits=SPLITS - SPLITS % step, unit=1, step=step)
    with patch.object(conv, "grad_weight_plan", lambda *_, **__: plan):
        yield step


def graph_of(batch: int = 4) -> Graph:
    """Small maps, whose weight gradients take more bytes."""
    net = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 9, CLASSES)),
    )
    options = {"optimizer": SGD(momentum=0.9), "chunk_size": KIB, "fuse": False}
    return training_graph(net, torch.empty(batch, 3, 6, 6), **options)


def in_sums(graph: Graph, rows: int) -> Plan:
    """The plan in whole batches with so many rows of each weight gradient's sums."""

    def with_sums(slot: Slot) -> Slot:
        return replace(slot, sums=rows) if graph.passes[slot.pass_index].least_sums else slot

    whole = segments(graph, {}, Variant.KEEP)
    parts = (replace(each, slots=tuple(map(with_sums, each.slots))) for each in whole)
    return Plan("fewer", tuple(parts))


def weight_sums(graph: Graph) -> list[Buffer]:
    """The buffers of weight gradients' sums."""
    return [graph.buffers[each.writes[0].buffer] for each in graph.passes if each.least_sums]


def needed_nbytes(graph: Graph, plan: Plan, segment: int) -> int:
    """The most bytes that a launch of the segment needs."""
    program = build_program(graph, plan)
    pairs = zip(program.launches, required_nbytes(program).tolist(), strict=True)
    return max(nbytes for launch, nbytes in pairs if launch.segment == segment)


def sums_of(schedule: Schedule) -> list[int]:
    return [slot.sums for slot in schedule.plan.slots if slot.sums]


@pytest.mark.parametrize("seed", range(12))
def test_any_plan_of_fewer_sums_equals_keep(seed: int, step: int) -> None:
    """In any order and any mix with copies, recompute and codes."""
    rng = random.Random(seed)
    shape, forks = (rng.randint(2, 6), 3, 8, 8), seed % 3 == 0
    drawn = Drawn.chain(rng, seed, shape, forks=forks, chunk_size=rng.randint(800, 9000))
    costs = random_costs(rng)
    schedule = lower(drawn.graph, random_plan(drawn.graph, rng), costs)
    check(schedule)
    drawn.assert_bits(schedule, drawn.kept(costs))


def test_drawn_plans_have_fewer_sums(step: int) -> None:
    graph, drawn = graph_of(), set[int]()
    for seed in range(30):
        drawn |= {slot.sums for slot in random_plan(graph, random.Random(seed)).slots}
    assert drawn - {0} == set(range(step + 1, SPLITS - SPLITS % step, step))


def test_fewer_sums_take_fewer_bytes_and_more_time(step: int) -> None:
    graph = graph_of()
    costs, rows = h200(graph), step + 1
    fewer, whole = (lower(graph, in_sums(graph, each), costs) for each in (rows, 0))
    sums = weight_sums(graph)[0]
    for schedule, expected in ((fewer, rows), (whole, sums.rows)):
        sizes = {each.nbytes for each in schedule.residencies if each.buffer == sums.name}
        assert sizes == {expected * sums.row_nbytes}
        check(schedule)
    seconds = [
        [
            seconds_alone(graph, each, costs)
            for each in schedule.steps
            if each.pass_index >= 0 and graph.passes[each.pass_index].least_sums
        ]
        for schedule in (fewer, whole)
    ]
    ranges = -(-sums.rows // step)
    assert seconds[0] == pytest.approx([ranges * each for each in seconds[1]])


def test_superneurons_has_as_many_sums_as_fit(step: int) -> None:
    """Below the bytes of launches of a sample, down to a floor of the least sums."""
    graph = graph_of()
    problem, costs = Problem(graph, h200(graph)), h200(graph)
    rungs = {each.means: each.nbytes for each in problem.ladder("superneurons")}
    floor = problem.floor("superneurons")[0]
    assert floor == rungs["+ fewest sums"] < rungs["+ shortest launches"]
    budgets = [floor + round(part / 10 * (rungs["none"] - floor)) for part in range(11)]
    found = [make_schedule(graph, costs, policy="superneurons", budget=each) for each in budgets]
    for schedule, budget in zip(found, budgets, strict=True):
        check(schedule)
        assert schedule.peak_nbytes <= budget
    most = [max(sums_of(schedule), default=SPLITS) for schedule in found]
    assert most[0] == step + 1
    assert most[-1] == SPLITS
    assert any(step + 1 < sums < SPLITS for sums in most)
    text = str(found[0].plan).splitlines()[0]
    assert f"{len(sums_of(found[0]))} weight gradients have fewer sums" in text


def test_the_most_sums_fit_to_the_row(step: int) -> None:
    """Each row more of free bytes gives a range a split more, or `step` of them."""
    graph = graph_of()
    least = in_sums(graph, step + 1)
    row, large = max((each.row_nbytes, each.name) for each in weight_sums(graph))
    (layer,) = (
        number
        for number, each in enumerate(least.segments)
        for slot in each.slots
        if large in graph.passes[slot.pass_index].written_buffers
    )
    needed = needed_nbytes(graph, least, layer)
    whole = Plan("whole", segments(graph, {}, Variant.KEEP))
    for more in (0, row * step - 1, row * step):
        plan = with_longest_launches(graph, whole, needed + more)
        sums = max(slot.sums for slot in plan.segments[layer].slots)
        assert sums == step + 1 + more // (row * step) * step
        assert needed_nbytes(graph, plan, layer) <= needed + more


def test_the_plan_must_leave_sums_that_a_launch_can(step: int) -> None:
    graph = graph_of()
    for rows in (step, SPLITS + 1):
        with pytest.raises(ScheduleError, match="it needs whole batches"):
            build_program(graph, in_sums(graph, rows))
    halves = (replace(each, block=2) for each in in_sums(graph, step + 1).segments)
    with pytest.raises(ScheduleError, match=r"\[0, 2\) leave"):
        build_program(graph, Plan("halves", tuple(halves)))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_checker_refuses_other_rows(fault: str) -> None:
    plan = GradWeightPlan(splits=SPLITS, unit=1)
    with patch.object(conv, "grad_weight_plan", lambda *_, **__: plan):
        graph = graph_of()
    schedule = lower(graph, in_sums(graph, 3), h200(graph))
    name = weight_sums(graph)[0].name
    index = next(i for i, each in enumerate(graph.passes) if name in each.written_buffers)
    writer = next(i for i, each in enumerate(schedule.steps) if each.pass_index == index)
    reader = next(
        i for i, each in enumerate(schedule.steps) if name in {read.buffer for read in each.reads}
    )
    steps = list(schedule.steps)
    if fault == "read too few":
        reads = tuple(cut(each, name, 2) for each in steps[reader].reads)
        steps[reader] = steps[reader]._replace(reads=reads)
    elif fault == "left too few":
        steps[writer] = steps[writer]._replace(writes=(cut(steps[writer].writes[0], name, 1),))
    else:
        steps[writer] = steps[writer]._replace(stop=2)
        reads = tuple(
            each._replace(stop=each.stop // 2, nbytes=each.nbytes // 2)
            for each in steps[writer].reads
        )
        steps[writer] = steps[writer]._replace(reads=reads)
    with pytest.raises(ScheduleError, match=FAULTS[fault]):
        check(replace(schedule, steps=tuple(steps)))


def cut(operand: Operand, name: str, rows: int) -> Operand:
    """The operand with so many rows, if it is of the buffer."""
    if operand.buffer != name:
        return operand
    return operand._replace(stop=rows, nbytes=operand.nbytes // operand.stop * rows)
