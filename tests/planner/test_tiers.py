"""Tiers: sections rest on the host, in a file and on a peer, and come back as they were."""

import random
from collections.abc import Iterator

import pytest
import torch

from tests.planner.test_schedules import CLASSES, STEPS, random_costs
from tests.support.examples import examples
from tests.support.lowered import lower
from tests.support.networks import random_chain
from tests.support.plans import random_plan
from tests.support.running import random_batches, train
from tvdnn.engine import training_graph
from tvdnn.optim import SGD
from tvdnn.planner.ir.plan import TIERS
from tvdnn.planner.lowering.floor import MinimumSchedule
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.verify.check import check
from tvdnn.runtime.section_file import SectionFile

pytestmark = pytest.mark.usefixtures("units_of_one")

EXAMPLES = 40


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SectionFile]:
    made = SectionFile(tmp_path_factory.mktemp("file"))
    yield made
    made.close()


@examples(EXAMPLES)
def test_any_plan_of_tiers_equals_keep(seed: int, file: SectionFile) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    batch, image = rng.randint(1, 7), rng.randint(4, 9)
    net = random_chain(rng, 3, image, CLASSES, forks=rng.random() < 0.3)
    batches = random_batches(STEPS, (batch, 3, image, image), CLASSES, seed)
    how = {"optimizer": SGD(momentum=0.9), "chunk_size": rng.randint(200, 9000)}
    how |= {"dtype": rng.choice(("fp32", "tf32", "bf16")), "fuse": rng.random() < 0.5}
    graph = training_graph(net, batches[0][0], **how)
    last = training_graph(net, batches[0][0], **how, updates_last=True)
    plan, costs = random_plan(last, rng, TIERS), random_costs(rng)
    least, _ = MinimumSchedule.of(last, plan, costs).floor
    most = lower(last, plan, costs).peak_nbytes
    budget = least + round(rng.choice((0.0, rng.random(), 1.0)) * max(0, most - least))
    schedule = lower(last, plan, costs, budget=budget)
    check(schedule)
    kept = lower(graph, keep(graph), costs)
    result = train(net, schedule, batches, order_seed=seed, file=file)
    assert result.equals(train(net, kept, batches))
    assert schedule.peak_nbytes <= budget
