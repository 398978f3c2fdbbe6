"""Sums over processes that train together: their lane in schedules, checked and simulated."""

from dataclasses import replace
from functools import cache
from itertools import chain

import pytest
import torch
from torch import nn

from tvdnn import models
from tvdnn.engine.build import training_settings
from tvdnn.errors import ScheduleError
from tvdnn.graph import Graph
from tvdnn.ops import expand
from tvdnn.ops.builder import Ranks
from tvdnn.ops.loss import OutputLoss
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import RANKS, SUM_SLOWDOWN, Costs, Roofline, all_reduce_s, collective_s
from tvdnn.planner.ir.hardware import INTERCONNECTS, load
from tvdnn.planner.ir.schedule import Lane, Schedule, Step
from tvdnn.planner.make import Problem
from tvdnn.planner.recompute.barriers import barrier_stages
from tvdnn.planner.recompute.supplies import Supplies
from tvdnn.planner.timing.calibrate import calibrate, compare
from tvdnn.planner.timing.simulate import seconds_alone, simulate
from tvdnn.planner.verify.check import check
from tvdnn.runtime.profiler import signature
from tvdnn.trace.trace import trace

WORLD, BUCKET_NBYTES = 8, 4 << 20


@cache
def graph_of(world: int = WORLD, dtype: str = "float32", *, sharded: bool = False) -> Graph:
    """A step of VGG-16 on 4 images, of which others are on other processes."""
    net, x = models.by_name("vgg16"), torch.empty(4, 3, 224, 224, device="meta")
    settings = training_settings((OutputLoss(),), SGD(momentum=0.9), "bf16", None, None)
    ranks = Ranks(world, BUCKET_NBYTES, dtype, sharded=sharded) if world > 1 else None
    return expand(trace(net, (x,), ordered=True), replace(settings, ranks=ranks))


def costs_of(link: str) -> Costs:
    machine = load("H200")
    links = {**machine.links, RANKS: INTERCONNECTS[link]}
    return Roofline(replace(machine, links=links), "bf16")


@cache
def schedule_of(policy: str = "keep", link: str = "NVLink", world: int = WORLD) -> Schedule:
    return Problem(graph_of(world), costs_of(link)).schedule(policy)


def sums_of(schedule: Schedule) -> list[int]:
    return [n for n, step in enumerate(schedule.steps) if step.lane is Lane.REDUCE]


def test_a_ring_sends_most_of_the_bytes_twice() -> None:
    link = INTERCONNECTS["PCIe"]
    seconds = all_reduce_s({RANKS: link}, 8, 8 << 20)
    assert seconds == pytest.approx(14 * (link.latency_s + (1 << 20) / link.out))
    assert all_reduce_s({}, 8, 8 << 20) == 0.0
    halves = [each for each in graph_of(sharded=True).passes if each.role in ("scatter", "gather")]
    for half in halves:
        assert collective_s({RANKS: link}, half, 8 << 20) == pytest.approx(seconds / 2)
    assert {half.collective.value for half in halves} == {"reduce-scatter", "all-gather"}
    assert all_reduce_s({RANKS: link}, 1, 8 << 20) == 0.0


@pytest.mark.parametrize("policy", ["keep", "vdnn-all:m", "auto"])
def test_sums_run_beside_the_backward_passes(policy: str) -> None:
    costs = costs_of("NVLink")
    schedule, alone = schedule_of(policy), schedule_of(policy, world=1)
    check(schedule)
    timeline = simulate(schedule, costs)
    spans = [timeline.spans[n] for n in sums_of(schedule)]
    assert len(spans) > 5
    summed_s = sum(span.end_s - span.start_s for span in spans)
    ends = [span.end_s for span in timeline.spans if span.lane is Lane.COMPUTE]
    beside = sum(span.end_s - span.start_s for span in spans if span.end_s < ends[-1])
    assert beside > 0.5 * summed_s
    assert timeline.step_s > simulate(alone, costs).step_s


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards_take_less_memory_and_little_more_time(dtype: str) -> None:
    costs, graphs = (
        costs_of("NVLink"),
        [graph_of(WORLD, dtype, sharded=way) for way in (True, False)],
    )
    sharded, whole = (Problem(graph, costs).schedule("keep") for graph in graphs)
    check(sharded)
    states = graphs[1].fixed["optimizer state"]
    assert whole.peak_nbytes - sharded.peak_nbytes > 0.6 * states
    seconds = [simulate(each, costs).step_s for each in (sharded, whole)]
    assert seconds[0] < 1.2 * seconds[1]


def test_a_slower_link_is_exposed() -> None:
    schedule = schedule_of()
    steps_s = [simulate(schedule, costs_of(link)).step_s for link in INTERCONNECTS]
    assert list(INTERCONNECTS) == ["NVLink", "PCIe", "100GbE"]
    assert steps_s == sorted(steps_s)
    assert simulate(schedule, costs_of("100GbE")).stall_s == 0.0  # which is that of copies


def test_a_measured_step_corrects_the_link_between_processes() -> None:
    schedule, slow = schedule_of(), costs_of("PCIe")
    measured = simulate(schedule, slow)
    found = calibrate(schedule, costs_of("NVLink"), measured)
    assert simulate(schedule, found).step_s == pytest.approx(measured.step_s, rel=0.02)
    names = [drift.name for drift in compare(schedule, costs_of("NVLink"), measured).drifts]
    assert names[0] == "sums over processes"


def test_buckets_have_gradients_in_the_order_of_backward() -> None:
    """Each is made where its bucket is; a large one is a bucket by itself."""
    graph = graph_of()
    sums = [each for each in graph.passes if each.name.startswith("bucket") and each.ranks]
    params = [graph.ops[each.op].params for each in sums]
    trained = [name for name, param in graph.network.params.items() if param.requires_grad]
    assert sorted(chain(*params)) == sorted(trained)
    made = {
        graph.param_of_grad[use.buffer, use.channels]: n
        for n, each in enumerate(graph.passes)
        for use in each.writes
        if (use.buffer, use.channels) in graph.param_of_grad and not each.ranks
    }
    last = [max(made[name] for name in names) for names in params]
    assert last == sorted(last)
    assert sum(len(names) == 1 for names in params) > 5
    nbytes = [graph.buffers[each.writes[0].buffer].nbytes for each in sums]
    assert all(each >= BUCKET_NBYTES for each in nbytes[:-1])
    assert not any(each.role == "pack" for each in graph.passes if each.name.startswith("bucket"))


def test_gradients_in_another_type_are_packed() -> None:
    graph = graph_of(dtype="bfloat16")
    packs = [
        each for each in graph.passes if each.name.startswith("bucket") and each.role == "pack"
    ]
    assert sum(len(each.reads) for each in packs) == len(graph.network.params)
    assert not graph.grads_in_buckets


class Tied(nn.Module):
    """A layer that is used twice, between two that are used once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(torch.relu(self.twice(torch.relu(self.twice(self.first(x))))))
        return y


@pytest.mark.parametrize(("nbytes", "placed"), [(1, 0), (280, 4), (1 << 20, 0)])
def test_gradients_that_add_up_are_packed(nbytes: int, placed: int) -> None:
    """With all that shares their bucket; one in a bucket by itself has no range of another."""
    x = torch.empty(4, 8)
    settings = training_settings((OutputLoss(),), SGD(), "fp32", None, None)
    graph = expand(trace(Tied(), (x,), ordered=True), replace(settings, ranks=Ranks(WORLD, nbytes)))
    assert len(graph.grads_in_buckets) == placed
    assert not any(name.startswith("twice") for name in graph.grads_in_buckets)
    packed = [len(each.reads) for each in graph.passes if each.role == "pack"]
    assert packed == {1: [], 280: [2], 1 << 20: [6]}[nbytes]


def test_buckets_leave_recomputation_in_stages_as_it_is() -> None:
    found = []
    for ranks in (None, Ranks(WORLD)):
        graph = normalizing(ranks)
        ops = [op.name for op in graph.network.ops]
        groups = [ops[start : start + 10] for start in range(0, len(ops) - 9, 10)]
        stages = barrier_stages(Supplies(graph), costs_of("NVLink"), groups, 0)
        found.append([each.recompute.nbytes for each in stages])
    assert found[0]
    assert found[0] == found[1]


def test_launches_have_the_profiles_of_any_size_of_buckets() -> None:
    keys = [
        {signature(graph, each) for each in graph.passes if graph.ops[each.op].kind != "bucket"}
        for graph in (normalizing(Ranks(WORLD, nbytes)) for nbytes in (1 << 20, 25 << 20))
    ]
    assert keys[0] == keys[1]


@cache
def normalizing(ranks: Ranks | None) -> Graph:
    """A step of ResNet-50 on 64 images."""
    net, x = models.by_name("resnet50"), torch.empty(64, 3, 224, 224, device="meta")
    settings = training_settings((OutputLoss(),), SGD(momentum=0.9), "bf16", None, None)
    return expand(trace(net, (x,), ordered=True), replace(settings, ranks=ranks))


def changed(schedule: Schedule, number: int, step: Step) -> Schedule:
    return replace(schedule, steps=(*schedule.steps[:number], step, *schedule.steps[number + 1 :]))


def test_sums_in_another_order_are_refused() -> None:
    schedule = schedule_of()
    first, second, *_ = sums_of(schedule)[1:]
    one, other = schedule.steps[first], schedule.steps[second]
    swapped = changed(schedule, first, replace_pass(one, other))
    swapped = changed(swapped, second, replace_pass(other, one))
    with pytest.raises(ScheduleError, match="passes of processes together are in another order"):
        check(swapped)


def replace_pass(step: Step, other: Step) -> Step:
    """A step with what another one launches."""
    return step._replace(pass_index=other.pass_index, reads=other.reads, writes=other.writes)


def test_a_sum_on_the_lane_of_launches_is_refused() -> None:
    schedule = schedule_of()
    number = sums_of(schedule)[2]
    moved = changed(schedule, number, schedule.steps[number]._replace(lane=Lane.COMPUTE))
    with pytest.raises(ScheduleError, match="on the compute lane"):
        check(moved)


def test_a_sum_that_does_not_wait_for_its_gradients_is_refused() -> None:
    schedule = schedule_of()
    for number in sums_of(schedule):
        hasty = changed(schedule, number, schedule.steps[number]._replace(waits=()))
        with pytest.raises(ScheduleError):
            check(hasty)


def test_an_update_that_does_not_wait_for_its_sum_is_refused() -> None:
    schedule = schedule_of()
    hasty = replace(
        schedule,
        steps=tuple(
            step if step.lane is Lane.REDUCE else step._replace(waits=()) for step in schedule.steps
        ),
    )
    with pytest.raises(ScheduleError):
        check(hasty)


def test_launches_beside_sums_take_longer_also_once_measured() -> None:
    schedule, costs = schedule_of(), costs_of("PCIe")
    measured = simulate(schedule, costs)
    kinds = {
        name
        for name, factor in calibrate(schedule, costs, measured).factors.items()
        if factor != 1.0
    }
    assert not kinds
    sums = [span for span in measured.spans if span.lane is Lane.REDUCE]
    inside = [
        span
        for span in measured.spans
        if span.lane is Lane.COMPUTE
        and any(each.start_s <= span.start_s and span.end_s <= each.end_s for each in sums)
    ]
    assert len(inside) > 10
    for span in inside:
        alone_s = seconds_alone(schedule.graph, schedule.steps[span.step], costs)
        assert span.end_s - span.start_s == pytest.approx(SUM_SLOWDOWN * alone_s)
