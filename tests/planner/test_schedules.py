"""Random chains, plans, budgets and chunk sizes: checked, run in any order, identical to keep."""

import random
from collections import Counter

import pytest
import torch
from hypothesis import example
from hypothesis import strategies as st

from tests.networks.sign_bits import residual
from tests.support.drawn_chains import CLASSES, Drawn, random_costs
from tests.support.examples import CHAIN, examples
from tests.support.lowered import lower
from tests.support.networks import random_chain
from tests.support.plans import random_plan
from tvdnn.engine import training_graph
from tvdnn.graph import RAW, Graph
from tvdnn.ops import concat_views
from tvdnn.planner.ir.plan import Plan
from tvdnn.planner.ir.schedule import Action, Schedule, counts_nbytes
from tvdnn.planner.lowering.floor import MinimumSchedule
from tvdnn.planner.lowering.segments import Variant
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.policies.vdnn import ALL, CONV, vdnn
from tvdnn.planner.verify.check import check

pytestmark = pytest.mark.usefixtures("units_of_one", "few_trials")

EXAMPLES = 120


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
    shape = (batch, channels, image, image)
    assert_equals_keep(Drawn.chain(rng, seed, shape, chunk_size=chunk_size), rng)


@examples(EXAMPLES // 4, batch=st.integers(2, 7), chunk_size=st.integers(200, 10_000))
def test_any_plan_of_forks_and_joins_equals_keep(seed: int, batch: int, chunk_size: int) -> None:
    rng = random.Random(seed)
    drawn = Drawn.chain(rng, seed, (batch, 3, 7, 7), forks=True, chunk_size=chunk_size)
    assert_equals_keep(drawn, rng)


def test_any_plan_of_ranges_equals_keep() -> None:
    """References take ranges of any channels: branches are never copied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            concat_views.StridedSupport, "accepts", lambda self, use, *_: use in self.uses
        )
        for seed in range(EXAMPLES // 20):
            rng = random.Random(seed)
            shape, chunk_size = (rng.randint(2, 7), 3, 7, 7), rng.randint(200, 9000)
            drawn = Drawn.chain(rng, seed, shape, forks=True, chunk_size=chunk_size)
            assert_equals_keep(drawn, rng)


def test_any_plan_of_codes_equals_keep() -> None:
    """Signs of maps are read raw, or as bits that are left, encoded later, or away meanwhile."""
    for seed in range(EXAMPLES // 10):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        shape, chunk_size = (rng.randint(2, 7), 3, 4, 4), rng.randint(2000, 17000)
        how = {"chunk_size": chunk_size, "dtype": "bf16", "fuse": True}
        assert_equals_keep(Drawn.of(residual(), shape, seed, **how), rng)


@examples(EXAMPLES // 4, **CHAIN, fuse=st.booleans())
def test_any_plan_of_restored_codes_equals_keep(
    seed: int, batch: int, image: int, channels: int, chunk_size: int, fuse: bool
) -> None:
    """Maps are encoded, rest on the device or on the host, and are decoded."""
    rng = random.Random(seed)
    how = {"dtype": rng.choice(("tf32", "tf32", "bf16", "fp32")), "fuse": fuse}
    how |= {"forks": rng.random() < 0.3, "chunk_size": chunk_size}
    assert_equals_keep(Drawn.chain(rng, seed, (batch, channels, image, image), **how), rng)


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


def assert_equals_keep(drawn: Drawn, rng: random.Random) -> None:
    """A drawn plan is sound, and run in any order trains to keep's bits inside its peak."""
    graph, kept = drawn.graph, drawn.kept(random_costs(rng))
    schedule = drawn_schedule(graph, rng)
    check(schedule)
    outcome = drawn.assert_bits(schedule, kept)
    assert outcome.touched_nbytes == schedule.arena_nbytes
    outside = graph.fixed_nbytes + counts_nbytes(schedule.num_counts)
    assert schedule.peak_nbytes == outside + schedule.arena_nbytes
    assert schedule.peak_nbytes <= schedule.budget_nbytes
