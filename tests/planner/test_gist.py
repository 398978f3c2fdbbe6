"""gist-lossless: which maps are stored encoded, between which uses, and what that saves."""

import pytest
import torch

from tests.networks.gist import Joined
from tests.support.networks import NetworkMaker, vgg
from tests.support.simulated import h200
from tvdnn.engine import training_graph
from tvdnn.errors import BudgetError, InputError
from tvdnn.graph import BITS, RAW, TF32, Direction, Form, Graph, Need, Network, Rewrites, with_share
from tvdnn.ops import Settings, expand
from tvdnn.ops.expand import graph_variants
from tvdnn.optim import SGD
from tvdnn.planner.ir.schedule import Action, Schedule
from tvdnn.planner.make import Problem, make_schedule
from tvdnn.planner.policies import policy_named
from tvdnn.units import KIB, MIB

GIST, FUSED = "gist-lossless", "gist-lossless:fused"


def by_pairs() -> Network:
    """The ops

        conv2d0 relu1 max_pool2d2 conv2d3 relu4 conv2d5 relu6 max_pool2d7
        flatten8 linear9 relu10 dropout11 linear12

    with ReLU and pooling twice, ReLU and convolution, pooling and convolution, and a ReLU of whose
    output the dropout needs nothing in backward.
    """
    maker = NetworkMaker((4, 8, 8, 3))
    maker.conv(16)
    maker.relu()
    maker.max_pool()
    for _ in range(2):
        maker.conv(8)
        maker.relu()
    maker.max_pool()
    maker.flatten()
    maker.linear(24)
    maker.relu()
    maker.dropout()
    maker.linear(4)
    return maker.build()


def coded(network: Network, dtype: str = "fp32", chunk_size: int = 1 * KIB) -> Graph:
    return expand(network, Settings(dtype, chunk_size, optimizer=SGD(), coded_pools=True))


def planned(graph: Graph, policy: str = GIST, budget: int | None = None) -> Schedule:
    return make_schedule(graph, h200(graph), policy=policy, budget=budget)


def slot_of(schedule: Schedule, op: str, direction: Direction) -> int:
    """The first slot of an op's passes in one direction."""
    passes = (schedule.graph.passes[slot.pass_index] for slot in schedule.plan.slots)
    found = (pass_.op == op and pass_.direction is direction for pass_ in passes)
    return [*found].index(True)


def test_maps_of_relu_and_pooling_are_stored_as_bits() -> None:
    """By hand. In place, a ReLU's map is its convolution's."""
    schedule = planned(coded(by_pairs()))
    stored = {bridge.buffer: bridge for bridge in schedule.plan.bridges}
    readers = {"conv2d0": "max_pool2d2", "conv2d5": "max_pool2d7", "linear9": "dropout11"}
    relus = {"conv2d0": "relu1", "conv2d5": "relu6", "linear9": "relu10"}
    assert stored.keys() == readers.keys()
    for name, bridge in stored.items():
        assert (bridge.form, bridge.tier, bridge.first) == (BITS, None, 0)
        assert bridge.count == schedule.graph.buffers[name].num_sections
        assert bridge.after == slot_of(schedule, readers[name], Direction.FORWARD)
        assert bridge.needed_by == slot_of(schedule, relus[name], Direction.BACKWARD)
    recodes = [step for step in schedule.steps if step.action is Action.RECODE]
    assert {step.reads[0].buffer for step in recodes} == stored.keys()
    assert all((step.reads[0].form, step.writes[0].form) == (RAW, BITS) for step in recodes)


def test_no_raw_map_of_a_pair_outlives_forward() -> None:
    schedule = planned(coded(by_pairs()))
    passes, steps = schedule.graph.passes, schedule.steps
    backward = min(
        number
        for number, step in enumerate(steps)
        if step.action is Action.LAUNCH and passes[step.pass_index].direction is Direction.BACKWARD
    )
    for each in schedule.residencies:
        if each.buffer in ("conv2d0", "conv2d5", "linear9"):
            assert (each.steps[-1] < backward) is (each.form != BITS)


def test_poolings_read_codes_of_two_bits_a_maximum() -> None:
    graph = coded(by_pairs())
    for op, nbytes in (("max_pool2d2", 4 * 4 * 4 * 16 // 4), ("max_pool2d7", 4 * 2 * 2 * 8 // 4)):
        (pass_,) = (p for p in graph.passes if p.op == op and p.role == "grad_input")
        assert [use.buffer for use in pass_.reads][1:] == [f"codes {op}"]
        assert graph.buffers[f"codes {op}"].nbytes == nbytes


def test_maps_without_whole_bytes_of_bits_stay_raw() -> None:
    maker = NetworkMaker((4, 8, 8, 3))
    for channels in (12, 8):
        maker.conv(channels)
        maker.relu()
        maker.max_pool()
    maker.flatten()
    maker.linear(4)
    assert [b.buffer for b in planned(coded(maker.build())).plan.bridges] == ["conv2d3"]


def test_memory_falls_beside_keep() -> None:
    """VGG-16 of 64 x 64 pixels, batch 64, in float32: five maps of ReLU and pooling become bits.

    Over the turn from forward to backward they take a thirty-second of their bytes.
    """
    network = vgg(64, image=64, classifier=64)
    settings = Settings("fp32", 2 * MIB, optimizer=SGD(momentum=0.9))
    variants = graph_variants(network, settings)
    plain = variants.graph(Rewrites())
    costs = h200(plain)
    kept = make_schedule(plain, costs, policy="keep")
    stored = Problem(variants, costs).schedule(GIST)
    assert len(stored.plan.bridges) == 5 + 2
    assert stored.arena_nbytes < kept.arena_nbytes / 1.4


def test_a_budget_gets_shorter_launches_down_to_the_floor() -> None:
    graph = coded(vgg(16, (2, 1, 1, 1, 1), 64, 8), chunk_size=256 * KIB)
    most = planned(graph).peak_nbytes
    floor, step = Problem(graph, h200(graph)).floor(GIST)
    assert floor < most
    for budget in (floor, most - 1, most):
        schedule = planned(graph, GIST, budget)
        assert schedule.peak_nbytes <= budget
        assert len(schedule.plan.bridges) == len(planned(graph).plan.bridges)
    with pytest.raises(BudgetError, match=f"floor.*{floor:,} bytes") as raised:
        planned(graph, GIST, floor - 512)
    assert raised.value.step == step


def test_fused_ops_need_no_bits() -> None:
    """A fused pooling's codes and its own map stand for the map of the ReLU."""
    graph = expand(by_pairs(), Settings("fp32", 1 * KIB, optimizer=SGD(), fuse=True))
    assert planned(graph, FUSED).plan.bridges == ()


def test_convolutions_inputs_are_stored_as_tf32_codes() -> None:
    """By hand: the maps between a ReLU and a convolution.

    Poolings leave none, as their NaNs are not those of rounding. Codes are decoded ahead of the
    gradients of weights.
    """
    graph = coded(vgg(16, (1, 3, 1, 1, 1), 32, 32), "tf32", chunk_size=32 * KIB)
    schedule = planned(graph, f"{GIST}:tf32")
    stored = {bridge.buffer: bridge for bridge in schedule.plan.bridges}
    values = {name for name, bridge in stored.items() if bridge.form == TF32}
    assert values == {"conv2d3", "conv2d5"}
    for name in values:
        first = graph.passes[schedule.plan.slots[stored[name].needed_by].pass_index]
        assert (first.role, name in first.read_buffers) == ("grad_weight", True)
    decodes = [
        step
        for step in schedule.steps
        if step.action is Action.RECODE and step.writes[0].form == RAW
    ]
    assert {step.reads[0].buffer for step in decodes} == values
    kept = planned(graph, GIST)
    assert schedule.arena_nbytes < kept.arena_nbytes
    assert {b.buffer for b in kept.plan.bridges} == stored.keys() - values


def test_no_other_type_has_tf32_codes() -> None:
    for dtype in ("fp32", "bf16"):
        graph = coded(by_pairs(), dtype)
        forms = {bridge.form for bridge in planned(graph, f"{GIST}:tf32").plan.bridges}
        assert forms == {BITS}


@pytest.mark.parametrize("forked", [False, True])
def test_joined_relus_are_stored_as_the_bits_of_their_ranges(forked: bool) -> None:
    """A pooling of joined ReLUs needs codes alone, unless something else reads one of these."""
    graph = training_graph(Joined(forked=forked), torch.empty(4, 3, 8, 8), coded_pools=True)
    (joined,) = (op.output for op in graph.network.ops if op.kind == "concat")
    bridges = {bridge.buffer: bridge.form for bridge in planned(graph).plan.bridges}
    assert bridges == ({} if forked else {joined: BITS})
    values = graph.buffers[joined].nbytes / 4
    masked: dict[str, float] = {}
    for each in graph.passes:
        for use in (use for use in each.reads if BITS in use.forms):
            assert (use.buffer, use.need) == (joined, Need.SIGN)
            start, stop = use.channels or (0, 0)
            masked[each.op] = each.form_nbytes[joined, BITS]
            assert masked[each.op] == values * (stop - start) / 32 * (1 / 8 - 4)
    assert masked.keys() == {"relu", "relu#2"}


@pytest.mark.parametrize("codec", ["ssdc", "bitmap"])
def test_values_behind_relus_are_packed_to_a_stated_density(codec: str) -> None:
    """By hand: the inputs of convolutions and linear layers that a ReLU or a pooling leaves."""
    graph = coded(vgg(16, (1, 2, 1, 1, 1), 32, 32), chunk_size=32 * KIB)
    schedules = {share: planned(graph, f"{GIST}:{codec}={share}") for share in (0, 25, 50, 100)}
    of_bits = {bridge.buffer for bridge in planned(graph).plan.bridges}
    packed = {"max_pool2d2", "conv2d3", "max_pool2d7", "max_pool2d10", "max_pool2d13", "flatten17"}
    for share, schedule in schedules.items():
        forms = {bridge.buffer: bridge.form for bridge in schedule.plan.bridges}
        stored = {name: form for name, form in forms.items() if form != BITS}
        assert forms.keys() - stored.keys() == of_bits
        assert stored.keys() == (packed if share < 100 else set())  # no code is smaller at 100%
        assert set(stored.values()) <= {with_share(Form(codec), share / 100)}
        assert (schedule.slab_nbytes > 0) is (share < 100)
    arenas = [schedule.arena_nbytes for schedule in schedules.values()]
    assert arenas == sorted(arenas)
    slabs = [schedule.slab_nbytes for schedule in schedules.values()]
    assert slabs == sorted(slabs, reverse=True)


def test_densities_are_percentages() -> None:
    assert policy_named(f"{FUSED}:ssdc=7").name == f"{FUSED}:ssdc=7"
    with pytest.raises(InputError, match="has room for 101% of values; give at most 100"):
        policy_named(f"{GIST}:bitmap=101")
    for name in (f"{GIST}:csr=50", f"{GIST}:ssdc", f"{GIST}:ssdc=x", "keep:ssdc=50"):
        with pytest.raises(InputError, match=f"policy '{name}' is not known"):
            policy_named(name)


def test_maps_of_any_sign_are_not_packed() -> None:
    """A convolution's output without a ReLU has no zeros to leave out."""
    maker = NetworkMaker((4, 8, 8, 3))
    for channels in (8, 16):
        maker.conv(channels)
    maker.flatten()
    maker.linear(4)
    assert planned(coded(maker.build()), f"{GIST}:ssdc=10").plan.bridges == ()
