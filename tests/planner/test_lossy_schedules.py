"""Random plans with lossy codes: checked, and the same bits in every order and place."""

import random
from collections import Counter

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from tests.planner.test_schedules import EXAMPLES
from tests.support.drawn_chains import CLASSES, STEPS, random_costs
from tests.support.examples import CHAIN, examples
from tests.support.lossy_plans import lossy_plans
from tests.support.lowered import lower
from tests.support.networks import random_chain
from tests.support.running import random_batches, train
from tvdnn.engine import training_graph
from tvdnn.graph import RAW, is_lossy
from tvdnn.optim import SGD
from tvdnn.planner.ir.schedule import Action
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.timing.simulate import simulate
from tvdnn.planner.verify.check import check

pytestmark = pytest.mark.usefixtures("units_of_one")


def drawn_net(rng: random.Random, channels: int, image: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return random_chain(rng, channels, image, CLASSES, forks=rng.random() < 0.3)


@examples(EXAMPLES // 4, **CHAIN, fuse=st.booleans())
def test_any_plan_that_rounds_the_same_maps_has_the_same_bits(
    seed: int, batch: int, image: int, channels: int, chunk_size: int, fuse: bool
) -> None:
    """The oracle rounds in keep's order. The first loss is that of keep itself."""
    rng = random.Random(seed)
    net, dtype = drawn_net(rng, channels, image, seed), rng.choice(("fp32", "tf32", "bf16"))
    batches = random_batches(STEPS, (batch, channels, image, image), CLASSES, seed)
    how = {"chunk_size": chunk_size, "dtype": dtype, "fuse": fuse}
    graph = training_graph(net, batches[0][0], optimizer=SGD(momentum=0.9), **how)
    schedule, oracle, kept = (
        lower(graph, plan, random_costs(rng)) for plan in (*lossy_plans(graph, rng), keep(graph))
    )
    check(schedule)
    check(oracle)
    result = train(net, schedule, batches, order_seed=seed)
    assert result.equals(train(net, oracle, batches))
    assert torch.equal(result.losses[0], train(net, kept, batches[:1]).losses[0])


def test_plans_have_lossy_codes_of_every_codec() -> None:
    """Some are on the host meanwhile. The simulator gives each recode its time."""
    decoded, away = Counter[str](), Counter[str]()
    for seed in range(20):
        rng = random.Random(seed)
        net, x = drawn_net(rng, 3, 8, seed), torch.empty(5, 3, 8, 8)
        graph = training_graph(net, x, chunk_size=3000, dtype="fp32", fuse=seed % 2 == 0)
        costs = random_costs(rng)
        schedule = lower(graph, lossy_plans(graph, rng)[0], costs)
        check(schedule)
        seconds = {span.step: span.end_s - span.start_s for span in simulate(schedule, costs).spans}
        for index, step in enumerate(schedule.steps):
            form = step.reads[0].form if step.reads else RAW
            if is_lossy(form) and step.action is Action.RECODE:
                decoded[form.codec] += 1
                assert seconds[index] > 0
            if is_lossy(form) and step.action is Action.COPY:
                away[form.codec] += 1
    assert decoded.keys() == away.keys() == {"fp16", "fp10", "fp8"}
