"""gist-lossy: which maps are stored rounded, which as bits, and what that saves."""

import pytest
from torch import nn, randn

from tests.planner.test_gist import by_pairs, coded, planned, slot_of
from tests.support.networks import NetworkMaker, vgg
from tests.support.simulated import h200
from tvdnn.engine import training_graph
from tvdnn.errors import InputError
from tvdnn.graph import (
    BITS,
    FP8,
    FP10,
    FP16,
    RAW,
    SSDC,
    Direction,
    Graph,
    Kind,
    Need,
    in_form,
    is_lossy,
    with_share,
)
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.planner.ir.schedule import Action, Schedule
from tvdnn.planner.make import Problem
from tvdnn.planner.policies import POLICIES, policy_named
from tvdnn.units import KIB

LOSSY = "gist-lossy"
LOSSLESS = [name for name, each in POLICIES.items() if not each.lossy]
forms = pytest.mark.parametrize("form", [FP16, FP10, FP8], ids=str)


def small_vgg(dtype: str = "fp32") -> Graph:
    """The maps of its ops

        conv2d0 relu1 max_pool2d2 conv2d3 relu4 conv2d5 relu6 max_pool2d7 conv2d8 relu9 ...

    as in `test_gist.py`: a ReLU's map is its convolution's.
    """
    return coded(vgg(16, (1, 2, 1, 1, 1), 32, 32), dtype, chunk_size=32 * KIB)


def stored(schedule: Schedule) -> dict[str, set[object]]:
    found: dict[str, set[object]] = {}
    for bridge in schedule.plan.bridges:
        found.setdefault(bridge.buffer, set()).add(bridge.form)
    return found


@forms
def test_maps_are_rounded_and_a_relus_gradient_has_its_bits(form: object) -> None:
    """By hand: what a convolution or a linear layer reads, the input too.

    A dropout's map is its own. conv2d3 lies between a ReLU and a convolution, others behind
    poolings.
    """
    schedule = planned(small_vgg(), f"{LOSSY}:{form}")
    found = stored(schedule)
    (x,) = schedule.graph.inputs.keys() - {"target"}
    pooled = {"max_pool2d2", "max_pool2d7", "max_pool2d10", "max_pool2d13", "flatten17"}
    pooled |= {"dropout20", "dropout23"}
    assert {name for name, each in found.items() if each == {form}} == {x} | pooled
    assert found["conv2d3"] == {form, BITS}
    of_bits = {name for name, each in found.items() if each == {BITS}}
    assert of_bits == stored(planned(small_vgg())).keys()


def test_codes_lie_between_forward_and_backward() -> None:
    schedule = planned(small_vgg(), f"{LOSSY}:{FP8}")
    rounded = {each.buffer: each for each in schedule.plan.bridges if each.form == FP8}
    bits = {each.buffer: each for each in schedule.plan.bridges if each.form == BITS}
    code, mask = rounded["conv2d3"], bits["conv2d3"]
    passes = [schedule.graph.passes[slot.pass_index] for slot in schedule.plan.slots]
    forward = [each.direction is Direction.FORWARD for each in passes]
    uses = [at for at, each in enumerate(passes) if forward[at] and "conv2d3" in each.used_buffers]
    assert (code.after, mask.after) == (uses[-1], uses[-1])
    assert passes[uses[-1]].op == "conv2d5"
    assert code.needed_by >= slot_of(schedule, "conv2d5", Direction.BACKWARD)
    assert mask.needed_by == slot_of(schedule, "relu4", Direction.BACKWARD)
    decodes = [s.reads[0] for s in schedule.steps if s.action is Action.RECODE and s.reads[0].form]
    assert {each.form for each in decodes} == {RAW, FP8}  # no bits are recoded to values


def test_the_loss_reads_exact_values() -> None:
    """The last linear layer's output is read by the loss's gradient alone."""
    schedule = planned(coded(by_pairs()), f"{LOSSY}:{FP8}")
    readers = {
        use.buffer for each in schedule.graph.passes for use in each.reads if "loss" in each.op
    }
    assert readers
    assert not readers & schedule.plan.rounded


def test_half_precision_does_nothing_for_bfloat16() -> None:
    graph = small_vgg("bf16")
    assert planned(graph, f"{LOSSY}:{FP16}").plan.bridges == planned(graph).plan.bridges
    for form in (FP10, FP8):
        assert planned(graph, f"{LOSSY}:{form}").plan.rounded


def test_memory_falls_with_the_bits() -> None:
    graph = small_vgg()
    names = ["gist-lossless", *(f"{LOSSY}:{form}" for form in (FP16, FP10, FP8))]
    turns = [resting_nbytes(planned(graph, name)) for name in names]
    assert turns == sorted(turns, reverse=True)
    assert turns[-1] < 0.4 * turns[0]


def resting_nbytes(schedule: Schedule) -> int:
    """Bytes of inputs and maps that live across the turn from forward to backward."""
    passes = schedule.graph.passes
    turn = min(
        index
        for index, step in enumerate(schedule.steps)
        if step.action is Action.LAUNCH and passes[step.pass_index].direction is Direction.BACKWARD
    )
    kinds = {name: each.kind for name, each in schedule.graph.buffers.items()}
    return sum(
        each.nbytes
        for each in schedule.residencies
        if kinds[each.buffer] in (Kind.INPUT, Kind.MAP) and each.steps[0] < turn <= each.steps[-1]
    )


@pytest.mark.parametrize(("share", "form"), [(20, SSDC), (45, FP16)])
def test_the_smaller_code_is_taken(share: int, form: object) -> None:
    """Of float32 values, FP16 takes 2 bytes, and SSDC 5 for each that it has room for."""
    schedule = planned(small_vgg(), f"{LOSSY}:{FP16}:ssdc={share}")
    found = stored(schedule)
    exact = with_share(SSDC, share / 100)
    assert found["max_pool2d2"] == {exact if form == SSDC else FP16}
    assert found["conv2d3"] == ({exact} if form == SSDC else {FP16, BITS})
    raw = schedule.graph.buffers["max_pool2d2"]
    assert (in_form(raw, exact).nbytes < in_form(raw, FP16).nbytes) is (form == SSDC)


def test_a_sign_that_has_no_bits_keeps_its_map_exact() -> None:
    """A ReLU's map of 12 channels has no whole bytes of bits."""
    maker = NetworkMaker((4, 8, 8, 3))
    for channels in (12, 8):
        maker.conv(channels)
        maker.relu()
    maker.conv(4)
    maker.flatten()
    maker.linear(4)
    found = stored(planned(coded(maker.build()), f"{LOSSY}:{FP8}"))
    assert "conv2d0" not in found
    assert found["conv2d2"] == {FP8, BITS}


def test_on_fused_ops_masks_read_bits_beside_rounded_maps() -> None:
    """The gradient of a fused convolution masks by bits. That of a linear layer reads the map."""
    graph = expand(
        vgg(16, (1, 2, 1, 1, 1), 32, 32), Settings("fp32", 32 * KIB, fuse=True, optimizer=SGD())
    )
    schedule = planned(graph, f"{LOSSY}:fused:{FP8}")
    rounded, found = schedule.plan.rounded, stored(schedule)
    signs = [use for p in graph.passes for use in p.reads if use.need is Need.SIGN]
    by_bits = {use.buffer for use in signs if BITS in use.forms}
    assert len(rounded & by_bits) > 3
    assert all(found[name] == {FP8, BITS} for name in rounded & by_bits)
    assert not rounded & {use.buffer for use in signs if BITS not in use.forms}


@pytest.mark.parametrize("policy", LOSSLESS)
def test_no_other_policy_rounds(policy: str) -> None:
    """Not even at the floor."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip
    coded_pools = POLICIES[policy].coded_pools
    graph = training_graph(net, randn(4, 3, 8, 8), coded_pools=coded_pools, chunk_size=2 * KIB)
    floor, _ = Problem(graph, h200(graph)).floor(policy)
    for budget in (None, floor):
        schedule = planned(graph, policy, budget)
        assert not any(is_lossy(each.form) for each in schedule.residencies)


def test_names_of_lossy_policies() -> None:
    assert policy_named(f"{LOSSY}:fused:fp10:bitmap=7").lossy
    assert not policy_named("gist-lossless:bitmap=7").lossy
    with pytest.raises(InputError, match="has room for 101% of values; give at most 100"):
        policy_named(f"{LOSSY}:fp8:bitmap=101")
    for name in (LOSSY, f"{LOSSY}:fp32", f"{LOSSY}:ssdc=50", f"{LOSSY}:fp8:fused"):
        with pytest.raises(InputError, match=f"policy '{name}' is not known"):
            policy_named(name)
