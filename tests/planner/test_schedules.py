"""Random chains, plans, budgets and chunk sizes: checked, run in any order, identical to keep."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import example
from hypothesis import strategies as st
from torch import nn

from tests.networks.sign_bits import residual
from tests.support.examples import CHAIN, examples
from tests.support.lowered import lower
from tests.support.networks import random_chain
from tests.support.plans import random_plan
from tests.support.running import random_batches, train
from tvdnn.engine import training_graph
from tvdnn.graph import RAW, Graph
from tvdnn.ops import concat_views
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Costs, HostLink, Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.plan import Plan
from tvdnn.planner.ir.schedule import Action, Schedule, counts_nbytes
from tvdnn.planner.lowering.floor import MinimumSchedule
from tvdnn.planner.lowering.segments import Variant
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.policies.vdnn import ALL, CONV, vdnn
from tvdnn.planner.verify.check import check

pytestmark = pytest.mark.usefixtures("units_of_one")

EXAMPLES = 120
STEPS = 2
CLASSES = 4
LINKS = (1e5, 1e8, 1e12)  # bytes a second: copies dwarf compute, match it, or cost nothing


def random_costs(rng: random.Random) -> Costs:
    """Costs with slow or fast copies beside compute. Orders of steps differ."""
    rate = rng.choice(LINKS)
    link = HostLink(rate, rate, rate / 2, rate / 2, 1e-6)
    return Roofline(replace(load("H200"), link=link), "fp32")


def drawn_plan(graph: Graph, rng: random.Random) -> Plan:
    """A policy's plan, or one built at random."""
    kind = rng.choice(("random", "random", "keep", "all", "conv"))
    if kind == "random":
        return random_plan(graph, rng)
    if kind == "keep":
        return keep(graph)
    kinds = {"all": ALL, "conv": CONV}[kind]
    variant = rng.choice((Variant.MEMORY, Variant.PERFORMANCE))
    return vdnn(graph, kinds, name=kind, default=variant, sync=rng.random() < 0.3)


def drawn_schedule(graph: Graph, rng: random.Random) -> Schedule:
    """A schedule of a drawn plan. Its budget lies between the floor and the peak without one."""
    plan, costs = drawn_plan(graph, rng), random_costs(rng)
    least, _ = MinimumSchedule.of(graph, plan, costs).floor
    most = lower(graph, plan, costs).peak_nbytes
    budget = least + round(rng.choice((0.0, rng.random(), 1.0)) * max(0, most - least))
    return lower(graph, plan, costs, budget=budget)


@examples(EXAMPLES, **CHAIN)
@example(seed=5, batch=6, image=7, channels=4, chunk_size=17923).via("recompute cut the step")
@example(seed=15, batch=5, image=11, channels=2, chunk_size=1983).via("gradient behind a view")
@example(seed=206, batch=3, image=11, channels=6, chunk_size=1905).via("bits hung on addresses")
@example(seed=419, batch=9, image=10, channels=2, chunk_size=12666).via("the floor did not fit")
def test_any_plan_equals_keep(
    seed: int, batch: int, image: int, channels: int, chunk_size: int
) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net = random_chain(rng, channels, image, CLASSES)
    assert_equals_keep(net, rng, (batch, channels, image, image), chunk_size, seed)


@examples(EXAMPLES // 4, batch=st.integers(2, 7), chunk_size=st.integers(200, 10_000))
def test_any_plan_of_forks_and_joins_equals_keep(seed: int, batch: int, chunk_size: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net = random_chain(rng, 3, 7, CLASSES, forks=True)
    assert_equals_keep(net, rng, (batch, 3, 7, 7), chunk_size, seed)


def test_any_plan_of_ranges_equals_keep() -> None:
    """References take ranges of any channels: branches are never copied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            concat_views.StridedSupport, "accepts", lambda self, use, *_: use in self.uses
        )
        for seed in range(EXAMPLES // 20):
            rng = random.Random(seed)
            torch.manual_seed(seed)
            net = random_chain(rng, 3, 7, CLASSES, forks=True)
            assert_equals_keep(net, rng, (rng.randint(2, 7), 3, 7, 7), rng.randint(200, 9000), seed)


def test_any_plan_of_codes_equals_keep() -> None:
    """Signs of maps are read raw, or as bits that are left, encoded later, or away meanwhile."""
    for seed in range(EXAMPLES // 10):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        shape = (rng.randint(2, 7), 3, 4, 4)
        assert_equals_keep(
            residual(), rng, shape, rng.randint(2000, 17000), seed, dtype="bf16", fuse=True
        )


@examples(EXAMPLES // 4, **CHAIN, fuse=st.booleans())
def test_any_plan_of_restored_codes_equals_keep(
    seed: int, batch: int, image: int, channels: int, chunk_size: int, fuse: bool
) -> None:
    """Maps are encoded, rest on the device or on the host, and are decoded."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net = random_chain(rng, channels, image, CLASSES, forks=rng.random() < 0.3)
    how = {"dtype": rng.choice(("tf32", "tf32", "bf16", "fp32")), "fuse": fuse}
    assert_equals_keep(net, rng, (batch, channels, image, image), chunk_size, seed, **how)


def test_plans_have_codes_of_every_codec_that_are_decoded() -> None:
    """Some are on the host meanwhile. Some have a tail, and some need none."""
    decoded, away, tails = Counter[str](), Counter[str](), Counter[tuple[str, bool]]()
    for seed in range(20):
        rng = random.Random(seed)
        net, x = random_chain(rng, 3, 8, CLASSES), torch.empty(5, 3, 8, 8)
        graph = training_graph(net, x, dtype="tf32", chunk_size=3000, fuse=seed % 2 == 0)
        schedule = lower(graph, random_plan(graph, rng), random_costs(rng))
        check(schedule)
        for step in schedule.steps:
            form = step.reads[0].form if step.reads else RAW
            if step.action is Action.RECODE and form != RAW:
                decoded[form.codec] += 1
                tails[form.codec, len(step.reads) > 1] += 1
            if step.action is Action.COPY and form != RAW:
                away[form.codec] += 1
    assert decoded.keys() == away.keys() == {"tf32", "bitmap", "ssdc"}
    packed = {(codec, has_tail) for codec in ("bitmap", "ssdc") for has_tail in (False, True)}
    assert tails.keys() == {("tf32", False), *packed}


def assert_equals_keep(
    net: nn.Module,
    rng: random.Random,
    shape: tuple[int, ...],
    chunk_size: int,
    seed: int,
    **how: object,
) -> None:
    """A drawn plan is sound, and run in any order trains to keep's bits inside its peak."""
    batches = random_batches(STEPS, shape, CLASSES, seed)
    optimizer = SGD(momentum=0.9)
    graph = training_graph(net, batches[0][0], optimizer=optimizer, chunk_size=chunk_size, **how)
    kept = lower(graph, keep(graph), random_costs(rng))
    schedule = drawn_schedule(graph, rng)
    check(schedule)
    result = train(net, schedule, batches, order_seed=seed)
    assert result.equals(train(net, kept, batches))
    assert result.touched_nbytes == schedule.arena_nbytes
    outside = graph.fixed_nbytes + counts_nbytes(schedule.num_counts)
    assert schedule.peak_nbytes == outside + schedule.arena_nbytes
    assert schedule.peak_nbytes <= schedule.budget_nbytes
