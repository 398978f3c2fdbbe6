"""The policies: which maps they move, when, and their floors."""

from collections.abc import Callable
from functools import cache, partial
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.networks import pooled, vgg
from tests.support.simulated import h200, planned, problem_of
from tvdnn.errors import BudgetError, HostMemoryError, InputError
from tvdnn.graph import Direction, Graph, Kind
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.placement import aligned
from tvdnn.placement.cuda_blocks import block_nbytes
from tvdnn.planner.ir.schedule import Action, Lane, Schedule
from tvdnn.planner.policies import POLICIES
from tvdnn.planner.timing.simulate import simulate
from tvdnn.units import KIB, MIB

Planner = Callable[..., Schedule]

AHEAD = 110  # percent of its floor, in which copies come ahead of their uses
MEMORY = 220_000_000  # bytes, three quarters of what keep takes of `vgg16`


def training(
    network_batch: int, dtype: str = "fp32", chunk_size: int = 16 * MIB, **vgg_options: object
) -> Graph:
    options = Settings(dtype, chunk_size, optimizer=SGD(momentum=0.9))
    return expand(vgg(network_batch, **vgg_options), options)


@pytest.fixture(scope="module")
def vgg16() -> Graph:
    """VGG-16(64) in bfloat16, for images of 64 x 64 pixels and with a small classifier."""
    return training(64, "bf16", chunk_size=2 * MIB, image=64, classifier=64)


@pytest.fixture(scope="module")
def vgg16_plan(vgg16: Graph) -> Planner:
    """Makes schedules of `vgg16`, each once, by policy and limits."""
    return cache(partial(planned, vgg16))


@pytest.fixture(scope="module")
def small() -> Graph:
    """A VGG for 32 x 32 with batch 8, in sections of one or two samples."""
    return training(8, chunk_size=64 * KIB, depths=(1, 1, 1, 1, 1), image=32, classifier=64)


@pytest.fixture(scope="module")
def coarse() -> Graph:
    """The same network in sections four times as large: its first maps have several."""
    return training(8, chunk_size=256 * KIB, depths=(1, 1, 1, 1, 1), image=32, classifier=64)


def moved(schedule: Schedule) -> set[str]:
    return {transfer.buffer for transfer in schedule.plan.transfers}


def copied(schedule: Schedule, lane: Lane) -> int:
    return sum(step.copied_nbytes for step in schedule.steps if step.lane is lane)


def inputs_of(graph: Graph, kind: str) -> set[str]:
    """The buffers that ops of `kind` read in their forward pass."""
    ops = {op.name for op in graph.network.ops if op.kind == kind}
    return {p.reads[0].buffer for p in graph.passes if p.op in ops and p.role == "forward"}


@pytest.mark.parametrize("policy", ["vdnn-all", "vdnn-all:m", "vdnn-all:p:sync"])
def test_vdnn_all_moves_the_inputs_of_convolutions_and_poolings_once(
    vgg16: Graph, vgg16_plan: Planner, policy: str
) -> None:
    schedule = vgg16_plan(policy, MEMORY)
    expected = inputs_of(vgg16, "conv2d") | inputs_of(vgg16, "max_pool2d")
    assert len(expected) == 13 + 5
    assert moved(schedule) == expected
    nbytes = sum(vgg16.buffers[name].nbytes for name in expected)
    assert copied(schedule, Lane.OFFLOAD) == copied(schedule, Lane.PREFETCH) == nbytes
    assert schedule.offloaded_nbytes == nbytes


def test_vdnn_conv_moves_the_inputs_of_convolutions(vgg16: Graph, vgg16_plan: Planner) -> None:
    schedule = vgg16_plan("vdnn-conv", MEMORY)
    expected = inputs_of(vgg16, "conv2d")
    assert moved(schedule) == expected
    nbytes = sum(vgg16.buffers[name].nbytes for name in expected)
    assert copied(schedule, Lane.OFFLOAD) == copied(schedule, Lane.PREFETCH) == nbytes


@pytest.mark.parametrize("policy", ["vdnn-all", "vdnn-conv", "vdnn-dyn"])
def test_the_classifier_never_moves(vgg16: Graph, vgg16_plan: Planner, policy: str) -> None:
    first = next(op for op in vgg16.network.ops if op.kind == "flatten")
    place = vgg16.network.ops.index(first)
    classifier = {op.output for op in vgg16.network.ops[place:]} | {"target"}
    assert not moved(vgg16_plan(policy, MEMORY)) & classifier


def test_keep_moves_nothing_and_needs_no_host(vgg16_plan: Planner) -> None:
    schedule = vgg16_plan("keep", host_budget=1)
    assert not schedule.plan.transfers
    assert schedule.slab_nbytes == schedule.offloaded_nbytes == 0
    assert all(step.action is Action.LAUNCH for step in schedule.steps)


def test_prefetch_looks_back_no_further_than_the_next_convolution() -> None:
    """vDNN's search, worked out by hand for the operators

        conv2d0 relu1 conv2d2 relu3 max_pool2d4 flatten5 linear6 loss

    The loss finds the pooling, linear6 passes it and finds conv2d2, at which the next three stop;
    conv2d2 finds conv2d0. Each fetches the input of what it finds.
    """
    schedule = planned(expand(pooled((4, 8, 8, 3), 4), Settings("fp32", 1 * KIB)), "vdnn-all")
    begins: dict[str, int] = {}
    for number, slot in enumerate(schedule.plan.slots):
        pass_ = schedule.graph.passes[slot.pass_index]
        if pass_.direction is Direction.BACKWARD:
            begins.setdefault(pass_.op, number)
    opens = {transfer.buffer: transfer.earliest_prefetch for transfer in schedule.plan.transfers}
    finders = {"conv2d2": "loss", "conv2d0": "linear6", "x": "conv2d2"}
    assert opens == {buffer: begins[op] for buffer, op in finders.items()}


def test_no_prefetch_is_issued_before_its_window(small: Graph) -> None:
    schedule = planned(small, "vdnn-all")
    opens = {transfer.buffer: transfer.earliest_prefetch for transfer in schedule.plan.transfers}
    last = -1
    for step in schedule.steps:
        if step.action is Action.LAUNCH:
            last = step.slot
        elif step.lane is Lane.PREFETCH:
            assert last >= opens[step.reads[0].buffer] - 1


def test_sync_makes_the_next_layer_wait_for_copies(small: Graph) -> None:
    """With :sync a layer's launches wait for the copies issued in the layer before."""
    plain, synced = (planned(small, f"vdnn-all:p{suffix}") for suffix in ("", ":sync"))
    costs = h200(small)
    assert simulate(synced, costs).step_s > simulate(plain, costs).step_s
    timeline = simulate(synced, costs)
    lengths = [len(segment.slots) for segment in synced.plan.segments]
    bounds = [sum(lengths[:index]) for index in range(1, len(lengths))]
    copies = [span for span in timeline.spans if span.lane is not Lane.COMPUTE]
    for bound in bounds:
        begins = min(
            span.start_s
            for span in timeline.spans
            if span.lane is Lane.COMPUTE and synced.steps[span.step].slot >= bound
        )
        assert not any(span.start_s < begins < span.end_s for span in copies)


def test_dyn_tries_the_fastest_first(vgg16: Graph, vgg16_plan: Planner) -> None:
    """As the budget shrinks: nothing moves, then convolutions' inputs, all, then less workspace.

    A trial fits where its copies come ahead of their uses: at its floor none does.
    """
    most = vgg16_plan("keep").peak_nbytes
    conv = AHEAD * problem_of(vgg16).floor("vdnn-conv")[0] // 100
    every = AHEAD * problem_of(vgg16).floor("vdnn-all")[0] // 100
    floor = problem_of(vgg16).floor("vdnn-dyn")[0]
    assert floor <= every < conv < most
    assert vgg16_plan("vdnn-dyn", most).plan == vgg16_plan("keep").plan
    for budget, policy in ((conv, "vdnn-conv"), (every, "vdnn-all")):
        chosen, wanted = (
            vgg16_plan("vdnn-dyn", budget).plan,
            vgg16_plan(policy, budget).plan,
        )
        assert chosen.transfers == wanted.transfers
        assert chosen.segments == wanted.segments
    least = vgg16_plan("vdnn-dyn", floor)
    assert least.peak_nbytes <= floor


def test_dyn_takes_what_the_host_has_room_for(vgg16_plan: Planner) -> None:
    """A host too small for all inputs leaves those of the convolutions, or nothing, to move."""
    conv = vgg16_plan("vdnn-conv", MEMORY)
    limit = conv.slab_nbytes
    assert limit < vgg16_plan("vdnn-all", MEMORY).slab_nbytes
    assert vgg16_plan("vdnn-dyn", MEMORY, host_budget=limit).plan.transfers == conv.plan.transfers
    with pytest.raises(HostMemoryError, match="raise host_budget"):
        vgg16_plan("vdnn-dyn", 190_000_000, host_budget=limit)
    with pytest.raises(HostMemoryError, match="raise host_budget"):
        vgg16_plan("vdnn-all", MEMORY, host_budget=limit)


def test_auto_keeps_where_that_fits(vgg16: Graph, vgg16_plan: Planner) -> None:
    kept = vgg16_plan("keep")
    assert vgg16_plan("auto").plan == kept.plan
    assert vgg16_plan("auto", kept.peak_nbytes).plan == kept.plan
    less = vgg16_plan("auto", problem_of(vgg16).floor("keep")[0] - 512)
    assert less.plan.policy == "auto"


@pytest.mark.parametrize("policy", POLICIES)
def test_the_floor_is_a_budget_that_works(coarse: Graph, policy: str) -> None:
    floor, step = problem_of(coarse).floor(policy)
    assert planned(coarse, policy, floor).peak_nbytes <= floor
    with pytest.raises(BudgetError) as raised:
        planned(coarse, policy, coarse.fixed_nbytes + 1)
    error = raised.value
    assert (error.floor_nbytes, error.step) == (floor, step)
    assert f"{floor:,} bytes" in str(error)
    assert any(step.startswith(p.name) for p in coarse.passes)


@pytest.mark.usefixtures("few_trials")
@pytest.mark.parametrize(
    "policy",
    ["keep", "vdnn-all", "vdnn-all:m", "vdnn-conv", "superneurons", "superneurons:lru", "auto"],
)
def test_every_budget_from_the_floor_up_works(policy: str) -> None:
    """Ten budgets from the floor to past the bytes of keep; the peak is inside each."""
    graph = training(32, "bf16", chunk_size=4 * MIB, depths=(1, 1, 2, 2, 2), image=96)
    floor, most = problem_of(graph).floor(policy)[0], planned(graph, "keep").peak_nbytes
    for part in range(10):
        budget = floor + (most - floor) * part // 8
        schedule = planned(graph, policy, budget)
        assert schedule.peak_nbytes <= budget
        assert schedule.budget_nbytes == budget


def test_less_budget_never_names_a_lower_floor(vgg16_plan: Planner) -> None:
    floors = []
    for megabytes in (200, 170, 140, 70):
        with pytest.raises(BudgetError) as raised:
            vgg16_plan("vdnn-conv", megabytes * 1_000_000)
        floors.append(raised.value.floor_nbytes)
    assert len(set(floors)) == 1


@settings(max_examples=24, derandomize=True, deadline=None)
@given(
    batch=st.integers(1, 40),
    chunk_size=st.integers(1 * KIB, 4 * MIB),
    share=st.floats(0, 1),
    policy=st.sampled_from([*POLICIES]),
)
def test_any_batch_and_chunk_size_fit_from_the_floor_up(
    batch: int, chunk_size: int, share: float, policy: str
) -> None:
    graph = training(batch, chunk_size=chunk_size, depths=(1, 0, 1, 0, 0), image=32, classifier=32)
    floor = problem_of(graph).floor(policy)[0]
    budget = floor + round(share * planned(graph, "keep").arena_nbytes)
    assert planned(graph, policy, budget).peak_nbytes <= budget


def test_the_baseline_is_the_sum_of_all_buffers(vgg16: Graph, vgg16_plan: Planner) -> None:
    nbytes = {"float32": 4, "bfloat16": 2, "int64": 8}
    sizes = [prod(b.shape) * nbytes[b.dtype] for b in vgg16.buffers.values()]
    fixed = sum(param.nbytes for param in vgg16.network.params.values())
    assert fixed == 4 * 14_914_984
    assert vgg16.fixed["optimizer state"] == block_nbytes(
        sum(aligned(param.nbytes) for param in vgg16.network.params.values())
    )
    assert vgg16.fixed["parameters"] == fixed
    assert vgg16.baseline_nbytes == sum(sizes) + sum(vgg16.fixed.values())
    assert vgg16_plan("keep").peak_nbytes < vgg16.baseline_nbytes


def test_sections_are_no_larger_than_the_chunk_size(vgg16: Graph) -> None:
    for buffer in vgg16.buffers.values():
        if buffer.kind in (Kind.MAP, Kind.GRAD, Kind.INPUT) and buffer.section > 1:
            assert buffer.section_nbytes(0) <= vgg16.chunk_size


def test_unknown_policies_are_named(small: Graph) -> None:
    with pytest.raises(InputError, match="'vdnn-some' is not known; choose one of keep, vdnn-all"):
        planned(small, "vdnn-some")


def test_a_plan_prints_what_moves_and_why() -> None:
    graph = training(4, chunk_size=MIB, depths=(1, 1, 1, 1, 1), image=32, classifier=8)
    assert str(planned(graph, "keep").plan) == "keep: no maps leave the device"
    lines = str(planned(graph, "vdnn-conv").plan).splitlines()
    assert lines[0] == "vdnn-conv: 5 maps leave the device"
    assert lines[1] == "  x: sections 0 to 0 (input of conv2d0)"
