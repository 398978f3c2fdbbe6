"""A training step on a GPU whose maps leave as codes that kernels encode straight to the host."""

import pytest

from tests.support.lowered import lower
from tests.support.running import random_batches, train
from tests.support.simulated import h200
from tests.support.straight import CLASSES, convolutions, straight_plan, straight_steps
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.verify.check import check

pytestmark = pytest.mark.gpu
STEPS = 3


@pytest.mark.parametrize("delay_seed", [None, 1, 2])
@pytest.mark.parametrize(("batch", "side"), [(6, 8), (16, 56)])
def test_a_step_has_the_bits_of_keep(batch: int, side: int, delay_seed: int | None) -> None:
    net, graph = convolutions(dtype="tf32", batch=batch, side=side)
    schedule, kept = (
        lower(graph, plan, h200(graph)) for plan in (straight_plan(graph), keep(graph))
    )
    check(schedule)
    assert len(straight_steps(schedule)) >= 10
    batches = random_batches(STEPS, (batch, 3, side, side), CLASSES, 0)
    outcome = train(net, schedule, batches, delay_seed=delay_seed, device="cuda")
    assert outcome.equals(train(net, kept, batches, device="cuda"))
