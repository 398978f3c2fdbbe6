"""Codes that a kernel encodes straight to the host: plans, proofs, times, and auto's choice."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from tests.networks.sign_bits import residual
from tests.planner.test_coded_maps import dear
from tests.planner.test_lossy_schedules import drawn_net
from tests.support.drawn_chains import CLASSES, random_costs
from tests.support.faults.changes import rebuilt
from tests.support.lossy_plans import lossy_plans
from tests.support.lowered import lower
from tests.support.networks import random_chain
from tests.support.plans import random_plan
from tests.support.running import random_batches, train
from tests.support.simulated import h200
from tests.support.straight import convolutions, straight_plan, straight_steps
from tvdnn.engine import training_graph
from tvdnn.errors import ScheduleError
from tvdnn.graph import BITMAP, RAW, TF32, Graph, in_form
from tvdnn.kernels.conv.grad_weight import shape as grad_weight_shape
from tvdnn.planner.ir.budgets import Budgets
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.plan import FILE, HOST
from tvdnn.planner.ir.schedule import Action, Lane, Schedule, Space, Step
from tvdnn.planner.joint.lp import JointLP
from tvdnn.planner.joint.orders import orders
from tvdnn.planner.lowering.build_program import build_program
from tvdnn.planner.lowering.zero_copy import with_zero_copy
from tvdnn.planner.make import make_schedule
from tvdnn.planner.policies.auto import straight_if_faster
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.problem import GraphProblem
from tvdnn.planner.timing.simulate import simulate
from tvdnn.planner.verify.check import check
from tvdnn.report.maps import map_rows
from tvdnn.report.traces import Work, work_of

SHAPE = (6, 3, 8, 8)


@cache
def straight() -> Schedule:
    """A chain whose maps behind ReLUs all leave as TF32 codes, straight to the host."""
    _, graph = convolutions(dtype="tf32")
    return lower(graph, straight_plan(graph), h200(graph))


def test_a_section_leaves_the_arena_raw_and_comes_back_as_its_code() -> None:
    schedule = straight()
    check(schedule)
    found = straight_steps(schedule)
    assert len(found) == sum(bridge.count for bridge in schedule.plan.bridges) == 15
    for index in found:
        step = schedule.steps[index]
        (source,), (target,) = step.reads, step.writes
        assert (source.space, source.form) == (Space.ARENA, RAW)
        assert (target.space, target.form) == (Space.SLAB, TF32)
        back = [each for each in schedule.steps if each.reads == (target,)]
        assert [each.lane for each in back] == [Lane.PREFETCH]
        assert step.copied_nbytes == target.nbytes < source.nbytes
    buffers = schedule.graph.buffers
    coded = (in_form(buffers[each.buffer], TF32).nbytes for each in schedule.plan.bridges)
    assert schedule.offloaded_nbytes == sum(coded)


def test_reports_name_the_way() -> None:
    """In the table of maps, the lines of the plan, and the trace of a step."""
    schedule = straight()
    names = {bridge.buffer for bridge in schedule.plan.bridges}
    rows = {row.name: row for row in map_rows(schedule)}
    assert {rows[name].decision for name in names} == {"tf32 + zero-copy offload"}
    assert {rows[name].sections_coded for name in names} == {3}
    assert str(schedule.plan).count("as tf32, encoded straight to the host") == len(names)
    index = straight_steps(schedule)[0]
    assert schedule.step_name(index) == "recode 0 [0, 2) from raw to tf32 on the host"
    assert work_of(schedule.graph, schedule.steps[index]) is Work.OFFLOAD


def test_no_code_lies_in_the_arena_on_its_way_out() -> None:
    """Launches encode none, and each residency of a code begins with its prefetch."""
    schedule = straight()
    steps = schedule.steps
    codes = [each for each in schedule.residencies if each.form != RAW]
    assert {steps[each.steps[0]].lane for each in codes} == {Lane.PREFETCH}
    recodes = [s for s in steps if s.action is Action.RECODE and s.lane is Lane.COMPUTE]
    assert {each.writes[0].form for each in recodes} == {RAW}


@pytest.mark.parametrize("seed", range(6))
def test_steps_in_any_order_have_the_bits_of_keep(seed: int) -> None:
    net, graph = convolutions(dtype="tf32")
    batches = random_batches(2, SHAPE, CLASSES, seed)
    kept = lower(graph, keep(graph), h200(graph))
    assert train(net, straight(), batches, order_seed=seed).equals(train(net, kept, batches))


def test_random_plans_encode_straight_in_every_form_of_a_fixed_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as tests/planner/test_schedules.py and test_lossy_schedules.py run."""
    monkeypatch.setattr(grad_weight_shape, "FEW_SAMPLES", 0)  # units as of many samples
    found = Counter[str]()

    def count(graph: Graph, schedule: Schedule) -> None:
        check(schedule)
        steps = (schedule.steps[index] for index in straight_steps(schedule))
        found.update(step.writes[0].form.codec for step in steps)

    for seed in range(25):
        rng = random.Random(seed)
        chain, x = random_chain(rng, 3, 8, CLASSES), torch.empty(5, 3, 8, 8)
        graph = training_graph(chain, x, chunk_size=3000, dtype="tf32", fuse=seed % 3 > 0)
        count(graph, lower(graph, random_plan(graph, rng), random_costs(rng)))
        net = drawn_net(rng, 3, 8, seed)
        graph = training_graph(net, x, chunk_size=3000, dtype="fp32", fuse=seed % 2 == 0)
        count(graph, lower(graph, lossy_plans(graph, rng)[0], random_costs(rng)))
    rng = random.Random(6)
    graph = training_graph(residual(), torch.empty(4, 3, 4, 4), dtype="bf16", sections=2, fuse=True)
    count(graph, lower(graph, random_plan(graph, rng), random_costs(rng)))
    assert found.keys() == {"tf32", "bits", "fp16", "fp10", "fp8"}


@pytest.mark.parametrize("change", [{"form": BITMAP}, {"form": RAW}, {"tier": FILE}])
def test_codes_without_a_fixed_size_and_other_tiers_are_refused(change: dict[str, object]) -> None:
    _, graph = convolutions(dtype="tf32")
    plan = straight_plan(graph)
    first, *others = plan.bridges
    with pytest.raises(ScheduleError, match="zero_copy"):
        build_program(graph, replace(plan, bridges=(replace(first, **change), *others)))


def test_a_section_that_is_used_raw_behind_its_bridge_s_start_is_refused() -> None:
    """One that leaves before its last use in forward, and one whose code none decodes."""
    _, graph = convolutions(dtype="tf32")
    plan = straight_plan(graph)
    early = tuple(replace(each, after=each.after - 1) for each in plan.bridges)
    with pytest.raises(ScheduleError, match="still uses it"):
        build_program(graph, replace(plan, bridges=early))


Change = Callable[[Step], Step]


def _with(index: int, change: Change) -> Schedule:
    steps = list(straight().steps)
    steps[index] = change(steps[index])
    return rebuilt(straight(), steps)


def _target(**changes: object) -> Change:
    return lambda step: step._replace(writes=(step.writes[0]._replace(**changes),))


def _source(**changes: object) -> Change:
    return lambda step: step._replace(reads=(step.reads[0]._replace(**changes),))


FAULTS: dict[str, tuple[Change, str]] = {
    "to the arena": (_target(space=Space.ARENA), "from arena to arena on the offload"),
    "from the slab": (_source(space=Space.SLAB, offset=0), "from slab to slab on the offload"),
    "to raw bytes": (
        lambda step: step._replace(writes=(step.reads[0]._replace(space=Space.SLAB, offset=0),)),
        "from raw to raw",
    ),
    "from a code": (
        lambda step: step._replace(
            reads=(step.writes[0]._replace(space=Space.ARENA, offset=0),),
            writes=(step.reads[0]._replace(space=Space.SLAB, offset=0),),
        ),
        "from tf32 to raw on the offload lane",
    ),
    "to a packed code": (_target(form=BITMAP, nbytes=10**4), "raw to bitmap on the offload lane"),
    "on the compute lane": (lambda step: step._replace(lane=Lane.COMPUTE), "from arena to slab"),
    "on the prefetch lane": (lambda step: step._replace(lane=Lane.PREFETCH), "on the prefetch"),
    "on the peer's lane": (lambda step: step._replace(lane=Lane.PEER_OFFLOAD), "peer offload lane"),
    "as a copy": (lambda step: step._replace(action=Action.COPY), "from raw to tf32"),
    "with a count": (lambda step: step._replace(count_word=0), "counts in word 0"),
    "of too few bytes": (_target(nbytes=18), "bytes for"),
    "outside the slab": (_target(offset=10**7), "outside the slab"),
    "not aligned": (_target(offset=1), "not aligned"),
    "of other rows": (_target(start=2, stop=4), "to 0"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_checker_refuses_the_fault(name: str) -> None:
    change, message = FAULTS[name]
    with pytest.raises(ScheduleError, match=message):
        check(_with(straight_steps(straight())[0], change))


def _moved(first: int, second: int) -> Schedule:
    """The schedule with the step at `first` behind the one at `second`, and no waits lost."""
    steps = list(straight().steps)
    order = [n for n in range(len(steps)) if n != first]
    order.insert(second, first)
    place = {old: new for new, old in enumerate(order)}
    moved = [steps[old] for old in order]
    waits = [tuple(sorted(place[w] for w in s.waits if place[w] < n)) for n, s in enumerate(moved)]
    return rebuilt(straight(), [s._replace(waits=w) for s, w in zip(moved, waits, strict=True)])


def test_checker_refuses_a_code_that_is_read_before_it_is_written() -> None:
    """The prefetch of a code comes before its encoding, or does not wait for it."""
    schedule = straight()
    refused = 0
    for index in straight_steps(schedule):
        target = schedule.steps[index].writes[0]
        back = next(n for n, s in enumerate(schedule.steps) if s.reads == (target,))
        with pytest.raises(ScheduleError):
            check(_moved(index, back))
        if index in schedule.steps[back].waits:
            refused += 1
            with pytest.raises(ScheduleError, match="without waiting"):
                check(_with(back, lambda step: step._replace(waits=())))
    assert refused


def test_checker_refuses_bytes_that_are_written_before_they_are_encoded() -> None:
    """A step that reuses the raw section's bytes does not wait for the encoding."""
    schedule, found = straight(), 0
    straights = set(straight_steps(schedule))
    for index, step in enumerate(schedule.steps):
        for wait in straights.intersection(step.waits):
            others = tuple(each for each in step.waits if each != wait)
            mutant = _with(index, lambda step, others=others: step._replace(waits=others))
            with pytest.raises(ScheduleError, match="without waiting"):
                check(mutant)
            found += 1
    assert found


def test_checker_refuses_an_encoding_that_does_not_wait_for_its_values() -> None:
    schedule = straight()
    waiting = [index for index in straight_steps(schedule) if schedule.steps[index].waits]
    assert waiting
    for index in waiting:
        with pytest.raises(ScheduleError, match="without waiting"):
            check(_with(index, lambda step: step._replace(waits=())))


def linked(costs: Roofline, share: float, slowdown: float) -> Roofline:
    """The costs with other kernels that encode straight to the host."""
    link = replace(costs.profile.links[HOST], zero_copy_share=share, zero_copy_slowdown=slowdown)
    return replace(costs, profile=replace(costs.profile, links={HOST: link}))


def test_an_encoding_takes_its_share_of_the_link_and_lengthens_launches() -> None:
    schedule, costs = straight(), h200(straight().graph)
    share, slowdown = 0.25, 2.0
    timeline = simulate(schedule, linked(costs, share, slowdown))
    link, spans = costs.links[HOST], timeline.spans
    alone = simulate(schedule, linked(costs, share, 1.0)).spans
    slowed = 0
    prefetching = [span for span in spans if span.lane is Lane.PREFETCH]
    for index in straight_steps(schedule):
        span = spans[index]
        overlapped = any(o.start_s < span.end_s and span.start_s < o.end_s for o in prefetching)
        if not overlapped:
            expected = link.latency_s + schedule.steps[index].copied_nbytes / (share * link.out)
            assert span.end_s - span.start_s == pytest.approx(expected)
    busy = [spans[index] for index in straight_steps(schedule)]
    for span, same in zip(spans, alone, strict=True):
        if span.lane is Lane.COMPUTE:
            held = sum(
                max(0.0, min(span.end_s, b.end_s) - max(span.start_s, b.start_s)) for b in busy
            )
            took, takes = span.end_s - span.start_s, same.end_s - same.start_s
            assert took - held * (1 - 1 / slowdown) == pytest.approx(takes)
            slowed += held > 0
    assert slowed


def quick(graph: Graph) -> Roofline:
    """The slow machine whose kernels encode to the host at the link's rate, at no cost."""
    return linked(dear(graph), 1.0, 1.0)


@pytest.fixture(scope="module")
def chain() -> tuple[nn.Module, Graph]:
    return convolutions(dtype="tf32", batch=8, side=12, depth=10, sections=4)


def test_a_plan_of_auto_goes_straight_to_the_host_where_that_costs_less(
    chain: tuple[nn.Module, Graph],
) -> None:
    """A plan with codes by engines is slower, and is taken where kernels cost more."""
    net, graph = chain
    plan = straight_plan(graph, zero_copy=False)
    budget = round(1.3 * lower(graph, plan, dear(graph)).peak_nbytes)
    for costs, is_taken in ((quick(graph), True), (dear(graph), False)):
        problem = GraphProblem(graph, costs, Budgets.of(graph, budget, None))
        engines = problem.lowered(plan)
        assert engines is not None
        engines_s = simulate(engines, costs).step_s
        other = straight_if_faster(problem, engines, engines_s)
        assert (other is not None) is is_taken
        if other is None:
            continue
        check(other)
        assert straight_steps(other)
        assert simulate(other, costs).step_s < engines_s
        batches = random_batches(2, (8, 3, 12, 12), CLASSES, 1)
        kept = make_schedule(graph, costs, policy="keep")
        assert train(net, other, batches, order_seed=3).equals(train(net, kept, batches))


def test_a_program_prices_codes_that_leave_by_the_cheaper_way(
    chain: tuple[nn.Module, Graph],
) -> None:
    """Its optimum is lower where kernels that encode to the host cost nothing."""
    _, graph = chain
    least = []
    for costs, saves in ((dear(graph), False), (quick(graph), True)):
        order = next(each for each in orders(graph, costs) if each.columns.coded)
        codes = [each for each in order.columns.away if each.coded is not None]
        assert {each.saved_s > 0 for each in codes} == {saves}
        solution = JointLP(order.columns, round(0.6 * order.skeleton.required.max())).solve()
        assert solution is not None
        least.append(solution.step_s)
    assert least[1] < least[0]


def test_a_map_whose_code_is_read_before_it_is_decoded_stays_with_the_engine() -> None:
    _, graph = convolutions(dtype="tf32")
    plan = straight_plan(graph, zero_copy=False)
    costs = quick(graph)
    found = with_zero_copy(graph, plan, costs)
    assert found is not None
    assert all(each.zero_copy for each in found.bridges)
    assert with_zero_copy(graph, found, costs) is None
    assert with_zero_copy(graph, plan, dear(graph)) is None
    early = tuple(replace(each, after=each.after - 1) for each in plan.bridges)
    assert with_zero_copy(graph, replace(plan, bridges=early), costs) is None
